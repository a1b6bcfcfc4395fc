# zstd, xz, pigz, tar, bsdtar and gpg through pipes, with threads.
# shellcheck shell=bash
packages="zstd xz-utils pigz libarchive-tools tar gnupg"
drive() {
    local at
    mkdir tree && for at in 1 2 3 4; do bytes $at 3000000 >tree/f$at; done
    bytes 9 20000000 >large
    client zstd -q -T2 -5 large -o a.zst && client zstd -q -dc a.zst | sha256sum
    client xz -0 -T2 -c large | client xz -dc | sha256sum
    client pigz -p 2 -c large | client pigz -dc | sha256sum
    client tar --sort=name --mtime=@0 -C tree -cf - . | tee a.tar | sha256sum
    client bsdtar -xf a.tar -C . && client tar -I zstd -cf b.tar.zst f1 f2 && client tar -I zstd -xOf b.tar.zst | sha256sum
    export GNUPGHOME=/tmp/gpg && mkdir -m 700 /tmp/gpg
    client gpg --batch --pinentry-mode loopback --passphrase x -c -o a.gpg large && client gpg --batch --pinentry-mode loopback --passphrase x -dq a.gpg 2>/dev/null | sha256sum
    gpgconf --kill all
}
