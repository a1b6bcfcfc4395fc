"""Programs with a log that scripts start, watch and end, and what they write."""

import hashlib, json, os, signal, subprocess, sys, time

LIMIT = 90  # seconds that anything is waited for: for hangs, on a machine whose disk others use too


# Bytes of the file that only grows: they come again after a prime number.
PERIOD = 65521
BYTES = b"".join(hashlib.blake2b(number.to_bytes(4, "big")).digest() for number in range(1024))[:PERIOD]


def stream(start, length):
    return (BYTES * (2 + length // PERIOD))[start % PERIOD :][:length]


def newest_number(journal, what):
    """The newest number of its kind in a journal."""
    try:
        with open(journal, "rb") as found:
            skipped = max(0, os.path.getsize(journal) - 400)
            found.seek(skipped)
            lines = found.read().split(b"\n")[1 if skipped else 0 : -1]
    except FileNotFoundError:
        return 0
    return max((int(line.split()[1]) for line in lines if line.startswith(what)), default=0)


def becomes_true(ready, seconds):
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
                print(f"--- {program.name}: {program.output_text()}\n{process_state(program.pid)}", file=sys.stderr)
            raise AssertionError(f"waited {LIMIT} s in vain for {what}")
        time.sleep(0.005)
    return found


def process_state(pid):
    text = ""
    for file in ("cmdline", "wchan", "syscall", "stack"):
        try:
            with open(f"/proc/{pid}/{file}") as found:
                text += f"{file}: {found.read()}\n"
        except OSError as error:
            text += f"{file}: {error}\n"
    return text


def log_syncs_or_none(uncopy, pid):
    """Syncs of a process that went by its log, so far; None: it is not under uncopy yet, or did not answer."""
    done = subprocess.run([uncopy, "stats", str(pid)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=LIMIT)
    return json.loads(done.stdout)["log_syncs"] if done.returncode == 0 else None


def log_syncs(uncopy, pid):
    """The same, none where there is no answer."""
    return log_syncs_or_none(uncopy, pid) or 0


def log_command(uncopy, mount_point):
    """How a program is run with a log that takes all files in that it can."""
    return [uncopy, "run", "--log", f"{mount_point}/log", "--log-size", "16777216", "--policy", "always", "--"]


def plain_environment():
    """What is said to the tests is unknown to programs."""
    return {name: value for name, value in os.environ.items() if not name.startswith("UNCOPY_")}


class Program:
    """A program with a log, ended with this script."""

    all = []

    def __init__(self, uncopy, mount_point, scratch, name, arguments):
        self.uncopy, self.name, self.output = uncopy, name, os.path.join(scratch, name)
        command = ["setpriv", "--pdeathsig", "KILL", *log_command(uncopy, mount_point), "/usr/bin/python3", *arguments]
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=plain_environment())
        self.pid = self.process.pid
        Program.all.append(self)

    def output_text(self):
        with open(self.output) as output:
            return output.read()

    def log_syncs(self):
        return log_syncs(self.uncopy, self.pid)

    def wait_for_log_syncs(self):
        """The same of a program that is under uncopy: an answer that a loaded machine delays is waited for."""
        found = []

        def is_answered():
            self.expect_running()
            found.append(log_syncs_or_none(self.uncopy, self.pid))
            return found[-1] is not None

        wait_for(f"{self.name} to say its counters", is_answered)
        return found[-1]

    def wait_until_logged(self, reopens=False):
        """Waits until a file of its takes part. One that others had open for long may do so only when the program has opened it again."""
        before = self.log_syncs()
        grows = lambda: self.log_syncs() > before or self.has_ended()
        if not reopens or not becomes_true(grows, 1):
            if reopens:
                self.process.send_signal(signal.SIGUSR1)
            wait_for(f"{self.name} to sync by its log", grows)
        self.expect_running()

    def has_ended(self):
        return self.process.poll() is not None

    def expect_running(self):
        assert not self.has_ended(), f"{self.name} has ended with {self.process.returncode}: {self.output_text()}"

    def end(self, how=signal.SIGTERM):
        """Ends it; what it said."""
        if not self.has_ended():
            self.process.send_signal(how)
        wait_for(f"{self.name} to end", self.has_ended)
        Program.all.remove(self)
        expected = -how if how == signal.SIGKILL else 0
        assert self.process.returncode == expected, f"{self.name} ended with {self.process.returncode}: {self.output_text()}"
        return self.output_text()


def run_disk_function(scratch, what):
    """What a function of disk.sh prints."""
    source = f'scratch_dir=$0; source "{os.path.dirname(os.path.abspath(__file__))}/disk.sh"; {what}'
    return subprocess.run(["bash", "-euc", source, scratch], stdout=subprocess.PIPE, timeout=3 * LIMIT, check=True).stdout


def keepers(scratch):
    return [int(pid) for pid in run_disk_function(scratch, "keepers").split()]


def lose_power(uncopy, mount_point, scratch, programs):
    """The power is lost, and comes back; logs are recovered. These processes wrote, and are killed."""
    all = [*programs, *keepers(scratch)]
    for pid in all:
        os.kill(pid, signal.SIGSTOP)
    run_disk_function(scratch, "copy_disk")
    for pid in all:
        os.kill(pid, signal.SIGKILL)
    for program in [program for program in Program.all if program.pid in all]:
        program.end(signal.SIGKILL)
    run_disk_function(scratch, "wait_for no_keeper; reboot_disk")
    subprocess.run([uncopy, "log", "recover", f"{mount_point}/log"], timeout=LIMIT, check=True)


def end_all():
    for program in Program.all:
        program.process.kill()
        program.process.wait()
