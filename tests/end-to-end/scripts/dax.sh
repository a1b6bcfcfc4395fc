#!/bin/bash
# Programs with a log on a DAX file system, in a virtual machine whose /dev/pmem0 and /dev/vda outlive it:
# dax.sh kills UNCOPY SEED CYCLES                each of them kills a program, its keeper, or both
# dax.sh power UNCOPY SEED [JOURNAL]              recovers and checks what the last machine left, if JOURNAL is what that told; then
#                                                 writes, and tells /dev/serial, until the power is lost
# dax.sh end UNCOPY SEED JOURNAL                  the same, and then nothing
set -eu
what=$1 uncopy=$2 seed=$3 extra=${4:-}
scripts=$(dirname "${BASH_SOURCE[0]}")
mount_point=/run/place disk=/run/disk
mkdir -p "$mount_point" "$disk"

# What loads keys for such memory complains that there are none.
modprobe -a nfit nd_pmem virtio_blk ext4 2>/dev/null
for _ in $(seq 100); do [ ! -b /dev/pmem0 ] || [ ! -b /dev/vda ] || break; sleep 0.1; done

# The kernel uses DAX where its own records of the memory's pages are.
if [ "$(cat /sys/block/pmem0/device/mode 2>/dev/null)" = raw ]; then
    ndctl create-namespace --force --reconfig=namespace0.0 --mode=fsdax --map=mem >/run/namespace
    mkfs.ext4 -q -F -b 4096 /dev/pmem0
    mkfs.ext4 -q -F /dev/vda
fi

check_power() {
    "$uncopy" log ls "$mount_point/log"
    "$uncopy" log recover "$mount_point/log"
    "$uncopy" log check "$mount_point/log"
    python3 "$scripts/writer.py" check "$data" "$extra" lost
}

case $what in
kills)
    mount -o dax=always /dev/pmem0 "$mount_point"
    grep "^/dev/pmem0 .*dax=always" /proc/mounts
    mkdir -m 700 "$mount_point/log" "$mount_point/data"
    # By itself the log lies there, and answers syncs.
    "$uncopy" run --log "$mount_point/log" --log-size 16777216 --policy always --stats /run/stats -- \
        python3 -c "
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600)
for _ in range(2000):
    os.write(fd, b'a' * 4096)
    os.fdatasync(fd)
" "$mount_point/data/file"
    python3 -c "
import json
stats = json.load(open('/run/stats'))
print('log_syncs', stats['log_syncs'], 'of 2000')
assert stats['log_syncs'] > 1000
"
    # A log that has the only copy answers appends and syncs; files have all bytes afterwards.
    append='
import os, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
begun = 0
for number in range(4000):
    if number == 2000:
        begun = time.monotonic()
    os.write(fd, number.to_bytes(4, "little") * 1024)
    os.fsync(fd)
print(round((time.monotonic() - begun) / 2000 * 1e6, 1), "us for 4 KiB and a sync")
'
    for round in 1 2 3; do
        echo "plain: $(python3 -c "$append" "$mount_point/data/plain")"
        echo "only:  $("$uncopy" run --log "$mount_point/log" --log-mode only --log-size 64M --log-files "$mount_point/data/*" \
            --stats "/run/stats-$round" -- python3 -c "$append" "$mount_point/data/only")"
        cmp "$mount_point/data/plain" "$mount_point/data/only"
    done
    python3 -c "
import json
stats = json.load(open('/run/stats-3'))
print('log_appends', stats['log_appends'], 'of 4000')
assert stats['log_appends'] > 2000
"
    # The keepers end some time later.
    for _ in $(seq 200); do
        ! umount "$mount_point" 2>/dev/null || break
        sleep 0.1
    done
    export UNCOPY_TEST_DISK=/dev/pmem0 UNCOPY_TEST_MOUNT=dax=always
    RANDOM=$seed
    for cycle in $(seq "$extra"); do
        for kind in program keeper both; do
            scratch_dir=/run/room-$cycle-$kind
            mkdir "$scratch_dir"
            ms=$((2000 + RANDOM % 4000))
            steps=1000000
            [ "$kind" != keeper ] || steps=400
            bash "$scripts/crash_cycle.sh" "$uncopy" "$scripts/writer.py" "$scratch_dir" "$((seed + cycle))" "$steps" "$kind" "$ms" "mkfs.ext4 -q -F -b 4096" \
                >"$scratch_dir/said" || { echo "$kind, seed $((seed + cycle)), after $ms ms"; cat "$scratch_dir"/said "$scratch_dir"/errors "$scratch_dir"/output; exit 1; }
            echo "$kind killed after $ms ms: $(cat "$scratch_dir/said") files, $(grep -c '"synced"' "$scratch_dir/journal") acknowledged syncs"
        done
    done
    ;;
*)
    mount -o dax=always /dev/pmem0 "$mount_point"
    mount /dev/vda "$disk"
    # What is written to the disk's files is in the page cache only, which goes with the power; to files on DAX it is there at once.
    data=$disk/data
    [ $((seed % 4)) != 0 ] || data=$mount_point/data
    [ -z "$extra" ] || data=$(cat "$disk/where") check_power
    [ "$what" != end ] || exit 0
    rm -rf "$mount_point/data" "$disk/data"
    echo "$data" >"$disk/where"
    mkdir -p -m 700 "$mount_point/log" "$data"
    sync
    "$uncopy" run --log "$mount_point/log" --log-size 16777216 --policy always -- \
        python3 "$scripts/writer.py" work "$data" /dev/serial "$seed" 1000000
    ;;
esac
