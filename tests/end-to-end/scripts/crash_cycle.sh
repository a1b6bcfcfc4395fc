#!/bin/bash
# One crash cycle of a program with a log, on a file system of its own, in a mount namespace of its own:
# crash_cycle.sh UNCOPY SCRIPT SCRATCH_DIR SEED STEPS WHAT MS [MKFS]
#   SCRATCH_DIR   a directory in memory; WHAT   what happens after MS milliseconds:
#   nothing | program (is killed) | keeper (is killed) | both (are killed) | power (is lost) | keeper-power
set -eu
uncopy=$1 script=$2 scratch_dir=$3 seed=$4 steps=$5 what=$6 ms=$7 mkfs=${8:-mkfs.ext4 -q -F}
journal=$scratch_dir/journal
# A slow machine may lose its power before the program has begun.
touch "$journal"
# shellcheck source=disk.sh
source "$(dirname "${BASH_SOURCE[0]}")/disk.sh"
new_disk 320M "$mkfs"
mkdir -m 700 "$mount_point/log" "$mount_point/data"

# In a group of its own, with what it starts.
setsid setpriv --pdeathsig KILL "$uncopy" run --log "$mount_point/log" --log-size 16777216 --policy always -- python3 "$script" work "$mount_point/data" "$journal" "$seed" "$steps" \
    >"$scratch_dir/output" 2>"$scratch_dir/errors" &
program=$!
# Whether every process of the program's group has ended: one that is being killed still has its log.
no_member() { ! awk '{ sub(/.*\) /, ""); found += $3 == group } END { exit !found }' group="$program" /proc/[0-9]*/stat 2>/dev/null; }
has_keeper() { keeper=$(keepers); [ -n "$keeper" ] || ! kill -0 "$program" 2>/dev/null; }
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
    kill -STOP -- "-$program" "$keeper" 2>/dev/null || true
    copy_disk
    cp "$journal" "$scratch_dir/journal-then"
    journal=$scratch_dir/journal-then
    kill -9 -- "-$program" "$keeper" 2>/dev/null || true
    wait "$program" 2>/dev/null || true
    wait_for no_keeper
    # Somebody who waits to open a file may not have heard yet.
    reboot_disk
    "$uncopy" log ls "$mount_point/log" >"$scratch_dir/logs" 2>&1 || true
    # Without a keeper, records of files that were removed since are still there: they belong to nothing.
    "$uncopy" log recover "$mount_point/log" 2>"$scratch_dir/recovered" || [ "$what" = keeper-power ] || { cat "$scratch_dir/recovered" >&2; exit 1; }
    "$uncopy" log check "$mount_point/log" >"$scratch_dir/checked" 2>&1
    umount /proc/sys/kernel/random/boot_id
    python3 "$script" check "$mount_point/data" "$journal" lost
    ;;
*)
    if [ "$what" = nothing ] || [ "$what" = keeper ]; then
        wait "$program" || { cat "$scratch_dir/errors" >&2; exit 1; }
        grep -q done "$scratch_dir/output"
    else
        wait "$program" 2>/dev/null || true
        wait_for no_member
    fi
    wait_for no_keeper
    case $what in
    both | keeper) "$uncopy" log recover --give-up "$mount_point/log" 2>"$scratch_dir/recovered" ;;
    esac
    "$uncopy" log ls "$mount_point/log" >"$scratch_dir/logs"
    # Nothing is left to do.
    ! grep -q "to recover\|damaged" "$scratch_dir/logs" || { cat "$scratch_dir/logs" >&2; exit 1; }
    case $what in nothing | program) how=clean ;; *) how=whole ;; esac
    python3 "$script" check "$mount_point/data" "$journal" $how
    ;;
esac
