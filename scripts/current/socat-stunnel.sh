# socat and stunnel: megabytes through TCP, UNIX sockets, TLS and pseudo-terminals.
# shellcheck shell=bash
packages="socat stunnel4 openssl"
start() {
    openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out cert -days 2 -subj /CN=localhost 2>/dev/null && cat key cert >pem
    # All first: socat waits in its writes, and an echo at once would wait for it.
    printf '#!/bin/sh\ncat >/tmp/part.$$\ncat /tmp/part.$$\n' >back && chmod 755 back
    printf 'foreground = yes\npid =\n[in]\naccept = 127.0.0.1:8443\nconnect = 127.0.0.1:8001\ncert = /room/data/pem\n[out]\nclient = yes\naccept = 127.0.0.1:8002\nconnect = 127.0.0.1:8443\n' >conf
    serve socat socat -b 262144 TCP-LISTEN:8001,bind=127.0.0.1,reuseaddr,fork EXEC:/room/data/back
    await listens 8001
    serve stunnel stunnel conf
    await listens 8002
    serve unix socat -b 1048576 UNIX-LISTEN:/run/u,fork TCP:127.0.0.1:8001
    await test -S /run/u
}
drive() {
    local at
    bytes 1 8000000 >large
    for at in TCP:127.0.0.1:8001 TCP:127.0.0.1:8002 UNIX:/run/u; do
        for _ in 1 2 3; do client socat -t 30 -b 524288 - $at <large | sha256sum; done
    done
    client openssl enc -aes-256-cbc -pbkdf2 -k x -S 0102030405060708 -in large | sha256sum
    client openssl dgst -sha512 large
}
