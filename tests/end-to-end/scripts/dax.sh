#!/bin/bash
# Programs with a log on a DAX file system, in a virtual machine whose /dev/pmem0 and /dev/vda outlive it:
# dax.sh kills UNCOPY SEED LIVES                  each of them kills a program, its keeper, or both
# dax.sh power UNCOPY SEED [JOURNAL]              recovers and checks what the last machine left, if JOURNAL is what that told; then
#                                                 writes, and tells /dev/serial, until the power is lost
# dax.sh end UNCOPY SEED JOURNAL                  the same, and then nothing
set -eu
what=$1 uncopy=$2 seed=$3 more=${4:-}
scripts=$(dirname "${BASH_SOURCE[0]}")
place=/run/place disk=/run/disk
mkdir -p "$place" "$disk"

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
    "$uncopy" log ls "$place/log"
    "$uncopy" log recover "$place/log"
    "$uncopy" log check "$place/log"
    python3 "$scripts/writer.py" check "$data" "$more" lost
}

case $what in
kills)
    mount -o dax=always /dev/pmem0 "$place"
    grep "^/dev/pmem0 .*dax=always" /proc/mounts
    mkdir -m 700 "$place/log" "$place/data"
    # By itself the log lies there, and answers syncs.
    "$uncopy" run --log "$place/log" --log-size 16777216 --policy always --stats /run/stats -- \
        python3 -c "
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600)
for _ in range(2000):
    os.write(fd, b'a' * 4096)
    os.fdatasync(fd)
" "$place/data/file"
    python3 -c "
import json
stats = json.load(open('/run/stats'))
print('log_syncs', stats['log_syncs'], 'of 2000')
assert stats['log_syncs'] > 1000
"
    # Its keeper ends some time later.
    for _ in $(seq 200); do
        ! umount "$place" 2>/dev/null || break
        sleep 0.1
    done
    export UNCOPY_TEST_DISK=/dev/pmem0 UNCOPY_TEST_MOUNT=dax=always
    RANDOM=$seed
    for life in $(seq "$more"); do
        for kind in program keeper both; do
            room=/run/room-$life-$kind
            mkdir "$room"
            ms=$((2000 + RANDOM % 4000))
            steps=1000000
            [ "$kind" != keeper ] || steps=400
            bash "$scripts/life.sh" "$uncopy" "$scripts/writer.py" "$room" "$((seed + life))" "$steps" "$kind" "$ms" "mkfs.ext4 -q -F -b 4096" \
                >"$room/said" || { echo "$kind, seed $((seed + life)), after $ms ms"; cat "$room"/said "$room"/errors "$room"/output; exit 1; }
            echo "$kind killed after $ms ms: $(cat "$room/said") files, $(grep -c '"synced"' "$room/journal") acknowledged syncs"
        done
    done
    ;;
*)
    mount -o dax=always /dev/pmem0 "$place"
    mount /dev/vda "$disk"
    # What is written to the disk's files is in the page cache only, which goes with the power; to files on DAX it is there at once.
    data=$disk/data
    [ $((seed % 4)) != 0 ] || data=$place/data
    [ -z "$more" ] || data=$(cat "$disk/where") check_power
    [ "$what" != end ] || exit 0
    rm -rf "$place/data" "$disk/data"
    echo "$data" >"$disk/where"
    mkdir -p -m 700 "$place/log" "$data"
    sync
    "$uncopy" run --log "$place/log" --log-size 16777216 --policy always -- \
        python3 "$scripts/writer.py" work "$data" /dev/serial "$seed" 1000000
    ;;
esac
