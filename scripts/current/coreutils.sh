# cat, dd, sort, cp, split, shasum, awk, grep, sed and perl with megabytes.
# shellcheck shell=bash
packages="coreutils gawk perl grep sed"
drive() {
    bytes 1 20000000 >large
    client cat large | client dd bs=1M iflag=fullblock status=none | client tee copy | sha256sum
    client cp --reflink=never large b && client cp --sparse=always large c && client split -b 3M large part && cat part* | sha256sum
    base64 large >text
    client sort -S 8M --parallel 2 text | sha256sum
    client gawk '{ n += length($0) } END { print n }' text; client grep -c A text; client sed 's/A/b/g' text | sha256sum
    client perl -e 'local $/; open F, "<", "large"; $d = <F>; open P, "|-", "sha256sum"; print P $d, scalar reverse $d; close P'
    client perl -e 'open F, "<", "large"; sysread F, $d, 5000000; pipe R, W; if (!fork) { syswrite W, $d, 4000000 - 0 for 1; exit 3 } close W; local $/; print length(<R>), "\n"; wait; print $? >> 8, "\n"'
    digest b c copy
}
