# OpenSSH: scp, sftp, forwarded ports and commands with megabytes each way.
# shellcheck shell=bash
packages="openssh-server openssh-client"
start() {
    mkdir -p /run/sshd keys && chmod 700 keys
    ssh-keygen -q -t ed25519 -N "" -f keys/host && ssh-keygen -q -t ed25519 -N "" -f keys/user && cp keys/user.pub keys/authorized
    printf 'Port 2222\nListenAddress 127.0.0.1\nHostKey /room/data/keys/host\nAuthorizedKeysFile /room/data/keys/authorized\nPermitRootLogin yes\nStrictModes no\nUsePAM no\nPidFile none\nSubsystem sftp internal-sftp\n' >sshd.conf
    serve sshd "$(command -v sshd)" -D -e -f /room/data/sshd.conf
    await listens 2222
}
options=(-F none -i /room/data/keys/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR)
drive() {
    local at
    bytes 1 8000000 >large
    for at in 1 2 3; do
        client ssh "${options[@]}" -p 2222 root@127.0.0.1 'cat; exit 3' <large | sha256sum
        echo "${PIPESTATUS[0]}"
        client scp "${options[@]}" -P 2222 large "root@127.0.0.1:/room/data/copy$at" || return
        client scp -O "${options[@]}" -P 2222 "root@127.0.0.1:/room/data/copy$at" "back$at" || return
    done
    printf 'put large sftp1\nget sftp1 sftp2\n' | client sftp -q -b - "${options[@]}" -P 2222 root@127.0.0.1:/room/data >/dev/null || return
    digest copy? back? sftp?
}
after() { digest copy?; }
