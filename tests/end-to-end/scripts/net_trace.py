"""Prints what calls on sockets of TCP say at one address, in the same words wherever that is: to be compared with the kernel's own.

Usage: net_trace.py ADDRESS
"""

import array
import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import termios
import threading
import time

address = sys.argv[1]
signals = []
signal.signal(signal.SIGPIPE, lambda *_: signals.append("SIGPIPE"))


def report(what, *values):
    print(f"{what}:", *values, flush=True)


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_char_p), ("bytes", ctypes.c_size_t)]


class Message(ctypes.Structure):
    """mmsghdr of sys/socket.h."""

    _fields_ = [("name", ctypes.c_char_p), ("name_bytes", ctypes.c_uint), ("parts", ctypes.POINTER(Iovec)),
                ("part_count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("control_bytes", ctypes.c_size_t),
                ("flags", ctypes.c_int), ("unused", ctypes.c_int), ("sent_bytes", ctypes.c_uint)]


libc = ctypes.CDLL(None, use_errno=True)


def send_messages(stream, texts, to):
    """Sends messages to an address of IPv4 by sendmmsg, with as many calls as that takes; how many bytes it says were sent."""
    name = struct.pack("=H", socket.AF_INET) + struct.pack("!H", to[1]) + socket.inet_aton(to[0]) + bytes(8)
    messages = (Message * len(texts))(
        *(Message(name, len(name), ctypes.pointer(Iovec(text, len(text))), 1) for text in texts)
    )
    done = 0
    while done < len(texts):
        sent = libc.sendmmsg(stream.fileno(), ctypes.byref(messages, done * ctypes.sizeof(Message)), len(texts) - done, 0)
        if sent < 0:
            raise OSError(ctypes.get_errno(), "sendmmsg")
        done += sent
    return sum(message.sent_bytes for message in messages)


def outcome(call, *arguments):
    """What a call returns, or its error, and whether a signal came."""
    signals.clear()
    try:
        value = call(*arguments)
    except OSError as error:
        value = errno.errorcode.get(error.errno, error)
    if isinstance(value, socket.socket):
        value.close()
        value = "socket"
    return value if not signals else f"{value}+{signals[0]}"


def pair(listener):
    near = socket.create_connection(listener.getsockname(), timeout=20)
    far, peer = listener.accept()
    assert near.getsockname() == peer == far.getpeername() and far.getsockname() == near.getpeername()
    far.settimeout(20)
    return near, far


def wait_for_events(end, interest):
    """Waits until poll says something of an end."""
    poll = select.poll()
    poll.register(end, interest)
    assert poll.poll(20000), interest


def events(end):
    poll = select.poll()
    poll.register(end, select.POLLIN | select.POLLOUT | select.POLLRDHUP | select.POLLPRI)
    found = dict(poll.poll(0)).get(end.fileno(), 0)
    return "|".join(name for name in ("POLLIN", "POLLOUT", "POLLRDHUP", "POLLHUP", "POLLERR") if found & getattr(select, name)) or "none"


def reset(end):
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


def unread(end):
    count = array.array("i", [0])
    fcntl.ioctl(end, termios.FIONREAD, count)
    return count[0]


listener = socket.create_server((address, 0), backlog=16)

# After a reset: the error once, then the end of the stream and EPIPE, with a signal unless that is declined.
def write(end):
    return os.write(end.fileno(), b"x")


def writev(end):
    return os.writev(end.fileno(), [b"x", b"y"])


sends = [
    ("send", lambda end: end.send(b"x")),
    ("write", write),
    ("writev", writev),
    ("sendmsg", lambda end: end.sendmsg([b"x"])),
    ("send quietly", lambda end: end.send(b"x", socket.MSG_NOSIGNAL)),
    ("recv", lambda end: end.recv(1)),
    ("read", lambda end: os.read(end.fileno(), 1)),
    ("SO_ERROR", lambda end: errno.errorcode.get(end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), 0)),
]
for name, first in sends:
    near, far = pair(listener)
    reset(far)
    wait_for_events(near, select.POLLIN)
    near.setblocking(True)
    report("after a reset", name, outcome(first, near), outcome(lambda: near.recv(1)), *(outcome(send, near) for _, send in sends))
    near.close()

# After an ordinary end the peer's reset is EPIPE at once.
near, far = pair(listener)
far.close()
wait_for_events(near, select.POLLRDHUP)
near.setblocking(True)
report("after the end", outcome(lambda: near.recv(1)), outcome(near.send, b"x"))
wait_for_events(near, select.POLLHUP)
report("after its reset", outcome(near.send, b"x"), outcome(near.send, b"x"), outcome(lambda: near.recv(1)))
report("nothing after it", outcome(os.writev, near.fileno(), [b"", b""]), outcome(os.write, near.fileno(), b""), outcome(near.sendmsg, [b""]))
near.close()
one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
report("datagrams of nothing", *(outcome(call) for call in (
    lambda: os.writev(one.fileno(), [b"", b""]),
    lambda: other.recv(10, socket.MSG_DONTWAIT),
    lambda: os.write(one.fileno(), b""),
    lambda: other.recv(10, socket.MSG_DONTWAIT),
)))
one.close(), other.close()

# Halves.
near, far = pair(listener)
report("open", events(near), events(far))
near.shutdown(socket.SHUT_WR)
wait_for_events(far, select.POLLRDHUP)
report("shut for writing", events(near), events(far), outcome(near.send, b"x"), outcome(far.recv, 1), outcome(far.recv, 1))
far.sendall(b"still")
wait_for_events(near, select.POLLIN)
report("the other half", outcome(near.recv, 10), outcome(far.shutdown, socket.SHUT_WR))
wait_for_events(near, select.POLLHUP)
report("both shut", events(near), outcome(near.recv, 1))
near.close(), far.close()
near, far = pair(listener)
near.shutdown(socket.SHUT_RD)
report("shut for reading", outcome(near.recv, 1), events(near), outcome(near.send, b"x"), outcome(far.recv, 1))
near.close(), far.close()

# Connecting without waiting.
closed = socket.create_server((address, 0))
nobody = closed.getsockname()
closed.close()
one = socket.socket()
one.setblocking(False)
report("begins", outcome(one.connect, nobody))
wait_for_events(one, select.POLLOUT)
report("refused", events(one), outcome(lambda: one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)), events(one),
    outcome(lambda: one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)), outcome(one.getpeername), outcome(one.send, b"x"), outcome(one.recv, 1))
one.close()
one = socket.socket()
report("refused and waited for", outcome(one.connect, nobody), outcome(one.getpeername), outcome(one.connect, nobody),
    outcome(one.connect, listener.getsockname()), outcome(one.connect, listener.getsockname()))
far, _ = listener.accept()
one.sendall(b"x")
report("connected after all", outcome(far.recv, 1))
one.close(), far.close()
one = socket.socket()
one.setblocking(False)
report("succeeds", outcome(one.connect, listener.getsockname()))
wait_for_events(one, select.POLLOUT)
report("connected", events(one), outcome(lambda: one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)), outcome(one.recv, 1),
    outcome(one.listen, 1), outcome(one.bind, (address, 0)))
far, _ = listener.accept()
one.close(), far.close()

# Accepting.
listener.setblocking(False)
report("nobody to accept", outcome(listener.accept), events(listener), outcome(listener.getpeername))
listener.settimeout(0.05)
report("nobody in time", outcome(listener.accept))
listener.settimeout(None)
dup = listener.dup()
near = socket.create_connection(listener.getsockname())
far, _ = dup.accept()
report("accepted by a duplicate", far.getblocking(), os.get_inheritable(far.fileno()), fcntl.fcntl(far, fcntl.F_GETFL) & os.O_NONBLOCK)
dup.close()

# Looking, waiting for all, how much there is.
far.sendall(b"0123456789")
wait_for_events(near, select.POLLIN)
report("looking", near.recv(4, socket.MSG_PEEK), unread(near), near.recv(4), unread(near))
threading.Timer(0.1, far.sendall, [b"abcdef"]).start()
report("all of it", near.recv(12, socket.MSG_WAITALL))
near.setblocking(False)
report("nothing now", outcome(near.recv, 1), outcome(near.recv, 1, socket.MSG_PEEK))
near.settimeout(0.05)
report("nothing in time", outcome(near.recv, 1))
near.setblocking(True)
near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50000))
report("nothing in the kernel's time", outcome(near.recv, 1))
near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))

# Edges: one for each that comes, and none for what was there.
epoll = select.epoll()
epoll.register(near, select.EPOLLIN | select.EPOLLET)
report("no edge", epoll.poll(0))
far.sendall(b"x")
report("an edge", len(epoll.poll(20)), len(epoll.poll(0)))
far.sendall(b"y")
report("another", len(epoll.poll(20)), near.recv(10))
epoll.modify(near, select.EPOLLIN | select.EPOLLONESHOT)
far.sendall(b"z")
report("once", len(epoll.poll(20)), len(epoll.poll(0)), near.recv(1))
epoll.close()

# Until there is no room (what was sent may still go on to the other side), and again once there is.
near.setblocking(False)
sent = 0
while sent < 1 << 28:
    try:
        sent += near.send(bytes(1 << 16))
    except BlockingIOError:
        if full := not select.select([], [near], [], 0.2)[1]:
            break
report("full", sent > 100_000, full)
got = 0
while got < sent:
    got += len(far.recv(1 << 20))
wait_for_events(near, select.POLLOUT)
report("room again", got == sent, events(near))
near.setblocking(True)

# Files.
with tempfile.TemporaryFile() as file:
    data = os.urandom(700_000)
    file.write(data)
    file.flush()
    threading.Thread(target=lambda: near.sendfile(file, offset=1000)).start()
    report("a file", far.recv(699_000, socket.MSG_WAITALL) == data[1000:])
lines = near.makefile("rwb")
lines.write(b"one\ntwo\n")
lines.flush()
other = far.makefile("r")
report("lines", other.readline(), other.readline())
lines.close(), other.close()
near.sendmsg([b"ab", b"", b"cd"])
buffers = [bytearray(3), bytearray(5)]
wait_for_events(far, select.POLLIN)
report("several", far.recvmsg_into(buffers)[0], buffers)
# A stream that is connected has a peer; which address a call names does not matter.
report("an address", outcome(near.sendto, b"to", listener.getsockname()), outcome(near.sendmsg, [b"msg"], [], 0, listener.getsockname()),
    outcome(send_messages, near, (b"one", b"two"), listener.getsockname()), far.recv(11, socket.MSG_WAITALL))
report("options", *(near.getsockopt(*option) for option in (
    (socket.SOL_SOCKET, socket.SO_TYPE), (socket.SOL_SOCKET, socket.SO_DOMAIN), (socket.SOL_SOCKET, socket.SO_PROTOCOL),
    (socket.SOL_SOCKET, socket.SO_ACCEPTCONN), (socket.SOL_SOCKET, socket.SO_KEEPALIVE), (socket.IPPROTO_TCP, socket.TCP_NODELAY),
)), listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
for end in (listener, near, far):
    reuse = (socket.SO_REUSEADDR, socket.SO_REUSEPORT)
    report("reused", *(end.getsockopt(socket.SOL_SOCKET, option) for option in reuse), outcome(end.setsockopt, socket.SOL_SOCKET, reuse[1], 1),
        *(end.getsockopt(socket.SOL_SOCKET, option) for option in reuse))
    end.setsockopt(socket.SOL_SOCKET, reuse[1], 0)
report("kinds", outcome(near.getsockopt, 77, 1), outcome(near.setsockopt, socket.IPPROTO_TCP, 9999, 1), outcome(near.accept))

# Unread bytes at close are a reset; a close that waits for what was sent is not.
far.sendall(b"unread")
wait_for_events(near, select.POLLIN)
near.close()
report("closed with unread bytes", outcome(far.recv, 1), outcome(far.recv, 1))
far.close()
near, far = pair(listener)
near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 10))
near.sendall(bytes(500_000))
near.close()
far.setblocking(True)
report("lingered", len(far.recv(500_000, socket.MSG_WAITALL)), outcome(far.recv, 1))
far.close()

# Addresses.
report("in use", outcome(socket.create_server, listener.getsockname()))
bound = socket.socket()
report("bound", outcome(bound.bind, (address, 0)), bound.getsockname()[1] > 0, outcome(bound.bind, (address, 0)), outcome(bound.accept))
report("connects from there", outcome(bound.connect, listener.getsockname()))
far, peer = listener.accept()
report("from there", peer == bound.getsockname())
bound.close(), far.close()
report("no such address", outcome(socket.socket().bind, ("192.0.2.7", 0)), outcome(socket.socket().bind, (address, 0, 0, 0)[:2]))
port = listener.getsockname()
listener.close()
again = socket.create_server(port)
report("again", again.getsockname() == port)
