#!/bin/bash
# scripts/test-service in a virtual machine, with the kernel that it has: service.sh PACKAGE.deb
set -eu
mountpoint -q /sys/fs/cgroup || mount -t cgroup2 none /sys/fs/cgroup
# Memory of its own: what lies on the root directory cannot be the upper half of another overlay.
mkdir -p /run/room && mount -t tmpfs -o size=1500m room /run/room
TMPDIR=/run/room UNCOPY_TEST_SERVICE_SECONDS=1200 scripts/test-service "$1"
echo "RESULT services on $(uname -r)"
