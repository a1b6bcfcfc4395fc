"""Processes that give up their user under root's `uncopy run --log`, and whole forged peers of its keeper.

log_peers.py begin DIRECTORY     (under uncopy run --log; starts the rest)
log_peers.py forge SOCKET DIRECTORY KEEPER     (without the library)
"""

import array, ctypes, errno, os, socket, struct, subprocess, sys, threading, time

libc = ctypes.CDLL(None, use_errno=True)
NOBODY = 65534
HELLO, WELCOME, LOG, NOT_NOW, ADOPT, ADOPTED, REFUSED, DROP = range(1, 9)
PROTOCOL = 5
MARK = "user.uncopy.log"


def capabilities():
    return libc.capset(struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", *[0] * 6))


CHANGES = {
    "setuid": lambda: libc.setuid(NOBODY),
    "seteuid": lambda: libc.seteuid(NOBODY),
    "setreuid": lambda: libc.setreuid(NOBODY, NOBODY),
    "setresuid": lambda: libc.setresuid(NOBODY, NOBODY, NOBODY),
    "setfsuid": lambda: libc.setfsuid(NOBODY),
    "setgid": lambda: libc.setgid(NOBODY),
    "setegid": lambda: libc.setegid(NOBODY),
    "setregid": lambda: libc.setregid(NOBODY, NOBODY),
    "setresgid": lambda: libc.setresgid(NOBODY, NOBODY, NOBODY),
    "setfsgid": lambda: libc.setfsgid(NOBODY),
    "setgroups": lambda: libc.setgroups(1, (ctypes.c_uint * 1)(NOBODY)),
    "initgroups": lambda: libc.initgroups(b"nobody", NOBODY),
    "capset": capabilities,
    "syscall": lambda: libc.syscall(117, NOBODY, NOBODY, NOBODY),
    "syscall of groups": lambda: libc.syscall(116, 1, (ctypes.c_uint * 1)(NOBODY)),
}


def keeper_resources(log):
    """Links with a keeper, logs, and memory that a keeper writes, of this process."""
    found = []
    # Of a process that has changed its user /proc tells only root, unless it says so (PR_SET_DUMPABLE).
    assert libc.prctl(4, 1, 0, 0, 0) == 0
    # Not by the process's own directory, of which the library shows the program's descriptors only.
    for name in os.listdir("/proc/thread-self/fd"):
        try:
            target = os.readlink(f"/proc/thread-self/fd/{name}")
        except OSError:
            continue
        if target.startswith(f"{log}/"):
            found.append(target)
        if target.startswith("socket:"):
            connection = socket.socket(fileno=int(name))
            try:
                peer = connection.getpeername()
            except OSError:
                continue
            finally:
                connection.detach()
            if isinstance(peer, str) and "/log-" in peer:
                found.append(peer)
    with open("/proc/self/maps") as maps:
        found += [line.strip() for line in maps if "uncopy-log" in line and line.split()[1].endswith("s")]
    return found


def write_and_sync(file, number):
    os.pwrite(file, b"%07d\n" % number, number * 8)
    os.fsync(file)


def is_marked(path):
    try:
        return bool(os.getxattr(path, MARK))
    except OSError as error:
        assert error.errno == errno.ENODATA, error
        return False


def wait_until_logged(file, path, number=0):
    """Syncs until the log answers: then the file has a mark."""
    end = time.monotonic() + 60
    while not is_marked(path):
        assert time.monotonic() < end, f"{path} does not come to take part"
        write_and_sync(file, number)
        number += 1
        time.sleep(0.01)
    write_and_sync(file, number)
    return number + 1


def check_changes_with_log(name, directory, log):
    """A process with a log of its own, which changes: its files are plain from then on, and have everything."""
    path = f"{directory}/{name.replace(' ', '-')}"
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    count = wait_until_logged(file, path)
    assert len(keeper_resources(log)) >= 3, f"{name}: before: {keeper_resources(log)}"
    # Another thread writes and syncs meanwhile.
    is_over, done = threading.Event(), []

    def write_until_over():
        number = count
        while not is_over.is_set():
            write_and_sync(file, number)
            number += 1
        done.append(number)

    thread = threading.Thread(target=write_until_over)
    thread.start()
    assert CHANGES[name]() in (0, -1)
    assert not keeper_resources(log), f"{name}: after: {keeper_resources(log)}"
    is_over.set()
    thread.join()
    assert not is_marked(file), f"{name}: still marked"
    write_and_sync(file, done[0])
    expected = b"".join(b"%07d\n" % number for number in range(done[0] + 1))
    assert os.pread(file, len(expected) + 1, 0) == expected, name


def check_changes_in_child(name, log):
    """A forked child has a link, and memory, of its own; it keeps neither."""
    before = keeper_resources(log)
    assert len(before) >= 2 and not any(one.startswith(log) for one in before), f"{name}: {before}"
    assert CHANGES[name]() in (0, -1)
    assert not keeper_resources(log), f"{name}: {keeper_resources(log)}"


def run_in_child(what, *arguments):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            what(*arguments)
            status = 0
        except BaseException as error:
            print(f"{what.__name__} {arguments}: {error!r}", flush=True)
        os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0, f"{what.__name__} {arguments}"


class Peer:
    """A forged one: it says what it likes."""

    def __init__(self, path):
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.connect(path)
        self.connection.settimeout(60)

    def send(self, *words, fds=()):
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.connection.sendmsg([struct.pack(f"<{len(words)}Q", *words)], control)

    def receive(self):
        data, fds, _, _ = socket.recv_fds(self.connection, 256, 4)
        return struct.unpack(f"<{len(data) // 8}Q", data), fds

    def request(self, *words, fds=()):
        self.send(*words, fds=fds)
        return self.receive()[0]

    def obtain_log(self):
        while True:
            self.send(HELLO, PROTOCOL)
            words, self.state = self.receive()
            if words[0] == WELCOME:
                words, self.log = self.receive()
                assert words == (LOG,), words
                return self
            assert words == (NOT_NOW, 0), words
            time.sleep(0.05)

    def is_ended(self):
        try:
            return self.connection.recv(256) == b""
        except ConnectionResetError:
            return True


def check_forged_peers(path, directory, keeper):
    target = f"{directory}/passwd"
    with open(target, "w") as file:
        file.write("root:x:0:0:root:/root:/bin/bash\n")
    descriptors = lambda: len(os.listdir(f"/proc/{keeper}/fd"))

    def read_only_descriptors():
        peer = Peer(path).obtain_log()
        for flags, expected in ((os.O_RDONLY, errno.EBADF), (os.O_PATH, errno.EBADF)):
            fd = os.open(target, flags)
            answer = peer.request(ADOPT, 0, fds=[fd])
            assert answer == (REFUSED, expected), answer
            os.close(fd)
        os.mkfifo(f"{directory}/fifo")
        for other in (f"{directory}/fifo", "/dev/null"):
            fd = os.open(other, os.O_RDWR)
            answer = peer.request(ADOPT, 0, fds=[fd])
            assert answer[0] == REFUSED, answer
            os.close(fd)
        assert not is_marked(target)
        # And it goes on: one that can write may have it.
        fd = os.open(target, os.O_WRONLY)
        answer = peer.request(ADOPT, 0, fds=[fd])
        assert answer == (ADOPTED, 0), answer
        assert is_marked(target)
        answer = peer.request(DROP, 0, 1)
        assert answer[0] == 11 and answer[1] == 0, answer
        assert not is_marked(target)

    def changed_later():
        # The link was made by root, and has a log; the messages that follow are another user's.
        peer = Peer(path).obtain_log()
        writable = os.open(target, os.O_RDWR)
        libc.setgid(NOBODY)
        libc.setuid(NOBODY)
        answer = peer.request(ADOPT, 0, fds=[writable])
        assert answer == (REFUSED, errno.EPERM), answer
        assert peer.is_ended()
        assert not is_marked(writable)

    def changed_before():
        peer = Peer(path)
        libc.setuid(NOBODY)
        answer = peer.request(HELLO, PROTOCOL)
        assert answer == (NOT_NOW, errno.EPERM), answer
        assert peer.is_ended()

    def several_descriptors():
        before = descriptors()
        for count in (2, 3, 50):
            peer = Peer(path)
            answer = peer.request(HELLO, PROTOCOL, fds=[0] * count)
            assert answer == (NOT_NOW, errno.EPROTO), answer
            assert peer.is_ended()
            peer.connection.close()
        peer = Peer(path).obtain_log()
        answer = peer.request(ADOPT, 0, fds=[os.open(target, os.O_RDWR)] * 2)
        assert answer == (REFUSED, errno.EPROTO), answer
        assert peer.is_ended()
        assert not is_marked(target)
        peer.connection.close()
        end = time.monotonic() + 60
        # Those of the next log come and go.
        while descriptors() > before:
            assert time.monotonic() < end, f"descriptors of the keeper: {before} before, {descriptors()} after"
            time.sleep(0.05)

    for what in (read_only_descriptors, changed_later, changed_before, several_descriptors):
        run_in_child(what)
    with open(target) as file:
        assert file.read() == "root:x:0:0:root:/root:/bin/bash\n"
    print("checked forged peers")


def check_changes(directory, log):
    for name in CHANGES:
        run_in_child(check_changes_with_log, name, directory, log)
    # With a log and a file of its own, which its children have too.
    path = f"{directory}/parent"
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    count = wait_until_logged(file, path)
    for name in CHANGES:
        run_in_child(check_changes_in_child, name, log)
    write_and_sync(file, count)
    print("checked changes", flush=True)


if sys.argv[1] == "begin":
    check_changes(*sys.argv[2:])
else:
    check_forged_peers(*sys.argv[2:])
