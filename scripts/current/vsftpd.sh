# vsftpd: files of megabytes by FTP both ways, with sendfile and without.
# shellcheck shell=bash
packages="vsftpd curl"
start() {
    mkdir -p ftp/up /run/vsftpd/empty && bytes 1 8000000 >ftp/large && chown ftp ftp/up && chmod 755 ftp
    printf 'listen=YES\nlisten_address=127.0.0.1\nlisten_port=2121\nbackground=NO\nanonymous_enable=YES\nanon_root=/room/data/ftp\nwrite_enable=YES\nanon_upload_enable=YES\nuse_sendfile=NO\nseccomp_sandbox=YES\nsecure_chroot_dir=/run/vsftpd/empty\npasv_address=127.0.0.1\nanon_umask=022\n' >conf
    serve vsftpd vsftpd /room/data/conf
    await listens 2121
}
drive() {
    local at
    for at in 1 2 3; do
        client curl -s ftp://127.0.0.1:2121/large | sha256sum
        client curl -s -T ftp/large ftp://127.0.0.1:2121/up/f$at || return
    done
    digest ftp/up/*
}
