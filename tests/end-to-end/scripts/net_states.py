"""Prints what each operation says in each state of a TCP socket, in the same words wherever the address is: to be compared with the
kernel's own.

Usage: net_states.py ADDRESS SILENT [STATE...]     SILENT: an address there that nobody has
"""

import array
import errno
import fcntl
import select
import signal
import socket
import struct
import sys
import termios

address, silent = sys.argv[1:3]
LIMIT_MS = 20_000
TCP, SOCKET = socket.IPPROTO_TCP, socket.SOL_SOCKET
RESET = struct.pack("ii", 1, 0)
SIOCOUTQ = termios.TIOCOUTQ
signals = []
signal.signal(signal.SIGPIPE, lambda *_: signals.append("SIGPIPE"))


def outcome(call, *arguments):
    """What a call returns, or its error, and whether a signal came."""
    signals.clear()
    try:
        value = call(*arguments)
    except OSError as error:
        value = errno.errorcode.get(error.errno, error)
    if isinstance(value, tuple) and isinstance(value[0], socket.socket):
        value[0].close()
        value = "accepted"
    return value if not signals else f"{value}+{signals[0]}"


EVENTS = ("POLLIN", "POLLPRI", "POLLOUT", "POLLRDHUP", "POLLHUP", "POLLERR", "POLLNVAL")
ALL = select.POLLIN | select.POLLOUT | select.POLLRDHUP | select.POLLPRI


def events(end, interest=ALL):
    poll = select.poll()
    poll.register(end, interest)
    found = dict(poll.poll(0)).get(end.fileno(), 0)
    return "|".join(name for name in EVENTS if found & getattr(select, name)) or "none"


def wait_for_events(end, interest):
    """Waits until poll says something of an end."""
    poll = select.poll()
    poll.register(end, interest)
    assert poll.poll(LIMIT_MS), interest


def events_by_epoll(end):
    epoll = select.epoll()
    epoll.register(end, ALL)
    found = dict(epoll.poll(0)).get(end.fileno(), 0)
    epoll.close()
    return "|".join(name for name in EVENTS if found & getattr(select, name)) or "none"


def events_by_select(end):
    ready = select.select([end], [end], [end], 0)
    return "".join(letter for letter, found in zip("rwx", ready) if found) or "none"


def new():
    end = socket.socket()
    end.setblocking(False)
    return end


def listen_at_address(backlog=8):
    end = new()
    end.bind((address, 0))
    end.listen(backlog)
    return end


def pair():
    """Both ends of a connection, and its listener."""
    listener = listen_at_address()
    near = new()
    near.connect_ex(listener.getsockname())
    wait_for_events(near, select.POLLOUT)
    wait_for_events(listener, select.POLLIN)
    far, _ = listener.accept()
    far.setblocking(False)
    return near, far, listener


def nobody():
    """An address that refuses."""
    end = listen_at_address()
    name = end.getsockname()
    end.close()
    return name


# Each makes a state: the socket in question, and whatever has to live as long.


def fresh():
    return (new(),)


def bound():
    end = new()
    end.bind((address, 0))
    return (end,)


def bound_and_shut():
    (end,) = bound()
    outcome(end.shutdown, socket.SHUT_RDWR)
    return (end,)


def listening():
    return (listen_at_address(),)


def with_one_to_accept():
    listener = listen_at_address()
    near = new()
    near.connect_ex(listener.getsockname())
    wait_for_events(near, select.POLLOUT)
    wait_for_events(listener, select.POLLIN)
    return listener, near


def listener_shut(how):
    def make():
        listener = listen_at_address()
        listener.shutdown(how)
        return (listener,)

    return make


def listener_shut_with_one_waiting():
    listener, near = with_one_to_accept()
    listener.shutdown(socket.SHUT_RDWR)
    return listener, near


def listener_that_listens_again():
    listener = listen_at_address()
    listener.shutdown(socket.SHUT_RDWR)
    outcome(listener.listen, 3)
    return (listener,)


def listener_disconnected():
    listener = listen_at_address()
    outcome(disconnect, listener)
    return (listener,)


def refused():
    end = new()
    end.connect_ex(nobody())
    wait_for_events(end, select.POLLOUT)
    return (end,)


def refused_and_told():
    (end,) = refused()
    outcome(end.getsockopt, SOCKET, socket.SO_ERROR)
    return (end,)


def connecting():
    end = new()
    end.connect_ex((silent, 9))
    return (end,)


def connecting_and_shut():
    (end,) = connecting()
    outcome(end.shutdown, socket.SHUT_RDWR)
    wait_until(lambda: "POLLERR" in events(end))
    return (end,)


def connected():
    return pair()


def accepted():
    near, far, listener = pair()
    return far, near, listener


def with_data():
    near, far, listener = pair()
    far.sendall(b"0123456789")
    wait_for_events(near, select.POLLIN)
    return near, far, listener


def peer_shut():
    near, far, listener = pair()
    far.shutdown(socket.SHUT_WR)
    wait_for_events(near, select.POLLRDHUP)
    return near, far, listener


def peer_shut_with_data():
    near, far, listener = pair()
    far.sendall(b"0123456789")
    far.shutdown(socket.SHUT_WR)
    wait_for_events(near, select.POLLRDHUP)
    return near, far, listener


def peer_closed():
    near, far, listener = pair()
    far.close()
    wait_for_events(near, select.POLLRDHUP)
    return near, listener


def peer_reset():
    near, far, listener = pair()
    far.setsockopt(SOCKET, socket.SO_LINGER, RESET)
    far.close()
    wait_for_events(near, select.POLLRDHUP)
    return near, listener


def peer_reset_and_told():
    near, listener = peer_reset()
    outcome(near.getsockopt, SOCKET, socket.SO_ERROR)
    return near, listener


def peer_reset_and_received():
    near, listener = peer_reset()
    outcome(near.recv, 1)
    return near, listener


def reset_of_an_accepted():
    far, near, listener = accepted()
    near.setsockopt(SOCKET, socket.SO_LINGER, RESET)
    near.close()
    wait_for_events(far, select.POLLRDHUP)
    return far, listener


def shut(*hows):
    def make():
        near, far, listener = pair()
        for how in hows:
            near.shutdown(how)
        if hows != (socket.SHUT_RD,):
            wait_for_events(far, select.POLLRDHUP)
        return near, far, listener

    return make


def shut_for_reading_with_data():
    near, far, listener = with_data()
    near.shutdown(socket.SHUT_RD)
    return near, far, listener


def shut_with_data():
    near, far, listener = with_data()
    near.shutdown(socket.SHUT_RDWR)
    wait_for_events(far, select.POLLRDHUP)
    return near, far, listener


def shut_for_reading_then_data():
    near, far, listener = pair()
    near.shutdown(socket.SHUT_RD)
    far.sendall(b"0123456789")
    wait_until(lambda: len(near.recv(100, socket.MSG_PEEK)) == 10)
    return near, far, listener


def shut_for_reading_and_peer_shut():
    near, far, listener = pair()
    near.shutdown(socket.SHUT_RD)
    far.shutdown(socket.SHUT_WR)
    wait_until(lambda: option_outcome(near, TCP, socket.TCP_INFO, 104) == "CLOSE_WAIT")
    return near, far, listener


def both_shut_writing():
    near, far, listener = pair()
    near.shutdown(socket.SHUT_WR)
    wait_for_events(far, select.POLLRDHUP)
    far.shutdown(socket.SHUT_WR)
    wait_for_events(near, select.POLLHUP)
    return near, far, listener


def shut_writing_with_data():
    near, far, listener = with_data()
    near.shutdown(socket.SHUT_WR)
    wait_for_events(far, select.POLLRDHUP)
    return near, far, listener


def disconnected():
    near, far, listener = pair()
    outcome(disconnect, near)
    return near, far, listener


def wait_until(condition):
    """Waits for what poll does not wait for."""
    for _ in range(LIMIT_MS):
        if condition():
            return
        select.select([], [], [], 0.001)
    raise AssertionError("in vain")


STATES = [
    fresh, bound, bound_and_shut, listening, with_one_to_accept,
    ("listener shut for reading", listener_shut(socket.SHUT_RD)), ("listener shut for writing", listener_shut(socket.SHUT_WR)),
    ("listener shut", listener_shut(socket.SHUT_RDWR)), listener_shut_with_one_waiting, listener_that_listens_again, listener_disconnected,
    connecting, connecting_and_shut, refused, refused_and_told, connected, accepted, with_data, peer_shut, peer_shut_with_data, peer_closed, peer_reset,
    peer_reset_and_told, peer_reset_and_received, reset_of_an_accepted,
    ("shut for reading", shut(socket.SHUT_RD)), ("shut for writing", shut(socket.SHUT_WR)), ("shut", shut(socket.SHUT_RDWR)),
    ("shut one by one", shut(socket.SHUT_WR, socket.SHUT_RD)), shut_for_reading_with_data, shut_with_data, shut_for_reading_then_data,
    shut_for_reading_and_peer_shut, both_shut_writing, shut_writing_with_data, disconnected,
]


def describe_address(name):
    """An address without what differs: which host, which port."""
    host, port = name[:2]
    return ("own" if host == address else host, "a port" if port else 0)


def describe_name(call):
    name = outcome(call)
    return name if isinstance(name, str) else describe_address(name)


def count(end, request):
    value = array.array("i", [-1])
    got = outcome(fcntl.ioctl, end, request, value)
    return value[0] if got == 0 else got


def disconnect(end):
    """connect() with AF_UNSPEC, which Python has not."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.connect(end.fileno(), b"\0" * 16, 16) < 0:
        raise OSError(ctypes.get_errno(), "connect")


def option_outcome(end, level, name, *length):
    value = outcome(end.getsockopt, level, name, *length)
    if level == TCP and name == socket.TCP_INFO and isinstance(value, bytes):
        # The state; a connection that is closing goes on by itself.
        return {1: "ESTABLISHED", 7: "CLOSE", 10: "LISTEN", 8: "CLOSE_WAIT"}.get(value[0], "closing")
    if name == socket.SO_ERROR and level == SOCKET and isinstance(value, int):
        return errno.errorcode.get(value, value)
    return value


def in_sequence(*steps):
    """Operations one after the other."""
    return lambda end: tuple(step(end) for step in steps)


def receive(end):
    return outcome(end.recv, 100)


def send(end):
    return outcome(end.send, b"x")


def error(end):
    return option_outcome(end, SOCKET, socket.SO_ERROR)


def accept(end):
    return outcome(end.accept)


def names(end):
    return describe_name(end.getsockname), describe_name(end.getpeername)


def shut_by(how):
    return lambda end: outcome(end.shutdown, how)


def option(level, name, *length):
    return lambda end: option_outcome(end, level, name, *length)


def set_option(level, name, value):
    return lambda end: (outcome(end.setsockopt, level, name, value), option_outcome(end, level, name))


TCP_ULP, TCP_USER_TIMEOUT, TCP_CONGESTION = 31, socket.TCP_USER_TIMEOUT, socket.TCP_CONGESTION
OPERATIONS = [
    ("poll", events), ("poll for input", lambda end: events(end, select.POLLIN)), ("epoll", events_by_epoll), ("select", events_by_select),
    ("recv", in_sequence(receive, receive, events)), ("peek", lambda end: outcome(end.recv, 100, socket.MSG_PEEK)),
    ("recv of nothing", lambda end: outcome(end.recv, 0)),
    ("send", send), ("send of nothing", lambda end: outcome(end.send, b"")),
    ("send quietly", lambda end: outcome(end.send, b"x", socket.MSG_NOSIGNAL)),
    ("accept", in_sequence(accept, accept, events)), ("names", names), ("unread", lambda end: count(end, termios.FIONREAD)),
    ("error", in_sequence(error, error, events)), ("recv and error", in_sequence(receive, error, events)), ("send and error", in_sequence(send, error)),
    ("error and recv", in_sequence(error, receive, send)),
    ("connect", lambda end: outcome(end.connect, target.getsockname())),
    ("connect to nobody", lambda end: outcome(end.connect, refusing)),
    ("bind", lambda end: outcome(end.bind, (address, 0))), ("listen", in_sequence(lambda end: outcome(end.listen, 5), events, accept)),
    ("disconnect", in_sequence(lambda end: outcome(disconnect, end), events, names, error, receive)),
    ("shut for reading", in_sequence(shut_by(socket.SHUT_RD), events, receive, error, accept)),
    ("shut for writing", in_sequence(shut_by(socket.SHUT_WR), send, error, accept)),
    ("shut", in_sequence(shut_by(socket.SHUT_RDWR), receive, send, error, accept)),
    ("shut twice", in_sequence(shut_by(socket.SHUT_RDWR), shut_by(socket.SHUT_RD))),
    ("shut wrongly", lambda end: outcome(end.shutdown, 7)),
    ("state", option(TCP, socket.TCP_INFO, 104)),
    *((name, option(SOCKET, getattr(socket, name))) for name in (
        "SO_TYPE", "SO_DOMAIN", "SO_PROTOCOL", "SO_ACCEPTCONN", "SO_KEEPALIVE", "SO_REUSEADDR", "SO_REUSEPORT", "SO_BROADCAST",
        "SO_OOBINLINE", "SO_RCVLOWAT", "SO_SNDLOWAT", "SO_PRIORITY", "SO_MARK", "SO_DONTROUTE")),
    ("SO_LINGER", option(SOCKET, socket.SO_LINGER, 8)), ("SO_PEERCRED", option(SOCKET, socket.SO_PEERCRED, 4)),
    *((name, option(TCP, getattr(socket, name))) for name in (
        "TCP_NODELAY", "TCP_CORK", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_SYNCNT", "TCP_LINGER2", "TCP_DEFER_ACCEPT",
        "TCP_USER_TIMEOUT", "TCP_FASTOPEN", "TCP_NOTSENT_LOWAT", "TCP_WINDOW_CLAMP")),
    ("TCP_CONGESTION", option(TCP, TCP_CONGESTION, 16)), ("TCP_CONGESTION of 3 bytes", option(TCP, TCP_CONGESTION, 3)),
    ("IP_TTL", option(socket.IPPROTO_IP, socket.IP_TTL)), ("IP_TOS", option(socket.IPPROTO_IP, socket.IP_TOS)),
    ("IP_MTU_DISCOVER", option(socket.IPPROTO_IP, 10)),
    *((f"set {name} {value}", set_option(level, getattr(socket, name), value)) for level, name, value in (
        (SOCKET, "SO_KEEPALIVE", 1), (SOCKET, "SO_REUSEADDR", 1), (SOCKET, "SO_PRIORITY", 3), (SOCKET, "SO_OOBINLINE", 1),
        (TCP, "TCP_NODELAY", 1), (TCP, "TCP_CORK", 1), (TCP, "TCP_KEEPIDLE", 30), (TCP, "TCP_KEEPIDLE", 0), (TCP, "TCP_SYNCNT", 3),
        (TCP, "TCP_SYNCNT", 0), (TCP, "TCP_USER_TIMEOUT", 1000), (TCP, "TCP_USER_TIMEOUT", -1), (TCP, "TCP_QUICKACK", 0),
        (TCP, "TCP_DEFER_ACCEPT", 7), (TCP, "TCP_NOTSENT_LOWAT", 4096), (TCP, "TCP_LINGER2", 5),
        (socket.IPPROTO_IP, "IP_TOS", 16), (socket.IPPROTO_IP, "IP_TTL", 9), (socket.IPPROTO_IP, "IP_TTL", 0))),
    *((f"set TCP_CONGESTION {name}", lambda end, name=name: (
        outcome(end.setsockopt, TCP, TCP_CONGESTION, name), option_outcome(end, TCP, TCP_CONGESTION, 16)))
      for name in (b"reno", b"cubic", b"cubic\0", b"nosuch", b"")),
    *((f"set TCP_MAXSEG {value}", lambda end, value=value: outcome(end.setsockopt, TCP, socket.TCP_MAXSEG, value)) for value in (7, 1000)),
    ("set TCP_ULP", lambda end: outcome(end.setsockopt, TCP, TCP_ULP, b"nosuch")),
]

target, refusing = listen_at_address(64), nobody()
only = sys.argv[3:]
for state in STATES:
    name, make = state if isinstance(state, tuple) else (state.__name__.replace("_", " "), state)
    if only and name not in only:
        continue
    for what, operation in OPERATIONS:
        # The default of whichever network namespace a socket of the kernel's is in.
        if "CONGESTION" in what and name in ("fresh", "disconnected"):
            continue
        # When a reset comes is the network's to say, and when a connection is given up the service's.
        if (name, what) == ("peer closed", "send and error") or name == "connecting" and what in ("shut", "shut for reading", "shut for writing"):
            continue
        ends = make()
        print(f"{name} / {what}:", operation(ends[0]), flush=True)
        for end in ends:
            end.close()
        while outcome(target.accept) == "accepted":
            pass
