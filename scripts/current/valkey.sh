# Valkey with threads for input and output, an append-only file that is rewritten under load, and a restart from it.
# shellcheck shell=bash
packages="valkey-server valkey-tools"
port=6379
options=(--port 6379 --dir /room/data --save "" --appendonly yes --appendfsync everysec --io-threads 3 --loglevel notice)
start() {
    serve valkey valkey-server "${options[@]}"
    await valkey-cli ping
}
drive() {
    client python3 "$kit/resp.py" --threads 6 $port &
    local load=$!
    valkey-cli bgrewriteaof >/dev/null
    wait "$load" || return
    valkey-cli memory doctor >/dev/null
    valkey-cli memory usage k1-1 >/dev/null
    client valkey-benchmark -t set,get,lpush,lpop -d 262144 -n 150 -c 8 -P 2 -q >/dev/null || return
    python3 "$kit/digest-keys.py" $port
    finish TERM
    serve valkey-again valkey-server "${options[@]}"
    await eval '[[ $(valkey-cli ping) == PONG ]]'
    python3 "$kit/digest-keys.py" $port
}
