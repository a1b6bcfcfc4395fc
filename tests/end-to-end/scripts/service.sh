#!/bin/bash
# On a system that systemd has started: installs a package and tries services with it: service.sh PACKAGE.deb
set -eu
# An index of all manual pages takes longer here than everything else.
rm -f /var/lib/man-db/auto-update
here=$(dirname "${BASH_SOURCE[0]}")
echo "# dpkg --install $(basename "$1")"
dpkg --install "$1" 2>&1 | tail -n 3
exec bash "$here/try-services.sh"
