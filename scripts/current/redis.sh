# Redis with threads for input and output, an append-only file that is rewritten under load, and a restart from it.
# shellcheck shell=bash
packages="redis-server redis-tools"
port=6379
options=(--port 6379 --dir /room/data --save "" --appendonly yes --appendfsync everysec --io-threads 3 --loglevel notice)
start() {
    serve redis redis-server "${options[@]}"
    await redis-cli ping
}
drive() {
    client python3 "$kit/resp.py" --threads 6 $port &
    local load=$!
    redis-cli bgrewriteaof >/dev/null
    wait "$load" || return
    redis-cli memory doctor >/dev/null
    redis-cli memory usage k1-1 >/dev/null
    client redis-benchmark -t set,get,lpush,lpop -d 262144 -n 150 -c 8 -P 2 -q >/dev/null || return
    python3 "$kit/digest-keys.py" $port
    finish TERM
    serve redis-again redis-server "${options[@]}"
    await eval '[[ $(redis-cli ping) == PONG ]]'
    python3 "$kit/digest-keys.py" $port
}
