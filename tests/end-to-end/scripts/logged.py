"""Programs with a log that scripts start, watch and end, and what they write."""

import hashlib, json, os, signal, subprocess, sys, time

LIMIT = 90  # seconds that anything is waited for: for hangs, on a machine whose disk others use too


# Bytes of the file that only grows: they come again after a prime number.
PERIOD = 65521
BYTES = b"".join(hashlib.blake2b(number.to_bytes(4, "big")).digest() for number in range(1024))[:PERIOD]


def stream(start, length):
    return (BYTES * (2 + length // PERIOD))[start % PERIOD :][:length]


def last(journal, what):
    """The newest number of its kind in a journal."""
    try:
        with open(journal, "rb") as found:
            skipped = max(0, os.path.getsize(journal) - 400)
            found.seek(skipped)
            lines = found.read().split(b"\n")[1 if skipped else 0 : -1]
    except FileNotFoundError:
        return 0
    return max((int(line.split()[1]) for line in lines if line.startswith(what)), default=0)


def comes(ready, seconds):
    """Whether something comes true within a time."""
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def wait_for(what, ready):
    """Waits until something is true, and returns it; a hang says what is known."""
    end = time.monotonic() + LIMIT
    while not (found := ready()):
        if time.monotonic() > end:
            for program in list(Program.all):
                print(f"--- {program.name}: {program.said()}\n{known_of(program.pid)}", file=sys.stderr)
            raise AssertionError(f"waited {LIMIT} s in vain for {what}")
        time.sleep(0.005)
    return found


def known_of(pid):
    text = ""
    for file in ("cmdline", "wchan", "syscall", "stack"):
        try:
            with open(f"/proc/{pid}/{file}") as found:
                text += f"{file}: {found.read()}\n"
        except OSError as error:
            text += f"{file}: {error}\n"
    return text


def answered_log_syncs(uncopy, pid):
    """Syncs of a process that went by its log, so far; None: it is not under uncopy yet, or did not answer."""
    done = subprocess.run([uncopy, "stats", str(pid)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=LIMIT)
    return json.loads(done.stdout)["log_syncs"] if done.returncode == 0 else None


def log_syncs(uncopy, pid):
    """The same, none where there is no answer."""
    return answered_log_syncs(uncopy, pid) or 0


def with_log(uncopy, place):
    """How a program is run with a log that takes all files in that it can."""
    return [uncopy, "run", "--log", f"{place}/log", "--log-size", "16777216", "--policy", "always", "--"]


def plain_environment():
    """What is said to the tests is unknown to programs."""
    return {name: value for name, value in os.environ.items() if not name.startswith("UNCOPY_")}


class Program:
    """A program with a log, ended with this script."""

    all = []

    def __init__(self, uncopy, place, room, name, arguments):
        self.uncopy, self.name, self.output = uncopy, name, os.path.join(room, name)
        command = ["setpriv", "--pdeathsig", "KILL", *with_log(uncopy, place), "/usr/bin/python3", *arguments]
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=plain_environment())
        self.pid = self.process.pid
        Program.all.append(self)

    def said(self):
        with open(self.output) as output:
            return output.read()

    def log_syncs(self):
        return log_syncs(self.uncopy, self.pid)

    def sure_log_syncs(self):
        """The same of a program that is under uncopy: an answer that a loaded machine delays is waited for."""
        found = []

        def is_answered():
            self.expect_running()
            found.append(answered_log_syncs(self.uncopy, self.pid))
            return found[-1] is not None

        wait_for(f"{self.name} to say its counters", is_answered)
        return found[-1]

    def takes_part(self, reopens=False):
        """Waits until a file of its takes part. One that others had open for long may do so only when the program has opened it again."""
        before = self.log_syncs()
        grows = lambda: self.log_syncs() > before or self.ended()
        if not reopens or not comes(grows, 1):
            if reopens:
                self.process.send_signal(signal.SIGUSR1)
            wait_for(f"{self.name} to sync by its log", grows)
        self.expect_running()

    def ended(self):
        return self.process.poll() is not None

    def expect_running(self):
        assert not self.ended(), f"{self.name} has ended with {self.process.returncode}: {self.said()}"

    def end(self, how=signal.SIGTERM):
        """Ends it; what it said."""
        if not self.ended():
            self.process.send_signal(how)
        wait_for(f"{self.name} to end", self.ended)
        Program.all.remove(self)
        expected = -how if how == signal.SIGKILL else 0
        assert self.process.returncode == expected, f"{self.name} ended with {self.process.returncode}: {self.said()}"
        return self.said()


def disk(room, what):
    """What a function of disk.sh prints."""
    source = f'room=$0; source "{os.path.dirname(os.path.abspath(__file__))}/disk.sh"; {what}'
    return subprocess.run(["bash", "-euc", source, room], stdout=subprocess.PIPE, timeout=3 * LIMIT, check=True).stdout


def keepers(room):
    return [int(pid) for pid in disk(room, "keepers").split()]


def lose_power(uncopy, place, room, programs):
    """The power is lost, and comes back; logs are recovered. These processes wrote, and are killed."""
    all = [*programs, *keepers(room)]
    for pid in all:
        os.kill(pid, signal.SIGSTOP)
    disk(room, "copy_disk")
    for pid in all:
        os.kill(pid, signal.SIGKILL)
    for program in [program for program in Program.all if program.pid in all]:
        program.end(signal.SIGKILL)
    disk(room, "wait_for no_keeper; start_again")
    subprocess.run([uncopy, "log", "recover", f"{place}/log"], timeout=LIMIT, check=True)


def end_all():
    for program in Program.all:
        program.process.kill()
        program.process.wait()
