# BIND 9.20: a large zone, transferred to a secondary, and many questions.
# shellcheck shell=bash
packages="bind9 bind9-dnsutils"
start() {
    mkdir one two
    { printf '$TTL 60\n@ SOA ns. root. 1 60 60 600 60\n@ NS ns\nns A 127.0.0.1\n'; for at in $(seq 1 12000); do echo "h$at TXT \"$(printf '%0200d' "$at")\""; done; } >one/zone
    printf 'options { directory "/room/data/one"; listen-on port 5300 { 127.0.0.1; }; listen-on-v6 { none; }; pid-file "/run/one.pid"; session-keyfile "/run/one.key"; recursion no; allow-transfer { any; }; };\ncontrols {};\nzone "example" { type primary; file "zone"; };\n' >one.conf
    printf 'options { directory "/room/data/two"; listen-on port 5301 { 127.0.0.1; }; listen-on-v6 { none; }; pid-file "/run/two.pid"; session-keyfile "/run/two.key"; recursion no; allow-transfer { any; }; };\ncontrols {};\nzone "example" { type secondary; masterfile-format text; file "zone"; primaries { 127.0.0.1 port 5300; }; };\n' >two.conf
    serve one named -g -c /room/data/one.conf
    await eval 'dig +time=1 +tries=1 @127.0.0.1 -p 5300 h1.example TXT | grep -q status:.NOERROR'
    serve two named -g -c /room/data/two.conf
    await eval 'dig +time=1 +tries=1 @127.0.0.1 -p 5301 h12000.example TXT | grep -q status:.NOERROR'
}
drive() {
    local at
    for at in 1 2 3; do
        client dig @127.0.0.1 -p 5300 example AXFR +onesoa +nocmd +nostats | sort | sha256sum
        client dig @127.0.0.1 -p 5301 example AXFR +onesoa +nocmd +nostats | sort | sha256sum
    done
    for at in $(seq 1 2000); do echo "h$at.example TXT"; done >questions
    client dig @127.0.0.1 -p 5301 +short +tcp +keepopen -f questions | sha256sum
}
