# mosquitto: messages of up to 4 MiB to three subscribers, retained ones, and a broker that persists.
# shellcheck shell=bash
packages="mosquitto mosquitto-clients"
start() {
    mkdir store
    printf 'listener 1883 127.0.0.1\nlistener 0 /run/mqtt.sock\nallow_anonymous true\npersistence true\npersistence_location /room/data/store/\nmax_queued_messages 0\nuser root\n' >conf
    serve mosquitto mosquitto -c /room/data/conf
    await listens 1883
}
drive() {
    local at subscribers=()
    bytes 1 4000000 >large && bytes 2 300000 >middle && bytes 3 70000 >small
    for at in 0 1 2; do
        client mosquitto_sub -h 127.0.0.1 -q "$at" -t "data/#" -C 30 -F '%l %t %x' >"seen$at" 2>"$logs/sub$at" &
        subscribers+=($!)
    done
    await eval '[[ $(ss -Htn state established "sport = :1883" | wc -l) == 3 ]]'
    # A subscription may be on its way.
    await eval 'mosquitto_pub -h 127.0.0.1 -t other -m x -q 2'
    sleep 1
    for at in $(seq 1 10); do
        for size in large middle small; do
            client mosquitto_pub -h 127.0.0.1 -q 2 -t "data/$size" -f $size || return
        done
    done
    wait "${subscribers[@]}" || return
    for at in 0 1 2; do sort "seen$at" | sha256sum; done
    client mosquitto_pub -h 127.0.0.1 -q 1 -r -t kept -f large || return
    finish TERM
    serve again mosquitto -c /room/data/conf
    await listens 1883
    client mosquitto_sub -h 127.0.0.1 -t kept -C 1 -N | sha256sum
}
