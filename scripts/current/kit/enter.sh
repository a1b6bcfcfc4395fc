# Enters the root: the first process of new mount, process, network and IPC namespaces, which all end with it.
# Usage: enter.sh ROOT ROOM PROGRAMS UNCOPY_DIR NAME MODE [WORDS OF UNCOPY RUN…]
# shellcheck shell=bash
set -euo pipefail
root=$1 room=$2 programs=$3 uncopy=$4
shift 4
at=$room/mount

# What the program writes outside of /room lies above the root and goes with the run.
mount -t overlay overlay -o "lowerdir=$root,upperdir=$room/upper,workdir=$room/work" "$at"
mkdir -p "$at"/{room,old} "$at/opt/uncopy" "$at/opt/current"
mount --bind "$room/room" "$at/room"
mount --bind "$uncopy" "$at/opt/uncopy"
mount --bind "$programs" "$at/opt/current"
mount -t proc proc "$at/proc"
mount -t sysfs sysfs "$at/sys"
mount -t tmpfs -o mode=755 tmpfs "$at/run"
mount -t tmpfs -o mode=755 tmpfs "$at/dev"
mkdir -m 1777 "$at/dev/shm" && mount -t tmpfs -o mode=1777 tmpfs "$at/dev/shm"
mkdir "$at/dev/pts" && mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$at/dev/pts"
ln -s pts/ptmx "$at/dev/ptmx"
for device in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0"; do
    read -r name major minor <<<"$device"
    mknod -m 666 "$at/dev/$name" c "$major" "$minor"
done
minor=$(awk '$2 == "userfaultfd" { print $1 }' /proc/misc)
[[ -z $minor ]] || mknod -m 666 "$at/dev/userfaultfd" c 10 "$minor"
ln -s /proc/self/fd "$at/dev/fd"
for number in 0 1 2; do
    name=(stdin stdout stderr)
    ln -s "/proc/self/fd/$number" "$at/dev/${name[number]}"
done
chmod 1777 "$room/room/stats"
chmod 755 "$room/room" "$room/room/data"

cd "$at"
pivot_root . old
umount --lazy /old
cd /room/data
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root TERM=dumb \
    /bin/bash /opt/current/kit/inside.sh "$@"
