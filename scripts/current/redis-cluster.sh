# A cluster of three nodes of Redis with large values in every slot range, some of which are moved while clients read.
# shellcheck shell=bash
packages="redis-server redis-tools"
ready() { [[ $(redis-cli -p 7000 cluster info) == *cluster_state:ok* && $(redis-cli -p 7002 cluster info) == *cluster_state:ok* ]]; }
start() {
    local port
    for port in 7000 7001 7002; do
        mkdir $port
        serve node$port redis-server --port $port --dir /room/data/$port --save "" --cluster-enabled yes --cluster-node-timeout 60000
        await redis-cli -p $port ping
    done
    redis-cli --cluster create 127.0.0.1:7000 127.0.0.1:7001 127.0.0.1:7002 --cluster-yes >"$logs/create" || return
    await ready
}
drive() {
    local at key
    bytes 1 300000 >value
    bytes 2 2000000 >large
    for at in $(seq 1 60); do
        client redis-cli -c -p 7000 -x set "key$at" <value >/dev/null || return
        client redis-cli -c -p 7001 -x append "key$at" <large >/dev/null || return
    done
    redis-cli --cluster reshard 127.0.0.1:7000 --cluster-from "$(redis-cli -p 7000 cluster myid)" \
        --cluster-to "$(redis-cli -p 7001 cluster myid)" --cluster-slots 2000 --cluster-yes >"$logs/reshard" 2>&1 || return
    for at in $(seq 1 60); do
        client redis-cli -c -p 7002 get "key$at" | sha256sum
    done
    redis-cli -p 7000 dbsize
}
