#!/bin/bash
# What matters of uncopy on another kernel, in a virtual machine: kernels.sh UNCOPY PROGRAMS, PROGRAMS the directory of this crate's
# test programs, which compare every byte themselves. Lines that begin with RESULT are looked at outside.
set -eu
uncopy=$1 programs=$2
scratch_dir=/run/room
mkdir -p "$scratch_dir" && cd "$scratch_dir"
echo "RESULT kernel $(uname -r)"
"$uncopy" doctor | grep -E '^(kernel|userfaultfd|PROCMAP_QUERY|verdict)'

# check NAME PROGRAM ARGUMENT…: under uncopy, with everything elided that can be.
check() {
    local name=$1
    shift
    timeout 900 "$uncopy" run --policy always --min-size 4K --stats "$scratch_dir/stats" -- "$@" >"$scratch_dir/out" 2>"$scratch_dir/err" ||
        { status=$? && tail -n 20 "$scratch_dir/out" "$scratch_dir/err" && echo "RESULT $name failed: $status" && exit 1; }
    python3 -c '
import json, sys
counters = json.load(open(sys.argv[2]))
assert counters["elided_bytes"] > 0, counters
print("RESULT", sys.argv[1], "elided", counters["elided_bytes"], "moved", counters["moved_pages"], "foreign", counters["foreign_ranges"])' \
        "$name" "$scratch_dir/stats"
}
for seed in 1 2; do check walk "$programs/walk" $seed 800 "$scratch_dir/file"; done
for scenario in child_overwrites_what_parent_keeps forks_by_number fork_among_threads; do check "$scenario" "$programs/forks" "$scenario" 1; done
check interrupted_calls "$programs/signals" interrupted_calls 1
for scenario in errno_is_kept many_messages files_and_devices; do check "$scenario" "$programs/semantics" "$scenario" 1; done

# An unmodified server: values come back as they were set.
"$uncopy" run --policy always --stats "$scratch_dir/redis" -- redis-server --port 7001 --save '' --daemonize no >"$scratch_dir/redis.log" &
server=$!
python3 - <<'TALK'
import random, socket, time
for attempt in range(300):
    try:
        connection = socket.create_connection(("127.0.0.1", 7001))
        break
    except ConnectionRefusedError:
        time.sleep(0.2)
reader = connection.makefile("rb")
random.seed(1)
values = {}
for number in range(60):
    key, value = b"k%d" % (number % 7), random.randbytes(random.randrange(1, 600_000))
    values[key] = value
    connection.sendall(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, len(value), value))
    assert reader.readline() == b"+OK\r\n"
    key = random.choice(list(values))
    connection.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key))
    length = int(reader.readline()[1:])
    assert reader.read(length + 2)[:-2] == values[key], key
TALK
"$uncopy" ps
kill -TERM "$server"
wait "$server" || true
python3 -c '
import json, sys
counters = json.load(open(sys.argv[1]))
assert counters["elided_bytes"] > 0, counters
print("RESULT redis elided", counters["elided_bytes"])' "$scratch_dir/redis"

"$uncopy-bench" echo copies --copies 0,12 --processes 2 --rounds 8 --seconds 90 >"$scratch_dir/copies" 2>"$scratch_dir/copies.err" ||
    { cat "$scratch_dir/copies.err" && echo "RESULT bench failed" && exit 1; }
grep -E "^(experiment|echo)" "$scratch_dir/copies" | sed 's/^echo/RESULT echo/'
