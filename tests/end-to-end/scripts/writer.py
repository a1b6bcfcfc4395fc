"""A program that writes files and syncs them, and tells a journal of what it does; and what may be found after power loss.

work DIRECTORY JOURNAL SEED STEPS    does so, and compares the files with what it wrote
check DIRECTORY JOURNAL WHAT         compares the files with the journal: all that was written (whole), and no file belongs to a
                                     log any more (clean), or what was synced at least (lost)
"""

import fcntl, json, mmap, os, random, subprocess, sys

MAX_BYTES = 300_000
# Longer than the kernel's lease-break-time, 45 s.
HANG_S = 100


class TrackedFile:
    """A file as the journal has it."""

    def __init__(self, inode, names):
        self.inode, self.names = inode, names
        self.now = bytearray()  # what was written
        self.synced = None  # what was there at the last sync that returned
        self.pending = []  # writes and changes of length since that one began
        self.is_removed = False
        self.before = None  # what was there before the last thing that the journal tells of, which may not have been done

    def write(self, at, length, byte):
        if len(self.now) < at + length:
            self.now.extend(bytes(at + length - len(self.now)))
        self.now[at : at + length] = bytes([byte]) * length

    def truncate(self, length):
        del self.now[length:]
        self.now.extend(bytes(length - len(self.now)))

    def apply(self, what):
        if what["op"] == "write":
            self.write(what["at"], what["length"], what["byte"])
        else:
            self.truncate(what["length"])

    def check_whole(self, found):
        before = self.before
        if found == self.now or before is not None and is_between(found, before, self.now):
            return
        raise AssertionError(difference(found, self.now))

    def check_lost(self, found):
        lengths = [len(self.synced)]
        for what in self.pending:
            lengths.append(what["at"] + what["length"] if what["op"] == "write" else what["length"])
        shortest = min([len(self.synced)] + [what["length"] for what in self.pending if what["op"] == "truncate"])
        assert shortest <= len(found) <= max(lengths), f"{len(found)} bytes, may be {shortest} to {max(lengths)}"
        for position, byte in enumerate(found):
            if position < len(self.synced) and self.synced[position] == byte:
                continue
            is_zero = byte == 0 and (position >= len(self.synced) or any(w["op"] == "truncate" for w in self.pending))
            is_written = any(
                w["op"] == "write" and w["byte"] == byte and w["at"] <= position < w["at"] + w["length"] for w in self.pending
            )
            assert is_zero or is_written, f"byte {position} is {byte}, was {self.synced[position:position + 1].hex()} when synced"


def is_between(found, before, after):
    """Whether a change was done as far as some byte of it."""
    lengths = sorted((len(before), len(after)))
    is_either = all(byte in (before[at : at + 1] + after[at : at + 1]) for at, byte in enumerate(found))
    return lengths[0] <= len(found) <= lengths[1] and is_either


def difference(found, expected):
    at = next((at for at, (a, b) in enumerate(zip(found, expected)) if a != b), min(len(found), len(expected)))
    return f"{len(found)} bytes, wanted {len(expected)}; they differ from {at} on: {found[at:at+8].hex()} not {expected[at:at+8].hex()}"


class Worker:
    def __init__(self, directory, journal, seed):
        self.directory, self.random = directory, random.Random(seed)
        self.journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.files, self.count = [], 0
        self.source = os.path.join(directory, "source")
        with open(self.source, "wb") as source:
            source.write(b"\x07" * 100_000)
        for _ in range(3):
            self.make()

    def write_journal(self, **what):
        os.write(self.journal, (json.dumps(what) + "\n").encode())

    def make(self):
        self.count += 1
        name = f"file-{self.count}"
        file = type("File", (), {})()
        file.id, file.name, file.is_append = self.count, name, self.random.random() < 0.4
        flags = os.O_CREAT | (os.O_APPEND if file.is_append else 0) | self.random.choice([os.O_RDWR, os.O_WRONLY])
        file.fd = os.open(self.path(file), flags, 0o600)
        file.model = TrackedFile(os.fstat(file.fd).st_ino, [name])
        file.can_read = flags & os.O_ACCMODE == os.O_RDWR
        file.owes_sync = 0
        self.write_journal(op="make", file=file.id, inode=file.model.inode, name=name)
        self.files.append(file)

    def path(self, file):
        return os.path.join(self.directory, file.name)

    def record_and_apply(self, file, **what):
        """Tells what is about to be done, and does it to the model."""
        self.write_journal(file=file.id, **what)
        file.model.apply(what)

    def choose_offset(self, file, length, positioned=True):
        if file.is_append or not positioned:
            return len(file.model.now)
        return self.random.randrange(min(len(file.model.now), MAX_BYTES - length) + 1)

    def write(self, file):
        length = self.random.choice([1, 100, 511, 4096, 5000, 20_000]) + self.random.randrange(300)
        if self.random.random() < 0.03:
            length = 150_000
        byte = self.random.randrange(1, 256)
        if len(file.model.now) + length > MAX_BYTES and file.is_append:
            return self.truncate(file)
        how = self.random.choice(["write", "write", "write", "pwrite", "pwritev", "writev", "dup", "child", "sendfile", "mmap"])
        # What ends a file's part in the log is rare.
        if how in ("child", "sendfile", "mmap", "dup") and self.random.random() < 0.97:
            how = "pwrite"
        at = self.choose_offset(file, length)
        data = bytes([byte]) * length
        if how == "mmap":
            if not file.can_read or len(file.model.now) < 4096:
                return
            length = min(length, 3000)
            at = self.random.randrange(len(file.model.now) - length + 1) if not file.is_append else 0
            self.record_and_apply(file, op="write", at=at, length=length, byte=byte)
            with mmap.mmap(file.fd, len(file.model.now)) as mapped:
                mapped[at : at + length] = data[:length]
            return
        if how == "sendfile":
            at, byte, length = len(file.model.now), 7, min(length, 50_000)
            if file.is_append:
                return
            self.record_and_apply(file, op="write", at=at, length=length, byte=byte)
            os.lseek(file.fd, at, os.SEEK_SET)
            source = os.open(self.source, os.O_RDONLY)
            done = 0
            while done < length:
                done += os.sendfile(file.fd, source, done, length - done)
            return os.close(source)
        self.record_and_apply(file, op="write", at=at, length=length, byte=byte)
        if how in ("write", "writev", "dup") and not file.is_append:
            os.lseek(file.fd, at, os.SEEK_SET)
        if how == "write":
            done = os.write(file.fd, data)
        elif how == "writev":
            done = os.writev(file.fd, [data[: length // 2], data[length // 2 :]])
        elif how == "pwritev":
            done = os.pwritev(file.fd, [data[:1], data[1:]], at)
        elif how == "dup":
            other = os.dup(file.fd)
            done = os.write(other, data)
            os.close(other)
        elif how == "child":
            child = os.fork()
            if child == 0:
                os._exit(0 if os.pwrite(file.fd, data, at) == length else 1)
            assert os.waitpid(child, 0)[1] == 0
            done = length
        else:
            done = os.pwrite(file.fd, data, at)
        assert done == length, (how, done, length)

    def sync(self, file):
        self.write_journal(op="sync", file=file.id)
        self.random.choice([os.fsync, os.fdatasync])(file.fd)
        self.write_journal(op="synced", file=file.id)

    def truncate(self, file):
        length = self.random.randrange(len(file.model.now) + 1)
        self.record_and_apply(file, op="truncate", length=length)
        os.ftruncate(file.fd, length)

    def reopen(self, file):
        os.close(file.fd)
        flags = (os.O_APPEND if file.is_append else 0) | (os.O_RDWR if file.can_read else os.O_WRONLY)
        file.fd = os.open(self.path(file), flags)

    def rename(self, file):
        self.count += 1
        name = f"file-{self.count}"
        self.write_journal(op="rename", file=file.id, name=name)
        old, file.name = self.path(file), name
        os.rename(old, self.path(file))

    def remove(self, file):
        self.write_journal(op="remove", file=file.id)
        os.unlink(self.path(file))
        os.close(file.fd)
        self.files.remove(file)
        self.make()

    def read_by_another_process(self, file):
        """Somebody else looks at the file."""
        # By which the program learns that its keeper is gone: else, or where it is killed just now, the other one waits for the
        # kernel's lease-break-time.
        self.sync(file)
        fcntl.flock(file.fd, fcntl.LOCK_EX)
        fcntl.flock(file.fd, fcntl.LOCK_UN)
        found = subprocess.run(["cat", self.path(file)], stdout=subprocess.PIPE, timeout=HANG_S, check=True).stdout
        file.model.check_whole(found)

    def lock(self, file):
        fcntl.flock(file.fd, fcntl.LOCK_EX)
        os.close(file.fd)
        locked = subprocess.run(["flock", "-n", self.path(file), "true"], timeout=HANG_S)
        assert locked.returncode == 0, "closing a file releases its lock"
        flags = (os.O_APPEND if file.is_append else 0) | (os.O_RDWR if file.can_read else os.O_WRONLY)
        file.fd = os.open(self.path(file), flags)

    def step(self):
        file = self.random.choice(self.files)
        chance = self.random.random()
        if chance < 0.60:
            self.write(file)
            if self.random.random() < 0.8:
                self.sync(file)
        elif chance < 0.985:
            self.sync(file)
        else:
            self.random.choice(
                [self.truncate, self.reopen, self.rename, self.remove, self.read_by_another_process, self.lock, self.write_by_another_program, self.reopen]
            )(file)

    def write_by_another_program(self, file):
        os.set_inheritable(file.fd, True)
        length, byte, at = 700, self.random.randrange(1, 256), len(file.model.now)
        if at + length > MAX_BYTES:
            return
        self.record_and_apply(file, op="write", at=at, length=length, byte=byte)
        code = f"import os; os.lseek({file.fd}, {at}, 0); os.write({file.fd}, bytes([{byte}]) * {length})"
        subprocess.run([sys.executable, "-c", code], close_fds=False, timeout=HANG_S, check=True)
        os.set_inheritable(file.fd, False)

    def compare(self):
        for file in self.files:
            with open(self.path(file), "rb") as found:
                file.model.check_whole(found.read())


def read_journal(journal):
    files = {}
    with open(journal) as lines:
        for line in lines:
            if not line.endswith("\n"):
                break
            what = json.loads(line)
            file = files.get(what["file"])
            if what["op"] == "make":
                files[what["file"]] = TrackedFile(what["inode"], [what["name"]])
            elif what["op"] == "sync":
                file.syncing = (bytes(file.now), len(file.pending))
            elif what["op"] == "synced":
                file.synced, count = file.syncing
                del file.pending[:count]
            elif what["op"] == "rename":
                file.names.append(what["name"])
            elif what["op"] == "remove":
                file.is_removed = True
            else:
                file.before = bytes(file.now)
                file.apply(what)
                file.pending.append(what)
            last = what["file"]
    for number, file in files.items():
        if number != last:
            file.before = None
    return files


def check(directory, journal, how):
    files = read_journal(journal)
    checked = 0
    for number, file in files.items():
        if file.is_removed or how == "lost" and file.synced is None:
            continue
        existing_names = [name for name in file.names if os.path.exists(os.path.join(directory, name))]
        existing_names = [name for name in existing_names if os.stat(os.path.join(directory, name)).st_ino == file.inode]
        assert existing_names, f"file {number} is gone, it was {file.names}"
        path = os.path.join(directory, existing_names[-1])
        with open(path, "rb") as found:
            found = found.read()
        try:
            (file.check_lost if how == "lost" else file.check_whole)(found)
        except AssertionError as error:
            raise AssertionError(f"file {number} ({existing_names[-1]}): {error}")
        assert how != "clean" or "user.uncopy.log" not in os.listxattr(path), f"file {number} is still marked"
        checked += 1
    print("checked", checked)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        directory, journal, seed, steps = sys.argv[2:]
        worker = Worker(directory, journal, int(seed))
        for _ in range(int(steps)):
            worker.step()
        worker.compare()
        print("done")
    else:
        check(*sys.argv[2:])
