"""Sockets: recv, recv_into, recvmsg, sendall, sendmsg of large bytes; every digest is printed."""

import hashlib
import random
import socket
import threading

SEED = 7
SIZES = [1, 4095, 4096, 65536, 65537, 300_001, 1 << 20, (3 << 20) + 5]


def data_of(size, salt):
    return random.Random(SEED * 1000 + salt).randbytes(size)


def receive_exactly(sock, size, how):
    if how == "recv":
        parts = []
        while size:
            part = sock.recv(min(size, 1 << 20))
            assert part, "closed"
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
    buffer = bytearray(size)
    view = memoryview(buffer)
    at = 0
    while at < size:
        if how == "recv_into":
            got = sock.recv_into(view[at:])
        else:
            middle = at + (size - at) // 3
            got = sock.recvmsg_into([view[at:middle], view[middle:]])[0]
        assert got, "closed"
        at += got
    return buffer


def send_all(sock, data, how):
    if how == "sendall":
        sock.sendall(data)
        return
    view = memoryview(data)
    while view:
        third = max(1, len(view) // 3)
        view = view[sock.sendmsg([view[:third], view[third:]]):]


def echo(listener):
    sock, _ = listener.accept()
    with sock:
        while True:
            header = receive_exactly(sock, 9, "recv")
            size, method = int.from_bytes(header[:8], "little"), header[8]
            if size == 0:
                return
            body = receive_exactly(sock, size, ["recv", "recv_into", "recvmsg_into"][method % 3])
            # What a program does with what it received: slices, joins, edits.
            head, tail = bytes(body[: size // 2]), bytes(body[size // 2:])
            if method < 3:
                reordered = bytearray(tail + head)
                reordered[:] = reordered[len(tail):] + reordered[: len(tail)]
            else:
                reordered = b"".join([head, tail])
            send_all(sock, bytes(reordered), ["sendall", "sendmsg"][method % 2])


def run_echo(family, address):
    listener = socket.socket(family)
    listener.bind(address)
    listener.listen()
    server = threading.Thread(target=echo, args=(listener,))
    server.start()
    with socket.socket(family) as sock:
        sock.settimeout(30)
        sock.connect(listener.getsockname())
        for number, size in enumerate(SIZES * 3):
            data = data_of(size, number)
            sock.sendall(size.to_bytes(8, "little") + bytes([number % 6]) + data)
            answer = receive_exactly(sock, size, ["recv", "recv_into", "recvmsg_into"][number % 3])
            assert bytes(answer) == data, f"answer {number} of {size} bytes"
            print(size, hashlib.sha256(answer).hexdigest())
        sock.sendall(bytes(9))
    server.join()
    listener.close()


def peek_and_datagrams():
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for end in (near, far):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    for number, size in enumerate([100, 5000, 70_000, 150_000]):
        data = data_of(size, 500 + number)
        far.send(data)
        peeked = near.recv(200_000, socket.MSG_PEEK)
        received, _, flags, _ = near.recvmsg(60_000)
        assert peeked == data and received == data[:60_000]
        print(size, len(received), flags, hashlib.sha256(peeked).hexdigest())


run_echo(socket.AF_INET, ("127.0.0.1", 0))
peek_and_datagrams()
