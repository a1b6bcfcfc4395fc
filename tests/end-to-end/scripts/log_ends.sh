#!/bin/bash
# A program with a log ends, and its file system is unmounted at once: log_ends.sh UNCOPY SCRIPT SCRATCH_DIR WHAT
#   WHAT   exits (by itself: nothing is waited for) | killed (uncopy log wait does)
set -eu
uncopy=$1 script=$2 scratch_dir=$3 what=$4 journal=$3/journal
# shellcheck source=disk.sh
source "$(dirname "${BASH_SOURCE[0]}")/disk.sh"
new_disk 700M "mkfs.ext4 -q -F"
mkdir -m 700 "$mount_point/log"
mkfifo "$scratch_dir/input"
exec 9<>"$scratch_dir/input"
pause=
[ "$what" = exits ] || pause=pause
# shellcheck disable=SC2086 # no word, where it is empty
"$uncopy" run --log "$mount_point/log" --log-size 16777216 --policy always --stats "$scratch_dir/stats" -- \
    python3 "$script" work "$mount_point/file" "$journal" 200 $pause <"$scratch_dir/input" 9>&- &
program=$!
if [ "$what" = killed ]; then
    journal_has_waits() { grep -q ^waits "$journal" 2>/dev/null; }
    wait_for journal_has_waits
    "$uncopy" log wait --timeout 0 "$mount_point/log" 2>"$scratch_dir/early" && fail "a program that runs was not waited for"
    grep -q "still in use" "$scratch_dir/early" || fail "$(cat "$scratch_dir/early")"
    kill -9 "$program"
    wait "$program" 2>/dev/null || true
    "$uncopy" log wait --timeout 60 "$mount_point/log"
else
    wait "$program"
    grep -q '"log_syncs": *[1-9]' "$scratch_dir/stats" || fail "no log took part: $(cat "$scratch_dir/stats")"
fi
umount "$mount_point"
mount -o "$options" "$disk" "$mount_point"
python3 "$script" check "$mount_point/file" "$journal"
