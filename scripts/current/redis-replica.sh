# Two replicas of Redis, one of them without a disk, behind a primary under load; then one of them becomes the primary.
# shellcheck shell=bash
packages="redis-server redis-tools"
synced() { [[ $(redis-cli -p "$1" info replication) == *master_link_status:up* ]]; }
start() {
    mkdir a b c
    serve primary redis-server --port 7000 --dir /room/data/a --save "" --repl-diskless-sync-delay 0
    await redis-cli -p 7000 ping
    serve replica redis-server --port 7001 --dir /room/data/b --save "" --replicaof "127.0.0.1 7000"
    serve diskless redis-server --port 7002 --dir /room/data/c --save "" --replicaof "127.0.0.1 7000" --repl-diskless-load swapdb
    await synced 7001
    await synced 7002
}
drive() {
    client python3 "$kit/resp.py" --threads 4 7000 || return
    # Once more all, to a replica that has seen nothing of it.
    redis-cli -p 7002 replicaof no one && redis-cli -p 7002 flushall && redis-cli -p 7002 replicaof 127.0.0.1 7000
    await synced 7002
    redis-cli -p 7000 set last one && redis-cli -p 7000 wait 2 60000
    python3 "$kit/digest-keys.py" 7001
    python3 "$kit/digest-keys.py" 7002
    finish KILL "${served[0]}"
    redis-cli -p 7001 replicaof no one && redis-cli -p 7001 flushall || return
    client python3 "$kit/resp.py" --threads 2 7001
}
