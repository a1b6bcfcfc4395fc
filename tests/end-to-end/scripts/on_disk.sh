#!/bin/bash
# A script of Python's on a file system of its own, in a mount namespace of its own: on_disk.sh UNCOPY SCRIPT SCRATCH_DIR [ARGUMENT...]
# runs SCRIPT UNCOPY MOUNT_POINT SCRATCH_DIR ARGUMENT..., with MOUNT_POINT/log and MOUNT_POINT/data there.
set -eu
uncopy=$1 script=$2 scratch_dir=$3
shift 3
# shellcheck source=disk.sh
source "$(dirname "${BASH_SOURCE[0]}")/disk.sh"
new_disk 320M "mkfs.ext4 -q -F"
mkdir -m 700 "$mount_point/log" "$mount_point/data"
setpriv --pdeathsig TERM /usr/bin/python3 "$script" "$uncopy" "$mount_point" "$scratch_dir" "$@"
wait_for no_keeper
"$uncopy" log ls "$mount_point/log" >"$scratch_dir/logs"
! grep "to recover\|damaged" "$scratch_dir/logs" >&2
