# Python 3.13's multiprocessing: pipes, queues, shared memory and pools, by fork, forkserver and spawn.
# shellcheck shell=bash
packages="python3"
drive() {
    local way
    for way in fork forkserver spawn; do
        client python3 "$kit/processes.py" "$way" || return
    done
}
