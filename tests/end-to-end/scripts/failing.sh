#!/bin/bash
# A program with a log whose data lie on a device that has no room for them: a sparse image in a memory that is too small.
# failing.sh UNCOPY SCRIPT SCRATCH_DIR WHAT
#   WHAT   what happens when the device fails:
#   ends (the program does) | grows (the device does, meanwhile) | killed (the program is) | keeper (is killed) | full (the log is)
#   | others (write to the file)
set -eu
uncopy=$1 script=$2 scratch_dir=$3 what=$4
journal=$scratch_dir/journal file=$scratch_dir/data/file
touch "$journal"
# shellcheck source=disk.sh
source "$(dirname "${BASH_SOURCE[0]}")/disk.sh"
new_disk 700M "mkfs.ext4 -q -F"
mkdir -m 700 "$mount_point/log"
mkdir "$scratch_dir/small" "$scratch_dir/data"
mount -t tmpfs -o size=24m none "$scratch_dir/small"
truncate -s 300M "$scratch_dir/small/image"
mkfs.ext4 -q -F -E lazy_itable_init=1 -O ^has_journal "$scratch_dir/small/image"
mount -o loop "$scratch_dir/small/image" "$scratch_dir/data"
# A loop device takes a write for whole of which its file has taken the beginning (Linux 6.18): of one page none has.
device=$(findmnt -no SOURCE "$scratch_dir/data")
echo 4 >"/sys/block/${device#/dev/}/queue/max_sectors_kb"
drop_all() {
    umount -l "$scratch_dir/data" "$scratch_dir/small" 2>/dev/null || true
    drop_disk
}
trap drop_all EXIT

log_bytes=134217728 count=900 pause=
[ "$what" != full ] || log_bytes=16777216
case $what in grows | others | keeper | killed) pause=pause ;; esac
mkfifo "$scratch_dir/input"
exec 9<>"$scratch_dir/input"
# shellcheck disable=SC2086 # no word, where it is empty
"$uncopy" run --log "$mount_point/log" --log-size "$log_bytes" --policy always -- \
    python3 "$script" work "$file" "$journal" "$count" $pause <"$scratch_dir/input" >"$scratch_dir/output" 2>"$scratch_dir/errors" 9>&- &
program=$!
journal_has() { grep -q "^$1" "$journal"; }
has_reported_failure() { grep -q "is kept in the log" "$scratch_dir/errors" || { ! kill -0 "$program" 2>/dev/null && fail "never failed: $(tail -n 3 "$journal" "$scratch_dir/errors")"; }; }
grow() {
    mount -o remount,size=400m "$scratch_dir/small"
}
drop_page_cache() {
    sync -f "$mount_point"
    echo 1 >/proc/sys/vm/drop_caches
}
finish_program() {
    exec 9>&-
    wait "$program" || true
    "$uncopy" log wait --timeout 60 "$mount_point/log"
}
recover() {
    "$uncopy" log ls "$mount_point/log" >"$scratch_dir/logs"
    grep -q "kept, because" "$scratch_dir/logs" || fail "no reason: $(cat "$scratch_dir/logs")"
    "$uncopy" log recover "$@" "$mount_point/log" 2>"$scratch_dir/recovered" || { cat "$scratch_dir/recovered" >&2; return 1; }
}

case $what in
ends | full)
    wait "$program" || true
    [ "$what" = ends ] || journal_has failed || fail "the log was full, and nothing said so"
    "$uncopy" log wait --timeout 60 "$mount_point/log"
    # It cannot be yet, and nothing is lost by trying.
    "$uncopy" log recover "$mount_point/log" 2>"$scratch_dir/early" && fail "recovered: $(cat "$scratch_dir/early")"
    grow && drop_page_cache
    if [ "$what" = full ]; then
        # What the failed sync was for was written behind it: whether that counts a person says.
        recover || recover --overwrite
    else
        recover
    fi
    ;;
killed)
    wait_for has_reported_failure
    kill -9 "$program"
    wait "$program" 2>/dev/null || true
    "$uncopy" log wait --timeout 60 "$mount_point/log"
    grow && drop_page_cache
    recover || recover --overwrite
    ;;
keeper)
    wait_for has_reported_failure
    kill -9 "$(keepers)"
    wait_for journal_has "\(failed\|waits\)"
    finish_program
    grow && drop_page_cache
    recover --overwrite
    ;;
grows)
    wait_for has_reported_failure
    grow
    wait_for journal_has waits
    finish_program
    grep -q failed "$journal" && fail "$(tail -1 "$journal")"
    "$uncopy" log recover "$mount_point/log" 2>"$scratch_dir/recovered"
    grep -q "is empty" "$scratch_dir/recovered" || fail "$(cat "$scratch_dir/recovered")"
    drop_page_cache
    ;;
others)
    wait_for has_reported_failure
    wait_for journal_has "\(failed\|waits\)"
    grow
    # Newer than what the log has: the block that was acknowledged last.
    last=$(grep -c ^acknowledged "$journal")
    head -c 65536 /dev/zero | tr '\0' n | dd of="$file" bs=65536 seek=$((last - 1)) conv=notrunc,fsync status=none
    finish_program
    # Of what comes next, none is put over it.
    "$uncopy" log recover "$mount_point/log" 2>"$scratch_dir/recovered" && ! grep -q "is empty" "$scratch_dir/recovered" && fail "put over newer bytes: $(cat "$scratch_dir/recovered")"
    [ "$(dd if="$file" bs=65536 skip=$((last - 1)) count=1 status=none | tr -d n | wc -c)" = 0 ] || fail "newer bytes are gone"
    "$uncopy" log recover --overwrite "$mount_point/log" 2>"$scratch_dir/recovered" || fail "$(cat "$scratch_dir/recovered")"
    ;;
esac
umount "$scratch_dir/data" && mount -o loop "$scratch_dir/small/image" "$scratch_dir/data"
python3 "$script" check "$file" "$journal"
