# What scripts of programs with a log share; they source it, with scratch_dir (a directory in memory) set, in a mount namespace of their own.
# A device that is there, and how it is mounted, instead of a file.
disk=${UNCOPY_TEST_DISK:-$scratch_dir/disk} mount_point=$scratch_dir/place options=${UNCOPY_TEST_MOUNT:-loop}

# A file system of its own: new_disk SIZE MKFS. Its loop device goes with the mount, however that ends.
new_disk() {
    mkdir -p "$mount_point"
    [ -b "$disk" ] || truncate -s "$1" "$disk"
    # shellcheck disable=SC2086 # the command has its arguments with it
    $2 "$disk" >"$scratch_dir/mkfs" 2>&1
    mount -o "$options" "$disk" "$mount_point"
    trap drop_disk EXIT
}

drop_disk() {
    umount -l "$mount_point" 2>/dev/null || true
}

# The processes that keep this directory's logs.
keepers() {
    grep -lsaP "\0log\0keep\0\Q${log:-$mount_point/log}\E\0" /proc/[0-9]*/cmdline | cut -d / -f 3 || true
}
no_keeper() { [ -z "$(keepers)" ]; }

# Says what has gone wrong; who sources this may know more.
fail() {
    echo "$*" >&2
    exit 1
}

wait_for() {
    local turn
    for turn in $(seq 600); do
        if "$@"; then return 0; fi
        sleep 0.05
    done
    [[ ! -f $scratch_dir/mount ]] || cat "$scratch_dir/mount" >&2
    fail "waited too long for: $*"
}

# What has reached the device by now: two copies that are the same, since the kernel goes on writing. Whoever writes was stopped.
copy_disk() {
    local turn
    for turn in $(seq 50); do
        cp --sparse=always "$disk" "$scratch_dir/copy"
        if cmp -s "$disk" "$scratch_dir/copy"; then return 0; fi
    done
    fail "the disk does not come to rest"
}

mount_disk() { mount -o loop "$disk" "$mount_point" 2>"$scratch_dir/mount"; }

# The power is back: the copy is the disk, and this is another start of the kernel. Whoever had files open was killed.
reboot_disk() {
    umount -l "$mount_point"
    mv "$scratch_dir/copy" "$disk"
    # XFS and btrfs refuse a copy as long as those who were killed hold the original.
    wait_for mount_disk
    cat /proc/sys/kernel/random/uuid >"$scratch_dir/boot"
    grep -q " /proc/sys/kernel/random/boot_id " /proc/self/mountinfo || mount --bind "$scratch_dir/boot" /proc/sys/kernel/random/boot_id
}
