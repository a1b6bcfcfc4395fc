# perf: a recording of a program with large copies, and its report.
# shellcheck shell=bash
packages="linux-perf"
drive() {
    bytes 1 8000000 >in
    perf stat -e task-clock true 2>/dev/null || skip "perf events are not permitted here"
    client perf record -q -e task-clock -o p.data -- dd if=in of=out bs=1M 2>/dev/null || return
    digest out
    client perf report -i p.data --stdio -q >report 2>/dev/null; echo "ended with $?"
    client perf stat -e task-clock -x , -o stat dd if=in of=out2 bs=256K 2>/dev/null; echo "ended with $?"
    digest out2
}
