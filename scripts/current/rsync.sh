# rsync by its daemon and by pipes: whole files, differences, compressed.
# shellcheck shell=bash
packages="rsync"
start() {
    mkdir -p from to
    printf 'port = 8730\nuse chroot = no\nlog file = /room/logs/rsyncd\n[m]\npath = /room/data/to\nread only = no\nuid = root\ngid = root\n' >conf
    serve rsyncd rsync --daemon --no-detach --config /room/data/conf
    await listens 8730
}
drive() {
    local at
    for at in $(seq 1 30); do bytes "$at" $((at * 50000)) >from/f$at; done
    client rsync -a from/ rsync://127.0.0.1:8730/m/one/ && client rsync -az from/ two/ || return
    for at in 3 9 27; do { head -c 40000 from/f$at; echo different; tail -c +30000 from/f$at; } >new && mv new from/f$at; done
    client rsync -a --no-whole-file --checksum --inplace from/ rsync://127.0.0.1:8730/m/one/ && client rsync -a --no-whole-file -zz from/ two/ || return
    client rsync -a rsync://127.0.0.1:8730/m/one/ three/ || return
    for at in from to/one two three; do tree $at; done
}
