# Samba: files of megabytes put, got and appended by two clients.
# shellcheck shell=bash
packages="samba smbclient"
start() {
    mkdir -p share state && chmod 777 share && mkdir -p /run/samba
    printf '[global]\nmap to guest = bad user\nguest account = root\nlog file = /room/logs/smbd\npid directory = /run\nlock directory = /room/data/state\nstate directory = /room/data/state\ncache directory = /room/data/state\nprivate dir = /room/data/state\nncalrpc dir = /run/samba\nsmb ports = 4450\ninterfaces = lo\nbind interfaces only = yes\nload printers = no\ndisable spoolss = yes\n[share]\npath = /room/data/share\nguest ok = yes\nread only = no\nforce user = root\n' >smb.conf
    serve smbd smbd --foreground --no-process-group -s /room/data/smb.conf
    await listens 4450
}
smb() { client smbclient -s /room/data/smb.conf -N -p 4450 //127.0.0.1/share -c "$1" 2>&1 | grep -o 'NT_STATUS.*'; }
drive() {
    local at
    bytes 1 8000000 >large && bytes 2 300000 >middle
    for at in 1 2 3 4; do
        smb "put large large$at; put middle middle$at; get large$at back$at; rename middle$at renamed$at; get renamed$at again$at" &
    done
    wait $(jobs -p | grep -vx "$server")
    digest back* again* share/*
}
