"""Programs with logs in one directory, each its own, and their descendants.

shared_log.py UNCOPY MOUNT_POINT SCRATCH turns SEED SECONDS     two write to one file by turns, and each to one of its own; they are killed
shared_log.py UNCOPY MOUNT_POINT SCRATCH daemon SEED SECONDS    one goes into the background with a file that takes part
    then the power is lost
"""

import fcntl, os, random, signal, sys, time

from logged import Program, becomes_true, end_all, process_state, newest_number, log_syncs, lose_power, stream, wait_for

APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND


def open_journal(path):
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def append(fd, journal_fd, rng, number):
    """Writes some records, and syncs and tells of each. Nobody else writes meanwhile."""
    for _ in range(number):
        at, length = os.fstat(fd).st_size, rng.choice([8, 100, 511, 4096])
        assert os.write(fd, stream(at, length)) == length
        rng.choice([os.fsync, os.fdatasync])(fd)
        os.write(journal_fd, f"done {at + length}\n".encode())


def check(path, journal_path, what, lost=False):
    """What is there of a file is what was written, no less than what was acknowledged when somebody began to look.

    Where the power was lost, bytes that were not may be zero: ext4 lets a length survive whose last block, which the file had before,
    was not written yet.
    """
    done = newest_number(journal_path, b"done")
    with open(path, "rb") as file:
        found = file.read()
    assert len(found) >= done, f"{what}: {len(found)} bytes, {done} were acknowledged"
    written = stream(0, len(found))
    certain_len = done if lost else len(found)
    wrong_offsets = [at for at, byte in enumerate(found) if byte != written[at] and (at < certain_len or byte)] if found != written else []
    assert not wrong_offsets, f"{what}: other bytes than were written, {len(wrong_offsets)} from {wrong_offsets[0]} on, of {len(found)}; {done} were acknowledged"


def take_turns(directory, scratch, name, seed):
    """Until it is ended, writes to the one file whenever it is its turn, and to its own."""
    rng = random.Random(seed)
    turn = os.open(f"{scratch}/turn", os.O_RDONLY | os.O_CREAT)
    shared, own, journal_path = f"{directory}/shared", f"{directory}/{name}", f"{scratch}/shared-journal"
    journal_fd, own_journal_fd = open_journal(journal_path), open_journal(f"{scratch}/{name}-journal")
    own, fd = os.open(own, APPEND), None
    while True:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if fd is None:
            fd = os.open(shared, APPEND)
        check(shared, journal_path, f"{name}'s turn")
        append(fd, journal_fd, rng, rng.randrange(1, 60))
        # With both there, the file takes part in no log.
        if rng.random() < 0.8:
            os.close(fd)
            fd = None
        fcntl.flock(turn, fcntl.LOCK_UN)
        append(own, own_journal_fd, rng, rng.randrange(1, 30))


def turns(uncopy, mount_point, scratch, seed, seconds):
    rng, directory = random.Random(seed), f"{mount_point}/data"
    programs = {}

    def start(name):
        programs[name] = Program(uncopy, mount_point, scratch, name, [__file__, "take-turns", directory, scratch, name, str(rng.random())])

    start("one")
    start("other")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        # A moment at which one is killed; the other goes on.
        killed, survivor = rng.sample(sorted(programs), 2)
        becomes_true(programs[killed].has_ended, rng.random())
        programs[killed].wait_until_logged()
        programs[killed].expect_running()
        programs[killed].end(signal.SIGKILL)
        before = [newest_number(f"{scratch}/{name}-journal", b"done") for name in ("shared", survivor)]
        programs[survivor].wait_until_logged()
        has_progressed = lambda: all(newest_number(f"{scratch}/{name}-journal", b"done") > at for name, at in zip(("shared", survivor), before))
        wait_for(f"{survivor} to go on", lambda: has_progressed() or programs[survivor].has_ended())
        programs[survivor].expect_running()
        check(f"{directory}/{killed}", f"{scratch}/{killed}-journal", "the file of the one that was killed")
        start(killed)
        programs[killed].wait_until_logged()
    for program in programs.values():
        program.expect_running()
    lose_power(uncopy, mount_point, scratch, [program.pid for program in programs.values()])
    for name in ("shared", *programs):
        check(f"{directory}/{name}", f"{scratch}/{name}-journal", f"{name}, after the loss of power", lost=True)
    print("checked", newest_number(f"{scratch}/shared-journal", b"done"))


def become_daemon(directory, scratch, seed):
    """Writes to a file that takes part, goes into the background, and goes on with that file and another one."""
    rng = random.Random(seed)
    fd, journal_fd = os.open(f"{directory}/first", APPEND), open_journal(f"{scratch}/first-journal")
    append(fd, journal_fd, rng, 100)
    # How long it takes until there is a log depends on the machine.
    while log_syncs(UNCOPY, os.getpid()) == 0:
        append(fd, journal_fd, rng, 100)
    facts = open_journal(f"{scratch}/facts")
    # By a record that was not synced when it forks, too.
    at = os.fstat(fd).st_size
    os.write(fd, stream(at, 700))
    pipe_reader, pipe_writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.close(pipe_writer)
            assert os.read(pipe_reader, 1) == b""
            os.write(facts, f"daemon {os.getpid()}\n".encode())
            write_until_killed(directory, scratch, rng, fd, journal_fd)
        os._exit(0)
    if rng.random() < 0.5:
        append(fd, journal_fd, rng, rng.randrange(1, 20))
    os._exit(0)


def write_until_killed(directory, scratch, rng, fd, journal_fd):
    # Nobody may be left who ends it.
    signal.alarm(90)
    second, second_journal_fd = os.open(f"{directory}/second", APPEND), open_journal(f"{scratch}/second-journal")
    while True:
        append(fd, journal_fd, rng, rng.randrange(1, 10))
        append(second, second_journal_fd, rng, rng.randrange(1, 10))
        if rng.random() < 0.02:
            os.close(fd)
            fd = os.open(f"{directory}/first", APPEND)


def daemon(uncopy, mount_point, scratch, seed, seconds):
    rng, directory, journal_path = random.Random(seed), f"{mount_point}/data", f"{scratch}/first-journal"
    first = Program(uncopy, mount_point, scratch, "first", [__file__, "be-daemon", uncopy, directory, scratch, seed])
    wait_for("the first process to take part, and end", first.has_ended)
    first.end()
    pid = wait_for("the daemon", lambda: newest_number(f"{scratch}/facts", b"daemon"))
    try:
        # Longer than a keeper waits for a first process.
        end = time.monotonic() + seconds
        second = f"{scratch}/second-journal"
        while time.monotonic() < end:
            before = [newest_number(journal_path, b"done"), newest_number(second, b"done")]
            has_progressed = lambda: newest_number(journal_path, b"done") > before[0] and newest_number(second, b"done") > before[1]
            assert becomes_true(has_progressed, 20), f"the daemon does not go on: {first.output_text()}\n{process_state(pid)}"
            for name in rng.sample(("first", "second"), rng.randrange(2)):
                check(f"{directory}/{name}", f"{scratch}/{name}-journal", f"{name}, meanwhile")
            time.sleep(0.2)
        wait_for("the daemon to sync by a log of its own", lambda: log_syncs(uncopy, pid) > 0)
        lose_power(uncopy, mount_point, scratch, [pid])
    finally:
        if os.path.exists(f"/proc/{pid}"):
            os.kill(pid, signal.SIGKILL)
    check(f"{directory}/first", journal_path, "first, after the loss of power", lost=True)
    check(f"{directory}/second", second, "second, after the loss of power", lost=True)
    print("checked", newest_number(journal_path, b"done"))


if __name__ == "__main__":
    if sys.argv[1] == "take-turns":
        take_turns(*sys.argv[2:])
    elif sys.argv[1] == "be-daemon":
        UNCOPY = sys.argv[2]
        become_daemon(*sys.argv[3:])
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("asked to end"))
        uncopy, mount_point, scratch, kind, seed, seconds = sys.argv[1:]
        try:
            {"turns": turns, "daemon": daemon}[kind](uncopy, mount_point, scratch, seed, float(seconds))
        finally:
            end_all()
