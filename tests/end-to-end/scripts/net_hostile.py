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


def words(*values):
    return struct.pack(f"<{len(values)}Q", *values)


def link():
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect(control)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, LIMIT)
    return made


def answer(asked):
    """The words of an answer; none: the link has ended."""
    try:
        message, descriptors, _, _ = socket.recv_fds(asked, 256, 4)
    except ConnectionResetError:
        return ()
    for descriptor in descriptors:
        os.close(descriptor)
    return struct.unpack(f"<{len(message) // 8}Q", message)


def ask(asked, *question):
    asked.send(words(version, *question))
    return answer(asked)


def is_answered():
    with link() as asked:
        return ask(asked, HELLO)[1] == SERVICE


def descriptors():
    """Descriptors of the service: its threads do not share them all."""
    tasks = f"/proc/{pid}/task"
    return sum(len(os.listdir(f"{tasks}/{task}/fd")) for task in os.listdir(tasks))


def settles_at(most):
    """Waits until the service has no more descriptors than it had: it closes what has ended in its own time."""
    for _ in range(20_000):
        if (now := descriptors()) <= most:
            return
        select.select([], [], [], 0.001)
    raise AssertionError(f"{now} descriptors, not {most}")


def several_descriptors():
    before = descriptors()
    for count in (2, 3, 200):
        for _ in range(50):
            with link() as asked:
                socket.send_fds(asked, [words(version, HELLO)], [0] * count)
                assert answer(asked) == (), "it was answered"
    for _ in range(50):
        with link() as asked:
            # Of which nothing takes one.
            socket.send_fds(asked, [words(version, HELLO)], [0])
            assert answer(asked)[1] == SERVICE
            socket.send_fds(asked, [words(version, 77)], [0])
            assert answer(asked) == ()
    settles_at(before)


def garbage():
    before = descriptors()
    for message in (
        b"x", b"\0" * 8, os.urandom(128), os.urandom(4096), words(version), words(version, 77), words(version, CONNECT),
        words(version, BIND, 0, *ADDRESS)[:-8], words(version, HELLO) + b"x", words(version ^ 1, HELLO),
    ):
        with link() as asked:
            asked.send(message)
            assert answer(asked) == (), message
    for question in ((SET, 0, 0), (INFO, 0xFFFF_FFFF_FFFF_FFFF), (KEEP, 5), (TAKE, 5, 5), (UNLISTEN, 5, *ADDRESS),
                     (LISTEN, 5, 0, *ADDRESS), (CONNECT, 0, *ADDRESS, *ADDRESS)):
        with link() as asked:
            assert ask(asked, *question)[1] == FAILED, question
    assert is_answered()
    settles_at(before)


def deaths():
    """Clients that end right after each step, with what they were to get under way."""
    before = descriptors()
    for question in ((HELLO,), (BIND, 7, *ADDRESS), (LIST,), (INFO, 0), (LINK,), (CONNECT, 0, *ADDRESS, *SILENT)):
        for given in (0, 1):
            for _ in range(20):
                near, far = socket.socketpair()
                with link() as asked, near, far:
                    socket.send_fds(asked, [words(version, *question)], [far.fileno()] * given)
    link().close()
    settles_at(before)
    # What is asked, and never read.
    with link() as asked:
        asked.setblocking(False)
        try:
            while True:
                asked.send(words(version, LIST))
                if select.select([], [asked], [], 1)[1] == []:
                    break
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            pass
    assert is_answered()


def lent():
    """More links over one link than anybody needs."""
    with link() as kept:
        held = []
        for _ in range(1500):
            own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            socket.send_fds(kept, [words(version, LINK)], [theirs.fileno()])
            theirs.close()
            held.append(own)
        last = held[-1]
        last.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, LIMIT)
        assert ask(last, HELLO)[1] == SERVICE
        assert is_answered()
        poll = select.poll()
        for own in held:
            poll.register(own, select.POLLIN)
        ended = len(poll.poll(0))
        assert ended > 1000, f"only {ended} have ended"


def exhausted():
    """A service without descriptors refuses, and does not leave links waiting."""
    assert is_answered()
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    # A few of the lowest numbers are left: some that the service uses lie far above.
    most = next(number for number in itertools.count() if number not in used) + 9
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, before[1]))
    held, refused = [], 0
    for _ in range(300):
        asked = link()
        try:
            found = ask(asked, HELLO)
        except (BrokenPipeError, ConnectionResetError):
            found = ()
        held.append(asked)
        refused += found == ()
    assert 0 < refused < 300, refused
    for asked in held:
        asked.close()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    assert is_answered()


def another_user():
    """A program that has become another user's has the link that it had, and not what is others'."""
    asked = link()
    listener = link()
    address, given = ask(listener, BIND, 9, *ADDRESS), (KEEP, TAKE, UNLISTEN)
    assert address[1] == 3, address
    questions = ((KEEP, 0), (TAKE, 0, 1), (UNLISTEN, 9, *address[2:]))
    assert [question[0] for question in questions] == list(given)
    child = os.fork()
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        is_refused = all(ask(asked, *question)[1:] == (FAILED, errno.EPERM) for question in questions)
        is_answered = ask(asked, HELLO)[1] == SERVICE
        os._exit(0 if is_refused and is_answered else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert ask(asked, KEEP, 0)[1:] == (FAILED, errno.ENOTCONN)


# What is made once is made.
assert is_answered()
{"several descriptors": several_descriptors, "garbage": garbage, "deaths": deaths, "lent": lent, "exhausted": exhausted,
 "another user": another_user}[scenario]()
print("well")
