"""What others see of a file that takes part in a log, and what their work does to who writes it.

concurrent_readers.py UNCOPY MOUNT_POINT SCRATCH KIND SEED ROUNDS    KIND: append | over (blocks are written over) |
    nonblocking (others open by O_NONBLOCK) | held (others have it open, or by another name, for a while) |
    forked (who writes opens the file and forks, as Redis for a rewrite; the child leaves the file alone, and ends) |
    given (another program gets the descriptor, and writes, when it is asked to)
concurrent_readers.py write FILE JOURNAL KIND SEED          the program that writes, until it is ended
"""

import hashlib, mmap, os, random, signal, subprocess, sys, tarfile, time

from logged import Program, end_all, keepers, newest_number, plain_environment, stream, wait_for, log_command

# How long somebody may wait for a file that takes part, seconds.
MAX_WAIT_S = 5
BLOCK, BLOCKS = 4096, 24


def fork_child(turn, journal_fd):
    """A child that ends at once; one that lives for a while; one whose own child does."""
    if (child := os.fork()) == 0:
        if turn % 3 == 2 and os.fork() != 0:
            os._exit(0)
        os.write(journal_fd, f"child {2 * turn}\n".encode())
        time.sleep(1.5 if turn % 3 else 0)
        os.write(journal_fd, f"child {2 * turn + 1}\n".encode())
        os._exit(0)
    if turn % 3 != 1:
        os.waitpid(child, 0)


def give_to_program(turn, journal_fd, fd):
    """Another program has the file from here on: a child of fork executes it, or one of vfork."""
    command = ["/usr/bin/setpriv", "--pdeathsig", "KILL", "sleep", "3"]
    os.set_inheritable(fd, True)
    if turn % 2:
        os.posix_spawn(command[0], command, {})
    elif os.fork() == 0:
        os.execv(command[0], command)
    os.write(journal_fd, f"child {2 * turn}\n".encode())


def run_writer(path, journal, kind, seed):
    rng, at = random.Random(seed), 0
    signals, turn = [], 0
    for each in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(each, lambda number, _: signals.append(number))
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if kind != "over" else 0)
    fd = os.open(path, flags, 0o600)
    journal_fd, children = (os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in (journal, f"{journal}-children"))
    while signal.SIGTERM not in signals:
        if signals and signals[0] != signal.SIGTERM:
            # What may have been moved is opened by the number of its descriptor.
            other = os.open(f"/proc/self/fd/{fd}", flags & ~os.O_CREAT)
            os.close(fd)
            fd = other
            if signals.pop(0) == signal.SIGUSR2:
                turn += 1
                give_to_program(turn, children, fd) if kind == "given" else fork_child(turn, children)
        if kind != "over":
            length = rng.choice([8, 8, 100, 100, 511, 511, 511, 4096])
            assert os.write(fd, stream(at, length)) == length
            at += length
            number = at
        else:
            at += 1
            os.write(journal_fd, f"begun {at}\n".encode())
            assert os.pwrite(fd, at.to_bytes(8, "big") * (BLOCK // 8), at % BLOCKS * BLOCK) == BLOCK
            number = at
        rng.choice([os.fsync, os.fdatasync])(fd)
        os.write(journal_fd, f"done {number}\n".encode())


class OtherProcesses:
    def __init__(self, uncopy, mount_point, scratch, kind, seed):
        self.mount_point, self.scratch, self.rng = mount_point, scratch, random.Random(seed)
        self.kind = kind if kind in ("over", "given") else "append"
        self.path, self.journal = f"{mount_point}/data/file", f"{scratch}/journal"
        self.writer = Program(uncopy, mount_point, scratch, "writer", [__file__, "write", self.path, self.journal, self.kind, seed])

    def acknowledged(self):
        return newest_number(self.journal, b"done")

    def check(self, found, done, what):
        """What somebody found, who began to look when so much was acknowledged."""
        if self.kind != "over":
            assert len(found) >= done, f"{what}: {len(found)} bytes, {done} were acknowledged"
            assert found == stream(0, len(found)), f"{what}: other bytes than were written"
            return
        begun = newest_number(self.journal, b"begun")
        assert len(found) == min(BLOCKS, begun + 1) * BLOCK or len(found) % 8 == 0, f"{what}: {len(found)} bytes"
        for block in range(BLOCKS):
            words = found[block * BLOCK : (block + 1) * BLOCK]
            oldest = done - (done - block) % BLOCKS
            for at in range(0, len(words), 8):
                number = int.from_bytes(words[at : at + 8], "big")
                is_one = oldest <= number <= begun and number % BLOCKS == block or number == 0 and oldest <= 0
                assert is_one, f"{what}: block {block} at {at} has {number}, acknowledged is {oldest}, begun {begun}"

    def run_checked(self, *command):
        """Runs what others do; what it printed."""
        before = time.monotonic()
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=4 * MAX_WAIT_S)
        assert done.returncode == 0, f"{command}: {done.returncode} {done.stderr}"
        seconds = time.monotonic() - before
        assert seconds < MAX_WAIT_S, f"{command} took {seconds} s"
        return done.stdout

    def cat(self, done):
        self.check(self.run_checked("cat", self.path), done, "cat")

    def read_twice(self, done):
        """By one descriptor, while the writer goes on."""
        with open(self.path, "rb") as file:
            self.check(file.read(), done, "read")
            before = done = self.acknowledged()
            wait_for("the writer to go on", lambda: self.acknowledged() > before + 3)
            done = self.acknowledged()
            file.seek(0)
            self.check(file.read(), done, "read again")

    def map(self, done):
        with open(self.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            self.check(bytes(mapped), done, "mapped")

    def copy(self, done):
        copy = f"{self.mount_point}/data/copy"
        how = self.rng.choice([["cp"], ["cp", "--reflink=auto"], ["cp", "-a", "--preserve=all"], ["dd", "status=none", "bs=64k"]])
        self.run_checked(*how, *([f"if={self.path}", f"of={copy}"] if how[0] == "dd" else [self.path, copy]))
        with open(copy, "rb") as file:
            self.check(file.read(), done, " ".join(how))
        assert not os.listxattr(copy), f"{how} has copied a mark"
        os.unlink(copy)

    def archive(self, done):
        name = f"{self.scratch}/archive"
        with tarfile.open(name, "w") as archive:
            before = time.monotonic()
            archive.add(self.path, "file")
            seconds = time.monotonic() - before
            assert seconds < MAX_WAIT_S, f"archive.add took {seconds} s"
        with tarfile.open(name) as archive:
            self.check(archive.extractfile("file").read(), done, "archive")

    def stat(self, done):
        size = int(self.run_checked("stat", "-c", "%s", self.path))
        assert size >= (done if self.kind != "over" else 1), f"stat: {size} bytes, {done} were acknowledged"

    def hash(self, done):
        if self.kind == "over":
            return self.stat(done)
        found = self.run_checked("sha256sum", self.path).split()[0].decode()
        size = os.path.getsize(self.path)
        whole, hashed = stream(0, size), hashlib.sha256()
        hashed.update(whole[:done])
        # What it has hashed ends with some write, or with a page: a longer write is not seen all at once.
        with open(self.journal) as lines:
            ends = {int(line.split()[1]) for line in lines} | set(range(0, size, mmap.PAGESIZE)) | {size}
        at = done
        for end in sorted(end for end in ends if end > done):
            if hashed.hexdigest() == found:
                return
            hashed.update(whole[at:end])
            at = end
        assert hashed.hexdigest() == found, "sha256sum: no prefix has this sum"

    def rename(self, done):
        other = self.path + "-moved"
        self.run_checked("mv", self.path, other)
        before = self.acknowledged()
        wait_for("the writer to go on", lambda: self.acknowledged() > before + 3)
        done = self.acknowledged()
        self.check(self.run_checked("cat", other), done, "moved")
        self.run_checked("mv", other, self.path)

    def change(self, done):
        self.run_checked(*self.rng.choice([["chmod", "644"], ["chmod", "600"], ["touch"]]), self.path)
        link = self.path + "-link"
        self.run_checked("ln", self.path, link)
        self.check(self.run_checked("cat", link), done, "link")
        os.unlink(link)

    def lock(self, done):
        self.run_checked("flock", self.path, "cat", self.path)

    def follow(self, done):
        """tail -f, which hears of writes by inotify."""
        with open(f"{self.scratch}/followed", "wb") as output:
            tail = subprocess.Popen(["tail", "-c", "+1", "-f", self.path], stdout=output)
        try:
            before = self.acknowledged()
            wait_for("the writer to go on", lambda: self.acknowledged() > before + 5)
            done = self.acknowledged()
            wait_for("tail to follow", lambda: os.path.getsize(output.name) >= done)
        finally:
            tail.kill()
            tail.wait()
        with open(output.name, "rb") as file:
            self.check(file.read(), done, "tail -f")

    def open_nonblocking(self, rounds):
        """GNU tar opens files so, which may say EAGAIN where there is a lease, but not for long."""
        for _ in range(rounds):
            for command in (["tar", "-cf", f"{self.scratch}/archive", self.path], ["dd", "iflag=nonblock", "count=1", f"if={self.path}"]):
                self.writer.wait_until_logged(reopens=True)
                wait_for(f"{command} to open the file", lambda: self.is_opened(*command))
        self.open_beside_a_slow_keeper()

    def open_beside_a_slow_keeper(self):
        """Who has a log as well is never told EAGAIN, however long the keeper of the one who writes needs."""
        self.writer.wait_until_logged(reopens=True)
        stopped = keepers(self.scratch)
        assert stopped, "nobody keeps the log"
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            run = ["setpriv", "--pdeathsig", "KILL", *log_command(self.writer.uncopy, self.mount_point)]
            command = [*run, "dd", "status=none", "iflag=nonblock", "count=1", f"if={self.path}"]
            other = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=plain_environment())
            # Longer than a lease without a mark is waited for.
            time.sleep(3)
            assert other.poll() is None, f"{command} has not waited: {other.returncode} {other.stderr.read()}"
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        _, output = other.communicate(timeout=4 * MAX_WAIT_S)
        assert other.returncode == 0 and not output, f"{command}: {other.returncode} {output}"

    def is_opened(self, *command):
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=4 * MAX_WAIT_S)
        # It grows meanwhile.
        is_opened = done.returncode == 0 or b"file changed as we read it" in done.stderr
        assert is_opened or b"temporarily unavailable" in done.stderr, f"{command}: {done.stderr}"
        return is_opened

    def hold(self, rounds):
        """Where somebody else has it no more, a file takes part again, which the program has open all the time."""
        for _ in range(rounds):
            self.writer.wait_until_logged()
            with open(self.path, "rb"):
                before = self.acknowledged()
                wait_for("the writer to go on", lambda: self.acknowledged() > before + 10_000)
            self.writer.wait_until_logged()
            os.link(self.path, self.path + "-link")
            before = self.acknowledged()
            wait_for("the writer to go on", lambda: self.acknowledged() > before + 10_000)
            os.unlink(self.path + "-link")
        self.writer.wait_until_logged()

    def newest_child(self):
        return newest_number(f"{self.journal}-children", b"child")

    def fork(self, rounds):
        """A file that was open when its program forked takes part when no child has it any more, and not before."""
        for turn in range(1, 3 * rounds + 1):
            self.writer.wait_until_logged()
            self.writer.process.send_signal(signal.SIGUSR2)
            wait_for("a child", lambda: self.newest_child() >= 2 * turn)
            before = self.writer.wait_for_log_syncs()
            while self.newest_child() < 2 * turn + 1:
                now = self.writer.wait_for_log_syncs()
                assert now == before or self.newest_child() > 2 * turn, "it takes part while a child has it"
                self.writer.expect_running()
        self.writer.wait_until_logged()

    def give(self, rounds):
        """A file that another program has takes part no more, until its program opens it again."""
        for turn in range(1, 2 * rounds + 1):
            self.writer.wait_until_logged(reopens=True)
            self.writer.process.send_signal(signal.SIGUSR2)
            wait_for("another program", lambda: self.newest_child() >= 2 * turn)
            before = self.writer.wait_for_log_syncs()
            time.sleep(2)
            assert self.writer.wait_for_log_syncs() == before, "it takes part while another program has it"

    def check_by_every_reader(self, rounds):
        checks = [self.cat, self.read_twice, self.map, self.copy, self.copy, self.archive, self.stat, self.hash, self.rename, self.change]
        checks += [self.lock] + ([self.follow] if self.kind != "over" else [])
        for turn in range(rounds):
            if turn % len(checks) == 0:
                self.rng.shuffle(checks)
            # Each meets a file that takes part.
            self.writer.wait_until_logged(reopens=True)
            checks[turn % len(checks)](self.acknowledged())
            self.writer.expect_running()
        self.writer.wait_until_logged(reopens=True)

    def run(self, kind, rounds):
        wait_for("the writer to begin", lambda: self.acknowledged() > 0)
        {"nonblocking": self.open_nonblocking, "held": self.hold, "forked": self.fork, "given": self.give}.get(kind, self.check_by_every_reader)(rounds)
        output = self.writer.end(self.rng.choice([signal.SIGTERM, signal.SIGKILL]))
        assert "uncopy: " not in output, output
        with open(self.path, "rb") as file:
            self.check(file.read(), self.acknowledged(), "at the end")
        print("checked", rounds)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        run_writer(*sys.argv[2:])
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("asked to end"))
        others = OtherProcesses(*sys.argv[1:6])
        try:
            others.run(sys.argv[4], int(sys.argv[6]))
        finally:
            end_all()
