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

CHOICE = random.Random(11)


def feed(size):
    """Bytes that came through a socket, so that they lie in freshly received memory."""
    near, far = socket.socketpair()
    data = CHOICE.randbytes(size)
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


def show(what, data):
    print(what, len(data), hashlib.sha256(data).hexdigest())


for round_number in range(8):
    size = CHOICE.choice([50_000, 65_536, 400_000, 1 << 20, (2 << 20) + 77])
    data = feed(size)
    show("received", data)
    show("slice", data[CHOICE.randrange(size // 2): size - CHOICE.randrange(size // 4)])
    show("joined", b"".join([data, b"--", data[::-1][:100], data]))
    edited = bytearray(data)
    for _ in range(200):
        at = CHOICE.randrange(size)
        edited[at] ^= 0x5A
    edited[1000:2000] = b"x" * 5000
    del edited[30_000:31_000]
    edited.extend(data[: size // 3])
    edited += data
    show("edited", edited)
    show("original", data)
    view = memoryview(edited)
    view[100:40_100] = bytes(data[5000:45_000])
    show("view", view)
    view.release()
    edited.clear()
    show("upper", data.upper().replace(b"A", b"bb"))
    print("count", data.count(b"\0"), data.find(data[-50:]), data == bytes(bytearray(data)))
    numbers = array.array("B", data)
    numbers.reverse()
    show("array", numbers.tobytes())
    show("inflated", zlib.decompress(zlib.compress(data, 1)))
    show("pickled", pickle.loads(pickle.dumps([data, data[1:]]))[1])
    stream = io.BytesIO()
    for at in range(0, size, 70_000):
        stream.write(data[at: at + 70_000])
    show("stream", stream.getvalue())

path = f"edits-{os.getpid()}.bin"
try:
    data = feed(3 << 20)
    with open(path, "wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view):]
    with open(path, "rb") as file:
        show("file", file.read())
    with open(path, "rb", buffering=1 << 20) as file:
        show("file in pieces", b"".join(iter(lambda: file.read(300_001), b"")))
    with open(path, "r+b") as file:
        file.seek(1_000_000)
        file.write(data[:500_000])
        file.flush()
        buffer = bytearray(1 << 20)
        file.seek(900_000)
        print("readinto", file.readinto(buffer))
        show("readinto", buffer)
        with mmap.mmap(file.fileno(), 0) as mapped:
            show("mapped", mapped[:])
            mapped[500:200_500] = data[7:200_007]
            show("mapped, edited", mapped[:])
    fd = os.open(path, os.O_RDWR)
    pieces = [bytearray(100_000), bytearray(5), bytearray(200_000)]
    print("preadv", os.preadv(fd, pieces, 12_345))
    print("pwritev", os.pwritev(fd, [pieces[2], pieces[0]], 54_321))
    show("pread", os.pread(fd, 1 << 20, 50_000))
    os.close(fd)
finally:
    os.unlink(path)
