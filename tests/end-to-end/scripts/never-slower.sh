#!/bin/bash
# What uncopy costs where it cannot gain, on another kernel, in a virtual machine: never-slower.sh UNCOPY. The cases are those of
# docs/results.md that cost most. Lines that begin with RESULT are looked at outside.
set -eu
uncopy=$1
scratch_dir=/run/room
mkdir -p "$scratch_dir" && cd "$scratch_dir"
echo "RESULT kernel $(uname -r)"

# measure EXPERIMENT OPTION…: its rows. Emulated, an operation takes ten times as long.
measure() {
    timeout 600 "$uncopy-bench" "$@" --processes 6 --rounds 8 --seconds 60 --slice 0.3 >"$scratch_dir/table" 2>"$scratch_dir/err" ||
        { cat "$scratch_dir/err" && echo "RESULT bench $1 failed" && exit 1; }
    grep -F '[' "$scratch_dir/table" | sed 's/^/RESULT /'
}
measure echo copies --copies 0 --warm-up 40
measure redis --workload get --sizes 65536 --append-only off
measure small --only redis,memcached,nginx
