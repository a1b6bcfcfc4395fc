"""Does to the control socket of a service what no client of its does, and looks whether the service goes on, with what it had.

Usage: net_hostile.py SCENARIO CONTROL PID VERSION
"""

import errno
import itertools
import os
import resource
import select
import socket
import struct
import sys

scenario, control, pid, version = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4], 0)
LIMIT = struct.pack("ll", 60, 0)
# As crates/netstack/net numbers questions and answers.
HELLO, BIND, LISTEN, CONNECT, SET, INFO, LIST, LINK, UNLISTEN, KEEP, TAKE = range(1, 12)
FAILED, SERVICE = 1, 2
ADDRESS = (0, 0xFFFF_0000_0000 | 0x0A4D_0002, 1 << 16)
SILENT = (0, 0xFFFF_0000_0000 | 0x0A4D_004D, 1 << 16 | 9)


def encode(*values):
    return struct.pack(f"<{len(values)}Q", *values)


def connect():
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect(control)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, LIMIT)
    return made


def receive_answer(connection):
    """The words of an answer; none: the link has ended."""
    try:
        message, descriptors, _, _ = socket.recv_fds(connection, 256, 4)
    except ConnectionResetError:
        return ()
    for descriptor in descriptors:
        os.close(descriptor)
    return struct.unpack(f"<{len(message) // 8}Q", message)


def request(connection, *question):
    connection.send(encode(version, *question))
    return receive_answer(connection)


def service_answers():
    with connect() as connection:
        return request(connection, HELLO)[1] == SERVICE


def descriptors():
    """Descriptors of the service: its threads do not share them all."""
    tasks = f"/proc/{pid}/task"
    return sum(len(os.listdir(f"{tasks}/{task}/fd")) for task in os.listdir(tasks))


def wait_until_at_most(maximum):
    """Waits until the service has no more descriptors than it had: it closes what has ended in its own time."""
    for _ in range(20_000):
        if (now := descriptors()) <= maximum:
            return
        select.select([], [], [], 0.001)
    raise AssertionError(f"{now} descriptors, not {maximum}")


def several_descriptors():
    before = descriptors()
    for count in (2, 3, 200):
        for _ in range(50):
            with connect() as connection:
                socket.send_fds(connection, [encode(version, HELLO)], [0] * count)
                assert receive_answer(connection) == (), "it was answered"
    for _ in range(50):
        with connect() as connection:
            # Of which nothing takes one.
            socket.send_fds(connection, [encode(version, HELLO)], [0])
            assert receive_answer(connection)[1] == SERVICE
            socket.send_fds(connection, [encode(version, 77)], [0])
            assert receive_answer(connection) == ()
    wait_until_at_most(before)


def garbage():
    before = descriptors()
    for message in (
        b"x", b"\0" * 8, os.urandom(128), os.urandom(4096), encode(version), encode(version, 77), encode(version, CONNECT),
        encode(version, BIND, 0, *ADDRESS)[:-8], encode(version, HELLO) + b"x", encode(version ^ 1, HELLO),
    ):
        with connect() as connection:
            connection.send(message)
            assert receive_answer(connection) == (), message
    for question in ((SET, 0, 0), (INFO, 0xFFFF_FFFF_FFFF_FFFF), (KEEP, 5), (TAKE, 5, 5), (UNLISTEN, 5, *ADDRESS),
                     (LISTEN, 5, 0, *ADDRESS), (CONNECT, 0, *ADDRESS, *ADDRESS)):
        with connect() as connection:
            assert request(connection, *question)[1] == FAILED, question
    assert service_answers()
    wait_until_at_most(before)


def deaths():
    """Clients that end right after each step, with what they were to get under way."""
    before = descriptors()
    for question in ((HELLO,), (BIND, 7, *ADDRESS), (LIST,), (INFO, 0), (LINK,), (CONNECT, 0, *ADDRESS, *SILENT)):
        for given in (0, 1):
            for _ in range(20):
                near, far = socket.socketpair()
                with connect() as connection, near, far:
                    socket.send_fds(connection, [encode(version, *question)], [far.fileno()] * given)
    connect().close()
    wait_until_at_most(before)
    # What is asked, and never read.
    with connect() as connection:
        connection.setblocking(False)
        try:
            while True:
                connection.send(encode(version, LIST))
                if select.select([], [connection], [], 1)[1] == []:
                    break
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            pass
    assert service_answers()


def connections_over_a_connection():
    """More links over one link than anybody needs."""
    with connect() as control_connection:
        connections = []
        for _ in range(1500):
            near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            socket.send_fds(control_connection, [encode(version, LINK)], [far.fileno()])
            far.close()
            connections.append(near)
        last = connections[-1]
        last.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, LIMIT)
        assert request(last, HELLO)[1] == SERVICE
        assert service_answers()
        poll = select.poll()
        for near in connections:
            poll.register(near, select.POLLIN)
        ended = len(poll.poll(0))
        assert ended > 1000, f"only {ended} have ended"


def exhausted():
    """A service without descriptors refuses, and does not leave links waiting."""
    assert service_answers()
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    # A few of the lowest numbers are left: some that the service uses lie far above.
    maximum = next(number for number in itertools.count() if number not in used) + 9
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (maximum, before[1]))
    connections, refused = [], 0
    for _ in range(300):
        connection = connect()
        try:
            found = request(connection, HELLO)
        except (BrokenPipeError, ConnectionResetError):
            found = ()
        connections.append(connection)
        refused += found == ()
    assert 0 < refused < 300, refused
    for connection in connections:
        connection.close()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    assert service_answers()


def another_user():
    """A program that has become another user's has the link that it had, and not what is others'."""
    connection = connect()
    listener = connect()
    address, given = request(listener, BIND, 9, *ADDRESS), (KEEP, TAKE, UNLISTEN)
    assert address[1] == 3, address
    questions = ((KEEP, 0), (TAKE, 0, 1), (UNLISTEN, 9, *address[2:]))
    assert [question[0] for question in questions] == list(given)
    child = os.fork()
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        is_refused = all(request(connection, *question)[1:] == (FAILED, errno.EPERM) for question in questions)
        service_answers = request(connection, HELLO)[1] == SERVICE
        os._exit(0 if is_refused and service_answers else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert request(connection, KEEP, 0)[1:] == (FAILED, errno.ENOTCONN)


# What is made once is made.
assert service_answers()
{"several descriptors": several_descriptors, "garbage": garbage, "deaths": deaths, "lent": connections_over_a_connection, "exhausted": exhausted,
 "another user": another_user}[scenario]()
print("well")
