"""Transactions for servers and for SQLite, which are acknowledged in a journal, and what may be found after whatever was killed.

work APP LOCATION JOURNAL SEED [MODE]    compares what is there, says so, then makes transactions until it, or what it talks to, is ended
check APP LOCATION JOURNAL SEED [MODE]   compares what is there with the transactions, as many as it says itself
    APP: redis (LOCATION: its socket), sqlite (LOCATION: its file; MODE: wal, or how its journal ends), postgresql (LOCATION: where its socket is)

Transaction number n follows from SEED and n, and writes n itself too: what is there is what the first n have made, for an n that is
no less than the last acknowledged one and no more than the last that was begun.
"""

import os, random, signal, socket, sqlite3, subprocess, sys

KEYS = 40
PSQL = ["/usr/lib/postgresql/15/bin/psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "tester", "-d", "postgres"]


def transaction_changes(seed, number):
    """What a transaction makes of some keys; None: nothing is there."""
    rng = random.Random(f"{seed}/{number}")
    changes = {}
    for _ in range(rng.randrange(1, 4)):
        length = rng.choice([10, 10, 100, 100, 1000, 8000])
        key = rng.randrange(KEYS)
        changes[key] = None if rng.random() < 0.1 else (f"{number}.{key} " * length)[:length]
    return changes


def expected_values(seed, number):
    values = {}
    for each in range(1, number + 1):
        values.update(transaction_changes(seed, each))
    return {key: value for key, value in values.items() if value is not None}


class Ended(Exception):
    """The server was ended."""


class Redis:
    MAX_UNANSWERED = 4

    def __init__(self, location, mode):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(location)
        self.input = self.socket.makefile("rb")
        self.answer_counts = []  # how many each transaction has that was not answered yet

    def send(self, *commands):
        parts = []
        for words in commands:
            parts.append(b"*%d\r\n" % len(words))
            parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in (str(word).encode() for word in words)]
        try:
            self.socket.sendall(b"".join(parts))
        except (BrokenPipeError, ConnectionResetError):
            raise Ended

    def read_answer(self):
        try:
            line = self.input.readline()
        except ConnectionResetError:
            raise Ended
        if not line.endswith(b"\n"):
            raise Ended
        kind, rest = line[:1], line[1:-2]
        assert kind != b"-", line
        if kind == b"*":
            return [self.read_answer() for _ in range(int(rest))]
        if kind == b"$" and rest != b"-1":
            value = self.input.read(int(rest) + 2)
            if len(value) < int(rest) + 2:
                raise Ended
            return value[:-2].decode()
        return None if kind == b"$" else rest

    def read(self):
        self.send(["KEYS", "*"])
        keys = self.read_answer()
        self.send(*(["GET", key] for key in keys))
        values = {key: self.read_answer() for key in keys}
        number = int(values.pop("number", 0))
        return number, {int(key): value for key, value in values.items()}

    def begin(self, number, changes):
        each = [["DEL", key] if value is None else ["SET", key, value] for key, value in changes.items()]
        self.send(["MULTI"], *each, ["SET", "number", number], ["EXEC"])
        self.answer_counts.append(len(each) + 2)

    def finish(self):
        for _ in range(self.answer_counts.pop(0)):
            self.read_answer()
        assert isinstance(self.read_answer(), list), "EXEC was refused"


class Sqlite:
    MAX_UNANSWERED = 1

    def __init__(self, location, mode):
        self.location, self.mode, self.count = location, mode, 0
        self.open()

    def open(self):
        self.database = sqlite3.connect(self.location, isolation_level=None, timeout=60)
        mode = self.database.execute(f"PRAGMA journal_mode={self.mode}").fetchone()[0]
        assert mode == self.mode, mode
        # That a journal is gone survives only by EXTRA.
        self.database.execute("PRAGMA synchronous=" + ("EXTRA" if self.mode == "delete" else "FULL"))
        self.database.execute("PRAGMA wal_autocheckpoint=100")
        self.database.execute("CREATE TABLE IF NOT EXISTS held (key INTEGER PRIMARY KEY, value TEXT)")

    def read(self):
        found = self.database.execute("PRAGMA integrity_check").fetchall()
        assert found == [("ok",)], found
        values = dict(self.database.execute("SELECT key, value FROM held"))
        return int(values.pop(-1, 0)), values

    def begin(self, number, changes):
        self.database.execute("BEGIN IMMEDIATE")
        for key, value in [*changes.items(), (-1, str(number))]:
            if value is None:
                self.database.execute("DELETE FROM held WHERE key = ?", (key,))
            else:
                self.database.execute("INSERT OR REPLACE INTO held VALUES (?, ?)", (key, value))
        self.database.execute("COMMIT")

    def finish(self):
        self.count += 1
        if self.count % 500 == 0:
            # The last connection that is closed removes the log of a database.
            self.database.close()
            self.open()


class Postgresql:
    MAX_UNANSWERED = 1

    def __init__(self, location, mode):
        self.psql = subprocess.Popen([*PSQL, "-h", location], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.query("SET client_min_messages = warning; CREATE TABLE IF NOT EXISTS held (key int PRIMARY KEY, value text);")

    def send(self, text):
        try:
            self.psql.stdin.write(text.encode() + b"\n\\echo done\n")
            self.psql.stdin.flush()
        except BrokenPipeError:
            self.end()

    def lines(self):
        found = []
        while (line := self.psql.stdout.readline()) != b"done\n":
            if not line.endswith(b"\n"):
                self.end()
            found.append(line[:-1].decode())
        return found

    def end(self):
        """psql has ended: by the server's end, not by an error of a command."""
        errors = self.psql.stderr.read().decode()
        assert "ERROR" not in errors, errors
        raise Ended

    def query(self, text):
        self.send(text)
        return self.lines()

    def read(self):
        values = dict(line.split("|", 1) for line in self.query("SELECT key, value FROM held;"))
        indexed = self.query("SET enable_seqscan = off; SELECT key FROM held ORDER BY key; RESET enable_seqscan;")
        assert indexed == sorted(values, key=int), indexed
        values = {int(key): value for key, value in values.items()}
        return int(values.pop(-1, 0)), values

    def begin(self, number, changes):
        lines = ["BEGIN;"]
        for key, value in [*changes.items(), (-1, str(number))]:
            if value is None:
                lines.append(f"DELETE FROM held WHERE key = {key};")
            else:
                lines.append(f"INSERT INTO held VALUES ({key}, '{value}') ON CONFLICT (key) DO UPDATE SET value = '{value}';")
        self.send("\n".join(lines) + "\nCOMMIT;")

    def finish(self):
        self.lines()


def read_journal(journal):
    """The last transaction that was acknowledged, and the last that was begun."""
    done = begun = 0
    if os.path.exists(journal):
        with open(journal) as lines:
            for line in lines:
                what, number = line.split()
                if what == "done":
                    done = max(done, int(number))
                begun = max(begun, int(number))
    return done, begun


def compare(app, journal, seed):
    """What is there, with the journal; how many transactions have made it."""
    done, begun = read_journal(journal)
    number, found = app.read()
    assert done <= number <= begun, f"{number} transactions are there, {done} were acknowledged, {begun} begun"
    expected = expected_values(seed, number)
    for key in sorted(found.keys() | expected.keys()):
        assert found.get(key) == expected.get(key), f"key {key} after {number}: {found.get(key)!r:.99}, not {expected.get(key)!r:.99}"
    print(f"checked {number}", flush=True)
    return number


def work(app, journal, seed, number):
    journal_fd = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    rng, unanswered = random.Random(f"{seed}+{number}"), []
    while True:
        while len(unanswered) < rng.randint(1, app.MAX_UNANSWERED):
            number += 1
            os.write(journal_fd, f"begun {number}\n".encode())
            app.begin(number, transaction_changes(seed, number))
            unanswered.append(number)
        app.finish()
        os.write(journal_fd, f"done {unanswered.pop(0)}\n".encode())


if __name__ == "__main__":
    how, kind, location, journal, seed, *mode = sys.argv[1:]

    def end(*_):
        raise Ended

    signal.signal(signal.SIGINT, end)
    try:
        app = {"redis": Redis, "sqlite": Sqlite, "postgresql": Postgresql}[kind](location, *(mode or [""]))
        number = compare(app, journal, seed)
        if how == "work":
            work(app, journal, seed, number)
    except Ended:
        if how == "check":
            sys.exit("the server has ended")
