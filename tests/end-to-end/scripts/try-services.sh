#!/bin/bash
# On a system that systemd has started and where uncopy is installed: the packaged Redis, memcached and nginx run under uncopy by
# their own units, have work, and are taken back. Prints what a user would see; the last line is "RESULT all well", or says what is not.
set -u
show_and_run() { echo "# $*" && "$@"; }
results=$(mktemp)
record_states() { uncopy ps --json | python3 -c '
import json, sys
for process in json.load(sys.stdin)["processes"]:
    # Off is what trials may have found on a busy machine.
    works = process["state"] in ("active", "off")
    print("with", process["command"], "works" if works else process["state"])' >>"$results"; }
uname -r
show_and_run uncopy service redis-server
show_and_run systemctl restart redis-server
redis-benchmark -t set,get -d 262144 -n 2000 -c 4 -q >/dev/null
show_and_run uncopy ps

show_and_run uncopy service memcached && show_and_run uncopy service nginx
show_and_run systemctl restart memcached nginx
head -c 1048576 /dev/urandom >/var/www/html/large
python3 -c '
import socket, time
for attempt in range(100):
    try:
        connection = socket.create_connection(("127.0.0.1", 11211))
        break
    except ConnectionRefusedError:
        # Its unit is not told when it listens.
        time.sleep(0.1)
value = bytes(512 << 10)
for number in range(400):
    connection.sendall(b"set k%d 0 0 %d\r\n" % (number % 8, len(value)) + value + b"\r\n")
    assert connection.recv(100) == b"STORED\r\n"'
curl -s http://127.0.0.1/large | cmp - /var/www/html/large && echo "nginx serves" >>"$results"
record_states
show_and_run uncopy ps
systemctl is-active redis-server memcached nginx >/dev/null && echo "with uncopy all run" >>"$results"
show_and_run systemctl start uncopy-metrics.service
for _ in {1..100}; do
    curl -s http://127.0.0.1:9745/metrics >"$results.metrics" && break
    sleep 0.1
done
grep -q '^uncopy_input_bytes_total{pid="[0-9]*",command="redis-server"} [1-9]' "$results.metrics" && echo "metrics are served" >>"$results"
mkdir -p /var/lib/prometheus/node-exporter
systemctl start uncopy-textfile.service && grep -q 'command="memcached"' /var/lib/prometheus/node-exporter/uncopy.prom &&
    echo "metrics are written" >>"$results"
systemctl stop uncopy-metrics.service

for name in redis-server memcached nginx; do
    show_and_run uncopy service --remove $name
    show_and_run systemctl restart $name
done
show_and_run uncopy ps | tee -a "$results"
systemctl is-active redis-server memcached nginx >/dev/null && echo "without uncopy all run" >>"$results"
for expected in "with redis-server works" "with memcached works" "with nginx " "nginx serves" "with uncopy all run" "metrics are served" "metrics are written" \
    "no process runs under uncopy; start one with: uncopy run -- CMD" "without uncopy all run"; do
    grep -q "^$expected" "$results" && continue
    cat "$results"
    journalctl --no-pager --lines 60 2>/dev/null
    echo "RESULT not found: $expected"
    exit 1
done
echo "RESULT all well"
