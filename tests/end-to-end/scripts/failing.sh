#!/bin/bash
# A program with a log whose data lie on a device that has no room for them: a sparse image in a memory that is too small.
# failing.sh UNCOPY SCRIPT ROOM WHAT
#   WHAT   what happens when the device fails:
#   ends (the program does) | grows (the device does, meanwhile) | killed (the program is) | keeper (is killed) | full (the log is)
#   | others (write to the file)
set -eu
uncopy=$1 script=$2 room=$3 what=$4
journal=$room/journal file=$room/data/file
touch "$journal"
# shellcheck source=disk.sh
source "$(dirname "${BASH_SOURCE[0]}")/disk.sh"
new_disk 700M "mkfs.ext4 -q -F"
mkdir -m 700 "$place/log"
mkdir "$room/small" "$room/data"
mount -t tmpfs -o size=24m none "$room/small"
truncate -s 300M "$room/small/image"
mkfs.ext4 -q -F -E lazy_itable_init=1 -O ^has_journal "$room/small/image"
mount -o loop "$room/small/image" "$room/data"
# A loop device takes a write for whole of which its file has taken the beginning (Linux 6.18): of one page none has.
device=$(findmnt -no SOURCE "$room/data")
echo 4 >"/sys/block/${device#/dev/}/queue/max_sectors_kb"
drop_all() {
    umount -l "$room/data" "$room/small" 2>/dev/null || true
    drop_disk
}
trap drop_all EXIT

log_bytes=134217728 count=900 pause=
[ "$what" != full ] || log_bytes=16777216
case $what in grows | others | keeper | killed) pause=pause ;; esac
mkfifo "$room/input"
exec 9<>"$room/input"
# shellcheck disable=SC2086 # no word, where it is empty
"$uncopy" run --log "$place/log" --log-size "$log_bytes" --policy always -- \
    python3 "$script" work "$file" "$journal" "$count" $pause <"$room/input" >"$room/output" 2>"$room/errors" 9>&- &
program=$!
journal_has() { grep -q "^$1" "$journal"; }
is_told() { grep -q "is kept in the log" "$room/errors" || { ! kill -0 "$program" 2>/dev/null && give_up "never failed: $(tail -n 3 "$journal" "$room/errors")"; }; }
grow() {
    mount -o remount,size=400m "$room/small"
}
forget() {
    sync -f "$place"
    echo 1 >/proc/sys/vm/drop_caches
}
end() {
    exec 9>&-
    wait "$program" || true
    "$uncopy" log wait --timeout 60 "$place/log"
}
recover() {
    "$uncopy" log ls "$place/log" >"$room/logs"
    grep -q "kept, because" "$room/logs" || give_up "no reason: $(cat "$room/logs")"
    "$uncopy" log recover "$@" "$place/log" 2>"$room/recovered" || { cat "$room/recovered" >&2; return 1; }
}

case $what in
ends | full)
    wait "$program" || true
    [ "$what" = ends ] || journal_has failed || give_up "the log was full, and nothing said so"
    "$uncopy" log wait --timeout 60 "$place/log"
    # It cannot be yet, and nothing is lost by trying.
    "$uncopy" log recover "$place/log" 2>"$room/early" && give_up "recovered: $(cat "$room/early")"
    grow && forget
    if [ "$what" = full ]; then
        # What the failed sync was for was written behind it: whether that counts a person says.
        recover || recover --overwrite
    else
        recover
    fi
    ;;
killed)
    wait_for is_told
    kill -9 "$program"
    wait "$program" 2>/dev/null || true
    "$uncopy" log wait --timeout 60 "$place/log"
    grow && forget
    recover || recover --overwrite
    ;;
keeper)
    wait_for is_told
    kill -9 "$(keepers)"
    wait_for journal_has "\(failed\|waits\)"
    end
    grow && forget
    recover --overwrite
    ;;
grows)
    wait_for is_told
    grow
    wait_for journal_has waits
    end
    grep -q failed "$journal" && give_up "$(tail -1 "$journal")"
    "$uncopy" log recover "$place/log" 2>"$room/recovered"
    grep -q "is empty" "$room/recovered" || give_up "$(cat "$room/recovered")"
    forget
    ;;
others)
    wait_for is_told
    wait_for journal_has "\(failed\|waits\)"
    grow
    # Newer than what the log has: the block that was acknowledged last.
    last=$(grep -c ^acknowledged "$journal")
    head -c 65536 /dev/zero | tr '\0' n | dd of="$file" bs=65536 seek=$((last - 1)) conv=notrunc,fsync status=none
    end
    # Of what comes next, none is put over it.
    "$uncopy" log recover "$place/log" 2>"$room/recovered" && ! grep -q "is empty" "$room/recovered" && give_up "put over newer bytes: $(cat "$room/recovered")"
    [ "$(dd if="$file" bs=65536 skip=$((last - 1)) count=1 status=none | tr -d n | wc -c)" = 0 ] || give_up "newer bytes are gone"
    "$uncopy" log recover --overwrite "$place/log" 2>"$room/recovered" || give_up "$(cat "$room/recovered")"
    ;;
esac
umount "$room/data" && mount -o loop "$room/small/image" "$room/data"
python3 "$script" check "$file" "$journal"
