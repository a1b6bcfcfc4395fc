#!/bin/bash
# A program with a log ends, and its file system is unmounted at once: log_ends.sh UNCOPY SCRIPT ROOM WHAT
#   WHAT   exits (by itself: nothing is waited for) | killed (uncopy log wait does)
set -eu
uncopy=$1 script=$2 room=$3 what=$4 journal=$3/journal
# shellcheck source=disk.sh
source "$(dirname "${BASH_SOURCE[0]}")/disk.sh"
new_disk 700M "mkfs.ext4 -q -F"
mkdir -m 700 "$place/log"
mkfifo "$room/input"
exec 9<>"$room/input"
pause=
[ "$what" = exits ] || pause=pause
# shellcheck disable=SC2086 # no word, where it is empty
"$uncopy" run --log "$place/log" --log-size 16777216 --policy always --stats "$room/stats" -- \
    python3 "$script" work "$place/file" "$journal" 200 $pause <"$room/input" 9>&- &
program=$!
if [ "$what" = killed ]; then
    waits() { grep -q ^waits "$journal" 2>/dev/null; }
    wait_for waits
    "$uncopy" log wait --timeout 0 "$place/log" 2>"$room/early" && give_up "a program that runs was not waited for"
    grep -q "still in use" "$room/early" || give_up "$(cat "$room/early")"
    kill -9 "$program"
    wait "$program" 2>/dev/null || true
    "$uncopy" log wait --timeout 60 "$place/log"
else
    wait "$program"
    grep -q '"log_syncs": *[1-9]' "$room/stats" || give_up "no log took part: $(cat "$room/stats")"
fi
umount "$place"
mount -o "$options" "$disk" "$place"
python3 "$script" check "$place/file" "$journal"
