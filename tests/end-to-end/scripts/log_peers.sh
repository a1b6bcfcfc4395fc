#!/bin/bash
# Processes that give up their user under root's run --log, and forged peers of its keeper: log_peers.sh UNCOPY SCRIPT ROOM WHAT
#   WHAT   changes | forged
set -eu
uncopy=$1 script=$2 room=$3 what=$4
# shellcheck source=disk.sh
source "$(dirname "${BASH_SOURCE[0]}")/disk.sh"
new_disk 700M "mkfs.ext4 -q -F"
mkdir -m 700 "$place/log"
mkdir "$place/data"
run() {
    "$uncopy" run --log "$place/log" --log-size 16777216 --policy always -- "$@"
}
case $what in
changes) run python3 "$script" begin "$place/data" "$place/log" ;;
forged)
    mkfifo "$room/input"
    exec 9<>"$room/input"
    # Says where its keeper is, and lives as long as it is needed.
    # shellcheck disable=SC2016 # expanded there
    run bash -c 'echo "$UNCOPY_LOG_SOCKET" >"$1.part" && mv "$1.part" "$1" && read -r _' _ "$room/socket" <"$room/input" 9>&- &
    wait_for test -s "$room/socket"
    python3 "$script" forge "$(cat "$room/socket")" "$place/data" "$(keepers)"
    exec 9>&-
    wait || true
    ;;
esac
"$uncopy" log wait --timeout 60 "$place/log"
echo "checked $what"
