"""Transactions for servers and for SQLite, which are acknowledged in a journal, and what may be found after whatever was killed.

work APP PLACE JOURNAL SEED [MODE]    compares what is there, says so, then makes transactions until it, or what it talks to, is ended
check APP PLACE JOURNAL SEED [MODE]   compares what is there with the transactions, as many as it says itself
    APP: redis (PLACE: its socket), sqlite (PLACE: its file; MODE: wal, or how its journal ends), postgresql (PLACE: where its socket is)

Transaction number n follows from SEED and n, and writes n itself too: what is there is what the first n have made, for an n that is
no less than the last acknowledged one and no more than the last that was begun.
"""

import os, random, signal, socket, sqlite3, subprocess, sys

KEYS = 40
PSQL = ["/usr/lib/postgresql/15/bin/psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "tester", "-d", "postgres"]


def changes(seed, number):
    """What a transaction makes of some keys; None: nothing is there."""
    chance = random.Random(f"{seed}/{number}")
    made = {}
    for _ in range(chance.randrange(1, 4)):
        length = chance.choice([10, 10, 100, 100, 1000, 8000])
        key = chance.randrange(KEYS)
        made[key] = None if chance.random() < 0.1 else (f"{number}.{key} " * length)[:length]
    return made


def state(seed, number):
    held = {}
    for each in range(1, number + 1):
        held.update(changes(seed, each))
    return {key: value for key, value in held.items() if value is not None}


class Ended(Exception):
    """The server was ended."""


class Redis:
    WINDOW = 4

    def __init__(self, place, mode):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(place)
        self.input = self.socket.makefile("rb")
        self.answers = []  # how many each transaction has that was not answered yet

    def send(self, *commands):
        parts = []
        for words in commands:
            parts.append(b"*%d\r\n" % len(words))
            parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in (str(word).encode() for word in words)]
        try:
            self.socket.sendall(b"".join(parts))
        except (BrokenPipeError, ConnectionResetError):
            raise Ended

    def answer(self):
        try:
            line = self.input.readline()
        except ConnectionResetError:
            raise Ended
        if not line.endswith(b"\n"):
            raise Ended
        kind, rest = line[:1], line[1:-2]
        assert kind != b"-", line
        if kind == b"*":
            return [self.answer() for _ in range(int(rest))]
        if kind == b"$" and rest != b"-1":
            value = self.input.read(int(rest) + 2)
            if len(value) < int(rest) + 2:
                raise Ended
            return value[:-2].decode()
        return None if kind == b"$" else rest

    def read(self):
        self.send(["KEYS", "*"])
        keys = self.answer()
        self.send(*(["GET", key] for key in keys))
        held = {key: self.answer() for key in keys}
        number = int(held.pop("number", 0))
        return number, {int(key): value for key, value in held.items()}

    def begin(self, number, made):
        each = [["DEL", key] if value is None else ["SET", key, value] for key, value in made.items()]
        self.send(["MULTI"], *each, ["SET", "number", number], ["EXEC"])
        self.answers.append(len(each) + 2)

    def finish(self):
        for _ in range(self.answers.pop(0)):
            self.answer()
        assert isinstance(self.answer(), list), "EXEC was refused"


class Sqlite:
    WINDOW = 1

    def __init__(self, place, mode):
        self.place, self.mode, self.count = place, mode, 0
        self.open()

    def open(self):
        self.base = sqlite3.connect(self.place, isolation_level=None, timeout=60)
        mode = self.base.execute(f"PRAGMA journal_mode={self.mode}").fetchone()[0]
        assert mode == self.mode, mode
        # That a journal is gone survives only by EXTRA.
        self.base.execute("PRAGMA synchronous=" + ("EXTRA" if self.mode == "delete" else "FULL"))
        self.base.execute("PRAGMA wal_autocheckpoint=100")
        self.base.execute("CREATE TABLE IF NOT EXISTS held (key INTEGER PRIMARY KEY, value TEXT)")

    def read(self):
        found = self.base.execute("PRAGMA integrity_check").fetchall()
        assert found == [("ok",)], found
        held = dict(self.base.execute("SELECT key, value FROM held"))
        return int(held.pop(-1, 0)), held

    def begin(self, number, made):
        self.base.execute("BEGIN IMMEDIATE")
        for key, value in [*made.items(), (-1, str(number))]:
            if value is None:
                self.base.execute("DELETE FROM held WHERE key = ?", (key,))
            else:
                self.base.execute("INSERT OR REPLACE INTO held VALUES (?, ?)", (key, value))
        self.base.execute("COMMIT")

    def finish(self):
        self.count += 1
        if self.count % 500 == 0:
            # The last connection that is closed removes the log of a database.
            self.base.close()
            self.open()


class Postgresql:
    WINDOW = 1

    def __init__(self, place, mode):
        self.psql = subprocess.Popen([*PSQL, "-h", place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.ask("SET client_min_messages = warning; CREATE TABLE IF NOT EXISTS held (key int PRIMARY KEY, value text);")

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
        said = self.psql.stderr.read().decode()
        assert "ERROR" not in said, said
        raise Ended

    def ask(self, text):
        self.send(text)
        return self.lines()

    def read(self):
        held = dict(line.split("|", 1) for line in self.ask("SELECT key, value FROM held;"))
        indexed = self.ask("SET enable_seqscan = off; SELECT key FROM held ORDER BY key; RESET enable_seqscan;")
        assert indexed == sorted(held, key=int), indexed
        held = {int(key): value for key, value in held.items()}
        return int(held.pop(-1, 0)), held

    def begin(self, number, made):
        lines = ["BEGIN;"]
        for key, value in [*made.items(), (-1, str(number))]:
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
    wanted = state(seed, number)
    for key in sorted(found.keys() | wanted.keys()):
        assert found.get(key) == wanted.get(key), f"key {key} after {number}: {found.get(key)!r:.99}, not {wanted.get(key)!r:.99}"
    print(f"checked {number}", flush=True)
    return number


def work(app, journal, seed, number):
    tell = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    chance, unanswered = random.Random(f"{seed}+{number}"), []
    while True:
        while len(unanswered) < chance.randint(1, app.WINDOW):
            number += 1
            os.write(tell, f"begun {number}\n".encode())
            app.begin(number, changes(seed, number))
            unanswered.append(number)
        app.finish()
        os.write(tell, f"done {unanswered.pop(0)}\n".encode())


if __name__ == "__main__":
    how, kind, place, journal, seed, *mode = sys.argv[1:]

    def end(*_):
        raise Ended

    signal.signal(signal.SIGINT, end)
    try:
        app = {"redis": Redis, "sqlite": Sqlite, "postgresql": Postgresql}[kind](place, *(mode or [""]))
        number = compare(app, journal, seed)
        if how == "work":
            work(app, journal, seed, number)
    except Ended:
        if how == "check":
            sys.exit("the server has ended")
