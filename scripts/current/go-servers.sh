# Servers in Go, statically linked or not: uncopy must leave them alone. etcd with values of a MiB, Caddy with files.
# shellcheck shell=bash
packages="etcd-server etcd-client caddy"
start() {
    mkdir www && bytes 1 4000000 >www/large && bytes 2 900000 >value && chmod -R a+rX .
    serve etcd etcd --data-dir /room/data/etcd --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 --log-level error
    await etcdctl --endpoints http://127.0.0.1:2379 endpoint health
    export XDG_DATA_HOME=/tmp XDG_CONFIG_HOME=/tmp
    serve caddy caddy file-server --listen 127.0.0.1:8080 --root /room/data/www
    await listens 8080
}
drive() {
    local at
    base64 -w 0 value >text
    for at in 1 2 3 4 5 6; do client etcdctl --endpoints http://127.0.0.1:2379 put k$at <text >/dev/null || return; done
    for at in 1 3 6; do client etcdctl --endpoints http://127.0.0.1:2379 get k$at --print-value-only | sha256sum; done
    client python3 "$kit/fetch.py" --lenient --rounds 12 http://127.0.0.1:8080/large
}
