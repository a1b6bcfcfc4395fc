# A cluster of three nodes of Valkey with large values in every slot range, some of which are moved while clients read.
# shellcheck shell=bash
packages="valkey-server valkey-tools"
ready() { [[ $(valkey-cli -p 7000 cluster info) == *cluster_state:ok* && $(valkey-cli -p 7002 cluster info) == *cluster_state:ok* ]]; }
start() {
    local port
    for port in 7000 7001 7002; do
        mkdir $port
        serve node$port valkey-server --port $port --dir /room/data/$port --save "" --cluster-enabled yes --cluster-node-timeout 60000
        await valkey-cli -p $port ping
    done
    valkey-cli --cluster create 127.0.0.1:7000 127.0.0.1:7001 127.0.0.1:7002 --cluster-yes >"$logs/create" || return
    await ready
}
drive() {
    local at key
    bytes 1 300000 >value
    bytes 2 2000000 >large
    for at in $(seq 1 60); do
        client valkey-cli -c -p 7000 -x set "key$at" <value >/dev/null || return
        client valkey-cli -c -p 7001 -x append "key$at" <large >/dev/null || return
    done
    valkey-cli --cluster reshard 127.0.0.1:7000 --cluster-from "$(valkey-cli -p 7000 cluster myid)" \
        --cluster-to "$(valkey-cli -p 7001 cluster myid)" --cluster-slots 2000 --cluster-yes >"$logs/reshard" 2>&1 || return
    for at in $(seq 1 60); do
        client valkey-cli -c -p 7002 get "key$at" | sha256sum
    done
    valkey-cli -p 7000 dbsize
}
