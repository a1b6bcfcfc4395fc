#!/bin/bash
# A script of Python's on a file system of its own, in a mount namespace of its own: on_disk.sh UNCOPY SCRIPT ROOM [ARGUMENT...]
# runs SCRIPT UNCOPY PLACE ROOM ARGUMENT..., with PLACE/log and PLACE/data there.
set -eu
uncopy=$1 script=$2 room=$3
shift 3
# shellcheck source=disk.sh
source "$(dirname "${BASH_SOURCE[0]}")/disk.sh"
new_disk 320M "mkfs.ext4 -q -F"
mkdir -m 700 "$place/log" "$place/data"
setpriv --pdeathsig TERM /usr/bin/python3 "$script" "$uncopy" "$place" "$room" "$@"
wait_for no_keeper
"$uncopy" log ls "$place/log" >"$room/logs"
! grep "to recover\|damaged" "$room/logs" >&2
