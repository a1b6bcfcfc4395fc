# Large values that move between two nodes of Valkey by MIGRATE, and a snapshot that is read again.
# shellcheck shell=bash
packages="valkey-server valkey-tools"
start() {
    mkdir a b
    serve one valkey-server --port 7000 --dir /room/data/a --save ""
    await valkey-cli -p 7000 ping
    serve two valkey-server --port 7001 --dir /room/data/b --save ""
    await valkey-cli -p 7001 ping
}
drive() {
    client python3 "$kit/resp.py" --threads 3 --migrate 7001 7000 || return
    python3 "$kit/digest-keys.py" 7001
    valkey-cli -p 7001 bgsave >/dev/null
    # It may have begun to, on its own account, and says so without an exit status.
    await eval '[[ $(valkey-cli -p 7001 save) == OK ]]'
    finish TERM "${served[1]}"
    serve again valkey-server --port 7001 --dir /room/data/b --save ""
    await eval '[[ $(valkey-cli -p 7001 ping) == PONG ]]'
    python3 "$kit/digest-keys.py" 7001
}
