#!/bin/bash
# One life of a program with a log, on a file system of its own, in a mount namespace of its own:
# life.sh UNCOPY SCRIPT ROOM SEED STEPS WHAT MS [MKFS]
#   ROOM   a directory in memory; WHAT   what happens after MS milliseconds:
#   nothing | program (is killed) | keeper (is killed) | both (are killed) | power (is lost) | keeper-power
set -eu
uncopy=$1 script=$2 room=$3 seed=$4 steps=$5 what=$6 ms=$7 mkfs=${8:-mkfs.ext4 -q -F}
disk=$room/disk place=$room/place journal=$room/journal
device=""
finish() {
    umount -l "$place" 2>/dev/null || true
    [ -z "$device" ] || losetup -d "$device" || true
}
trap finish EXIT
mkdir -p "$place"
truncate -s 320M "$disk"
$mkfs "$disk" >"$room/mkfs" 2>&1
device=$(losetup -f --show "$disk")
mount "$device" "$place"
mkdir -m 700 "$place/log" "$place/data"

# In a group of its own, with what it starts.
setsid "$uncopy" run --log "$place/log" --log-size 16777216 --policy always -- python3 "$script" work "$place/data" "$journal" "$seed" "$steps" \
    >"$room/output" 2>"$room/errors" &
program=$!
# The keeper is the process that keeps this directory's logs.
keeper_of() {
    local file
    for file in /proc/[0-9]*/cmdline; do
        if cat "$file" 2>/dev/null | tr '\0' ' ' | grep -q "log keep $place/log "; then
            basename "$(dirname "$file")"
            return
        fi
    done
}
wait_for() {
    local turn
    for turn in $(seq 600); do
        if "$@"; then return 0; fi
        sleep 0.05
    done
    echo "waited too long for: $*" >&2
    exit 1
}
has_keeper() { keeper=$(keeper_of); [ -n "$keeper" ] || ! kill -0 "$program" 2>/dev/null; }
has_ended() { ! kill -0 "$1" 2>/dev/null; }
no_keeper() { [ -z "$(keeper_of)" ]; }
wait_for has_keeper
sleep "$(printf '%d.%03d' $((ms / 1000)) $((ms % 1000)))"

case $what in
nothing) ;;
program) kill -9 -- "-$program" 2>/dev/null || true ;;
keeper | keeper-power)
    kill -9 "$keeper" 2>/dev/null || true
    [ "$what" = keeper ] || sleep 0.1
    ;;
both) kill -9 -- "$keeper" "-$program" 2>/dev/null || true ;;
esac
case $what in
power | keeper-power)
    # What has reached the device by now: two copies that are the same, since the kernel goes on writing.
    kill -STOP -- "-$program" "$keeper" 2>/dev/null || true
    for turn in $(seq 50); do
        cp --sparse=always "$disk" "$room/copy"
        cmp -s "$disk" "$room/copy" && break
        [ "$turn" -lt 50 ] || { echo "the disk does not come to rest" >&2; exit 1; }
    done
    cp "$journal" "$room/journal-then"
    journal=$room/journal-then
    kill -9 -- "-$program" "$keeper" 2>/dev/null || true
    wait "$program" 2>/dev/null || true
    wait_for no_keeper
    # Somebody who waits to open a file may not have heard yet.
    umount -l "$place"
    losetup -d "$device"
    device=$(losetup -f --show "$room/copy")
    mount "$device" "$place"
    # Another start of the kernel.
    echo 01234567-89ab-4cde-8123-456789abcdef >"$room/boot"
    mount --bind "$room/boot" /proc/sys/kernel/random/boot_id
    "$uncopy" log ls "$place/log" >"$room/logs" 2>&1 || true
    # Without a keeper, records of files that were removed since are still there: they belong to nothing.
    "$uncopy" log recover "$place/log" 2>"$room/recovered" || [ "$what" = keeper-power ] || { cat "$room/recovered" >&2; exit 1; }
    "$uncopy" log check "$place/log" >"$room/checked" 2>&1
    umount /proc/sys/kernel/random/boot_id
    python3 "$script" check "$place/data" "$journal" lost
    ;;
*)
    if [ "$what" = nothing ] || [ "$what" = keeper ]; then
        wait "$program" || { cat "$room/errors" >&2; exit 1; }
        grep -q done "$room/output"
    else
        wait "$program" 2>/dev/null || true
    fi
    wait_for no_keeper
    case $what in
    both | keeper) "$uncopy" log recover --give-up "$place/log" 2>"$room/recovered" ;;
    esac
    "$uncopy" log ls "$place/log" >"$room/logs"
    # Nothing is left to do; a log that was made meanwhile may be half made.
    ! grep -q "to recover\|damaged" "$room/logs" || { cat "$room/logs" >&2; exit 1; }
    case $what in nothing | program) how=clean ;; *) how=whole ;; esac
    python3 "$script" check "$place/data" "$journal" $how
    ;;
esac
