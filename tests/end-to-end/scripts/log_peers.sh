#!/bin/bash
# Processes that give up their user under root's run --log, and forged peers of its keeper: log_peers.sh UNCOPY SCRIPT SCRATCH_DIR WHAT
#   WHAT   changes | forged
set -eu
uncopy=$1 script=$2 scratch_dir=$3 what=$4
# shellcheck source=disk.sh
source "$(dirname "${BASH_SOURCE[0]}")/disk.sh"
new_disk 700M "mkfs.ext4 -q -F"
mkdir -m 700 "$mount_point/log"
mkdir "$mount_point/data"
run() {
    "$uncopy" run --log "$mount_point/log" --log-size 16777216 --policy always -- "$@"
}
case $what in
changes) run python3 "$script" begin "$mount_point/data" "$mount_point/log" ;;
forged)
    mkfifo "$scratch_dir/input"
    exec 9<>"$scratch_dir/input"
    # Says where its keeper is, and lives as long as it is needed.
    # shellcheck disable=SC2016 # expanded there
    run bash -c 'echo "$UNCOPY_LOG_SOCKET" >"$1.part" && mv "$1.part" "$1" && read -r _' _ "$scratch_dir/socket" <"$scratch_dir/input" 9>&- &
    wait_for test -s "$scratch_dir/socket"
    python3 "$script" forge "$(cat "$scratch_dir/socket")" "$mount_point/data" "$(keepers)"
    exec 9>&-
    wait || true
    ;;
esac
"$uncopy" log wait --timeout 60 "$mount_point/log"
echo "checked $what"
