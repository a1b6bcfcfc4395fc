"""Reads, writes and messages of all kinds under a filter that ends the process for calls which it does not make itself.

Usage: confined.py FILE NUMBER…     (the file is written; the numbers are those of the calls)
"""

import ctypes, os, socket, struct, sys

libc = ctypes.CDLL(None, use_errno=True)
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
# What was made before: streams both ways, a file that is synced, a pipe.
near, far = socket.socketpair()
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server = listener.accept()[0]
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
for _ in range(3000):
    os.pwrite(file, b"x" * 1000, 0)
    os.fdatasync(file)
reader, writer = os.pipe()
large = bytearray(200000)
def receive_all(length, receive):
    while length > 0:
        length -= receive(length)
def exchange(one, other):
    fd = other.fileno()
    for length in (1, 100, 100000):
        data = memoryview(large)[:length]
        one.sendall(data)
        assert len(other.recv(length, socket.MSG_WAITALL)) == length
        os.write(one.fileno(), data)
        receive_all(length, lambda left: len(os.read(fd, left)))
        assert one.sendmsg([data[: length // 2], data[length // 2 :]]) == length
        receive_all(length, lambda left: len(other.recvmsg(left, 100)[0]))
        os.writev(one.fileno(), [data])
        receive_all(length, lambda left: os.readv(fd, [bytearray(left)]))
exchange(near, far), exchange(client, server), exchange(server, client)
BPF = lambda code, jt, jf, k: struct.pack("=HBBI", code, jt, jf, k)
checks = [int(number) for number in sys.argv[2:]]
program = BPF(0x20, 0, 0, 0)
for at, number in enumerate(checks):
    program += BPF(0x15, len(checks) - at, 0, number)
program += BPF(0x06, 0, 0, 0x7FFF0000) + BPF(0x06, 0, 0, 0x80000000)
program_buffer = ctypes.create_string_buffer(program)
prog = ctypes.create_string_buffer(struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(program_buffer)))
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(prog), 0, 0) == 0
exchange(near, far), exchange(client, server), exchange(server, client)
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
class Message(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint), ("iov", ctypes.POINTER(Vector)), ("iovlen", ctypes.c_size_t),
        ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t), ("flags", ctypes.c_int), ("done", ctypes.c_uint)]
memory = ctypes.create_string_buffer(50000)
vector = Vector(ctypes.addressof(memory), 50000)
message = Message(iov=ctypes.pointer(vector), iovlen=1)
assert libc.sendmmsg(client.fileno(), ctypes.byref(message), 1, 0) == 1
assert libc.recvmmsg(server.fileno(), ctypes.byref(message), 1, socket.MSG_WAITALL, None) == 1
assert os.pwrite(file, b"y" * 100000, 0) == 100000
os.fsync(file), os.fdatasync(file)
assert os.pread(file, 100000, 0) == b"y" * 100000
os.lseek(file, 0, 0)
assert os.sendfile(writer, file, 0, 60000) == 60000
assert len(os.read(reader, 60000)) == 60000
os.ftruncate(file, 5000)
copy = os.dup(file)
os.close(copy), os.close(file), os.close(reader), os.close(writer)
for at in (near, far, server, client, listener):
    at.close()
# As large as blocks are, copied and freed.
for length in (1000, 100000, 5000000):
    block = bytes(length)
    other = bytearray(block)
    del block, other
print("done", flush=True)
os._exit(0)
