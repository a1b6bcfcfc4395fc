"""Connects and listens at a service as another user, in another root directory, and in a program that such a user executes.

Usage: python3 -c SCRIPT SERVICE KERNEL PORT, by root; at KERNEL's PORT somebody echoes.
"""

import encodings.idna  # noqa: F401: not to be found in another root directory
import os
import socket
import struct
import sys

service, kernel, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
NOBODY = 65534


def check_connections(what):
    one = socket.create_connection((kernel, port), timeout=10)
    assert one.getsockname()[0] == service, one.getsockname()
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for n in (5, 200000):
        data = os.urandom(n)
        one.sendall(data)
        got = b""
        while len(got) < n:
            part = one.recv(1 << 20)
            assert part
            got += part
        assert got == data
    assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[0] == 1
    one.close()
    listener = socket.create_server((service, 0))
    near = socket.create_connection(listener.getsockname(), timeout=10)
    far, peer = listener.accept()
    assert near.getsockname() == peer
    near.sendall(b"x" * 100)
    assert far.recv(100, socket.MSG_WAITALL) == b"x" * 100
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    try:
        near.recv(1)
        raise AssertionError("no reset")
    except ConnectionResetError:
        pass
    print("works", what, flush=True)


if len(sys.argv) > 4:
    check_connections(sys.argv[4])
    sys.exit(0)
for round in range(3):
    child = os.fork()
    if child == 0:
        if round == 2:
            os.chroot("/var/empty" if os.path.isdir("/var/empty") else "/usr")
            os.chdir("/")
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        check_connections(f"child {round}")
        grandchild = os.fork()
        if grandchild == 0:
            check_connections("grandchild")
            os._exit(0)
        assert os.waitpid(grandchild, 0)[1] == 0
        if round == 1:
            os.execv(sys.executable, [*sys.orig_argv, "executed"])
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, round
os.seteuid(NOBODY)
check_connections("effective")
os.seteuid(0)
check_connections("again")
print("well")
