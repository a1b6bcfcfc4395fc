# fio with every engine of libc, verified, and stress-ng's memory and pipe stressors, verified.
# shellcheck shell=bash
packages="fio stress-ng"
# Not its stressor of memory, vm: with a number of operations it goes on for ever now and then, plain too.
drive() {
    local engine
    for engine in psync vsync pvsync pvsync2 mmap libaio posixaio io_uring; do
        client fio --name=x --filename=f --size=32M --bs=128k --rw=randrw --verify=crc32c --ioengine=$engine --iodepth=4 --direct=0 --end_fsync=1 --randseed=3 --output=/dev/null; echo "$engine ended with $?"
    done
    client stress-ng --verify --pipe 1 --pipe-ops 2000 --mremap 1 --mremap-ops 20 --memcpy 1 --memcpy-ops 50 --sock 1 --sock-ops 500 --madvise 1 --madvise-ops 20 --splice 1 --splice-ops 1000 --fork 1 --fork-ops 100 --mmap 1 --mmap-ops 5 --mmap-bytes 32M >"$logs/stress" 2>&1; echo "stress-ng ended with $?"
}
