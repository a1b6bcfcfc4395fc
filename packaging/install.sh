#!/bin/sh
# Installs uncopy below PREFIX (default /usr/local), or takes away what it installed: install.sh [--prefix PREFIX] [--uninstall]
set -eu
prefix=/usr/local what=install
while [ $# -gt 0 ]; do
    case $1 in
        --prefix) prefix=${2:?install.sh: --prefix needs a directory} && shift ;;
        --uninstall) what=uninstall ;;
        *) echo "usage: install.sh [--prefix PREFIX] [--uninstall]" >&2 && exit 2 ;;
    esac
    shift
done
case $prefix in
    /*) ;;
    *) echo "install.sh: --prefix takes an absolute path, not $prefix" >&2 && exit 2 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
[ -x "$here/tree/bin/uncopy" ] || { echo "install.sh: $here holds no uncopy: unpack the whole archive" >&2 && exit 1; }
case $(uname -sm) in
    "Linux x86_64") ;;
    *) echo "install.sh: this is for Linux on x86-64, not $(uname -sm)" >&2 && exit 1 ;;
esac
cd "$here/tree"
if [ $what = uninstall ]; then
    find . ! -type d | while read -r file; do rm -f -- "$prefix/$file"; done
    # The deepest first; what others have files in stays.
    find . -mindepth 1 -type d | sort -r | while read -r directory; do rmdir "$prefix/$directory" 2>/dev/null || true; done
    echo "taken from $prefix"
    exit 0
fi
mkdir -p "$prefix"
for file in $(find . ! -type d); do
    mkdir -p "$prefix/$(dirname "$file")"
    rm -f -- "$prefix/$file"
    cp -P -- "$file" "$prefix/$file"
done
# These two name the place.
for file in lib/pkgconfig/uncopy.pc lib/systemd/system/uncopy-log-recover@.service; do
    sed "s|@prefix@|$prefix|" "$file" >"$prefix/$file"
done
echo "installed below $prefix; next: $prefix/bin/uncopy doctor"
