"""Programs with logs in one directory, each its own, and their descendants.

mates.py UNCOPY PLACE ROOM turns SEED SECONDS     two write to one file by turns, and each to one of its own; they are killed
mates.py UNCOPY PLACE ROOM daemon SEED SECONDS    one goes into the background with a file that takes part
    then the power is lost
"""

import fcntl, os, random, signal, sys, time

from logged import Program, comes, end_all, known_of, last, log_syncs, lose_power, stream, wait_for

APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND


def journal(path):
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def append(fd, tell, chance, number):
    """Writes some records, and syncs and tells of each. Nobody else writes meanwhile."""
    for _ in range(number):
        at, length = os.fstat(fd).st_size, chance.choice([8, 100, 511, 4096])
        assert os.write(fd, stream(at, length)) == length
        chance.choice([os.fsync, os.fdatasync])(fd)
        os.write(tell, f"done {at + length}\n".encode())


def check(path, told, what, lost=False):
    """What is there of a file is what was written, no less than what was acknowledged when somebody began to look.

    Where the power was lost, bytes that were not may be zero: ext4 lets a length survive whose last block, which the file had before,
    was not written yet.
    """
    done = last(told, b"done")
    with open(path, "rb") as file:
        found = file.read()
    assert len(found) >= done, f"{what}: {len(found)} bytes, {done} were acknowledged"
    written = stream(0, len(found))
    sure = done if lost else len(found)
    wrong = [at for at, byte in enumerate(found) if byte != written[at] and (at < sure or byte)] if found != written else []
    assert not wrong, f"{what}: other bytes than were written, {len(wrong)} from {wrong[0]} on, of {len(found)}; {done} were acknowledged"


def take_turns(directory, room, name, seed):
    """Until it is ended, writes to the one file whenever it is its turn, and to its own."""
    chance = random.Random(seed)
    turn = os.open(f"{room}/turn", os.O_RDONLY | os.O_CREAT)
    shared, own, told = f"{directory}/shared", f"{directory}/{name}", f"{room}/shared-journal"
    tell, tell_own = journal(told), journal(f"{room}/{name}-journal")
    own, fd = os.open(own, APPEND), None
    while True:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if fd is None:
            fd = os.open(shared, APPEND)
        check(shared, told, f"{name}'s turn")
        append(fd, tell, chance, chance.randrange(1, 60))
        # With both there, the file takes part in no log.
        if chance.random() < 0.8:
            os.close(fd)
            fd = None
        fcntl.flock(turn, fcntl.LOCK_UN)
        append(own, tell_own, chance, chance.randrange(1, 30))


def turns(uncopy, place, room, seed, seconds):
    chance, directory = random.Random(seed), f"{place}/data"
    both = {}

    def start(name):
        both[name] = Program(uncopy, place, room, name, [__file__, "take-turns", directory, room, name, str(chance.random())])

    start("one")
    start("other")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        # A moment at which one is killed; the other goes on.
        killed, left = chance.sample(sorted(both), 2)
        comes(both[killed].ended, chance.random())
        both[killed].takes_part()
        both[killed].expect_running()
        both[killed].end(signal.SIGKILL)
        before = [last(f"{room}/{told}-journal", b"done") for told in ("shared", left)]
        both[left].takes_part()
        gone_on = lambda: all(last(f"{room}/{told}-journal", b"done") > at for told, at in zip(("shared", left), before))
        wait_for(f"{left} to go on", lambda: gone_on() or both[left].ended())
        both[left].expect_running()
        check(f"{directory}/{killed}", f"{room}/{killed}-journal", "the file of the one that was killed")
        start(killed)
        both[killed].takes_part()
    for program in both.values():
        program.expect_running()
    lose_power(uncopy, place, room, [program.pid for program in both.values()])
    for name in ("shared", *both):
        check(f"{directory}/{name}", f"{room}/{name}-journal", f"{name}, after the loss of power", lost=True)
    print("checked", last(f"{room}/shared-journal", b"done"))


def be_daemon(directory, room, seed):
    """Writes to a file that takes part, goes into the background, and goes on with that file and another one."""
    chance = random.Random(seed)
    fd, tell = os.open(f"{directory}/first", APPEND), journal(f"{room}/first-journal")
    append(fd, tell, chance, 100)
    # How long it takes until there is a log depends on the machine.
    while log_syncs(UNCOPY, os.getpid()) == 0:
        append(fd, tell, chance, 100)
    facts = journal(f"{room}/facts")
    # By a record that was not synced when it forks, too.
    at = os.fstat(fd).st_size
    os.write(fd, stream(at, 700))
    last_word, is_told = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.close(is_told)
            assert os.read(last_word, 1) == b""
            os.write(facts, f"daemon {os.getpid()}\n".encode())
            go_on(directory, room, chance, fd, tell)
        os._exit(0)
    if chance.random() < 0.5:
        append(fd, tell, chance, chance.randrange(1, 20))
    os._exit(0)


def go_on(directory, room, chance, fd, tell):
    # Nobody may be left who ends it.
    signal.alarm(90)
    second, tell_second = os.open(f"{directory}/second", APPEND), journal(f"{room}/second-journal")
    while True:
        append(fd, tell, chance, chance.randrange(1, 10))
        append(second, tell_second, chance, chance.randrange(1, 10))
        if chance.random() < 0.02:
            os.close(fd)
            fd = os.open(f"{directory}/first", APPEND)


def daemon(uncopy, place, room, seed, seconds):
    chance, directory, told = random.Random(seed), f"{place}/data", f"{room}/first-journal"
    first = Program(uncopy, place, room, "first", [__file__, "be-daemon", uncopy, directory, room, seed])
    wait_for("the first process to take part, and end", first.ended)
    first.end()
    pid = wait_for("the daemon", lambda: last(f"{room}/facts", b"daemon"))
    try:
        # Longer than a keeper waits for a first process.
        end = time.monotonic() + seconds
        second = f"{room}/second-journal"
        while time.monotonic() < end:
            before = [last(told, b"done"), last(second, b"done")]
            moved = lambda: last(told, b"done") > before[0] and last(second, b"done") > before[1]
            assert comes(moved, 20), f"the daemon does not go on: {first.said()}\n{known_of(pid)}"
            for name in chance.sample(("first", "second"), chance.randrange(2)):
                check(f"{directory}/{name}", f"{room}/{name}-journal", f"{name}, meanwhile")
            time.sleep(0.2)
        wait_for("the daemon to sync by a log of its own", lambda: log_syncs(uncopy, pid) > 0)
        lose_power(uncopy, place, room, [pid])
    finally:
        if os.path.exists(f"/proc/{pid}"):
            os.kill(pid, signal.SIGKILL)
    check(f"{directory}/first", told, "first, after the loss of power", lost=True)
    check(f"{directory}/second", second, "second, after the loss of power", lost=True)
    print("checked", last(told, b"done"))


if __name__ == "__main__":
    if sys.argv[1] == "take-turns":
        take_turns(*sys.argv[2:])
    elif sys.argv[1] == "be-daemon":
        UNCOPY = sys.argv[2]
        be_daemon(*sys.argv[3:])
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("asked to end"))
        uncopy, place, room, kind, seed, seconds = sys.argv[1:]
        try:
            {"turns": turns, "daemon": daemon}[kind](uncopy, place, room, seed, float(seconds))
        finally:
            end_all()
