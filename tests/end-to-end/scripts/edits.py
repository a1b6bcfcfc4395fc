"""bytes, bytearray and memoryview of received data: slices, joins, edits, files, digests."""

import array
import hashlib
import io
import mmap
import os
import pickle
import random
import socket
import zlib

RANDOM = random.Random(11)


def receive_bytes(size):
    """Bytes that came through a socket, so that they lie in freshly received memory."""
    near, far = socket.socketpair()
    data = RANDOM.randbytes(size)
    far.settimeout(30)
    got = bytearray()
    view = memoryview(data)
    far.setblocking(False)
    while len(got) < size:
        try:
            view = view[far.send(view):]
        except BlockingIOError:
            pass
        got += near.recv(1 << 20)
    assert got == data
    near.close()
    far.close()
    return bytes(got)


def print_digest(what, data):
    print(what, len(data), hashlib.sha256(data).hexdigest())


for round_number in range(8):
    size = RANDOM.choice([50_000, 65_536, 400_000, 1 << 20, (2 << 20) + 77])
    data = receive_bytes(size)
    print_digest("received", data)
    print_digest("slice", data[RANDOM.randrange(size // 2): size - RANDOM.randrange(size // 4)])
    print_digest("joined", b"".join([data, b"--", data[::-1][:100], data]))
    edited = bytearray(data)
    for _ in range(200):
        at = RANDOM.randrange(size)
        edited[at] ^= 0x5A
    edited[1000:2000] = b"x" * 5000
    del edited[30_000:31_000]
    edited.extend(data[: size // 3])
    edited += data
    print_digest("edited", edited)
    print_digest("original", data)
    view = memoryview(edited)
    view[100:40_100] = bytes(data[5000:45_000])
    print_digest("view", view)
    view.release()
    edited.clear()
    print_digest("upper", data.upper().replace(b"A", b"bb"))
    print("count", data.count(b"\0"), data.find(data[-50:]), data == bytes(bytearray(data)))
    numbers = array.array("B", data)
    numbers.reverse()
    print_digest("array", numbers.tobytes())
    print_digest("inflated", zlib.decompress(zlib.compress(data, 1)))
    print_digest("pickled", pickle.loads(pickle.dumps([data, data[1:]]))[1])
    stream = io.BytesIO()
    for at in range(0, size, 70_000):
        stream.write(data[at: at + 70_000])
    print_digest("stream", stream.getvalue())

path = f"edits-{os.getpid()}.bin"
try:
    data = receive_bytes(3 << 20)
    with open(path, "wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view):]
    with open(path, "rb") as file:
        print_digest("file", file.read())
    with open(path, "rb", buffering=1 << 20) as file:
        print_digest("file in pieces", b"".join(iter(lambda: file.read(300_001), b"")))
    with open(path, "r+b") as file:
        file.seek(1_000_000)
        file.write(data[:500_000])
        file.flush()
        buffer = bytearray(1 << 20)
        file.seek(900_000)
        print("readinto", file.readinto(buffer))
        print_digest("readinto", buffer)
        with mmap.mmap(file.fileno(), 0) as mapped:
            print_digest("mapped", mapped[:])
            mapped[500:200_500] = data[7:200_007]
            print_digest("mapped, edited", mapped[:])
    fd = os.open(path, os.O_RDWR)
    pieces = [bytearray(100_000), bytearray(5), bytearray(200_000)]
    print("preadv", os.preadv(fd, pieces, 12_345))
    print("pwritev", os.pwritev(fd, [pieces[2], pieces[0]], 54_321))
    print_digest("pread", os.pread(fd, 1 << 20, 50_000))
    os.close(fd)
finally:
    os.unlink(path)
