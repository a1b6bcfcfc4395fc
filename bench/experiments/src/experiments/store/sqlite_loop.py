"""Writes rows to a table in SQLite's WAL mode, one per transaction, each synced (synchronous=FULL).

It executes requests that arrive over the socket "control" in its working directory: "load NS" writes rows for NS
nanoseconds, "verify 0" reads and compares all rows.

Usage: sqlite_loop.py ROW-BYTES
"""

import collections
import random
import socket
import sqlite3
import sys
import time

# Number of rows, after which the first rows are overwritten.
ROWS = 65_536


class Table:
    def __init__(self, row_bytes):
        self.row = random.Random(1).randbytes(row_bytes - 8)
        self.written = 0
        self.database = sqlite3.connect("database", isolation_level=None)
        mode = self.database.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != ("wal",):
            raise OSError(f"the journal's mode is {mode}")
        self.database.execute("PRAGMA synchronous = FULL")
        self.database.execute("CREATE TABLE rows (key INTEGER PRIMARY KEY, value BLOB NOT NULL)")

    def value(self, number):
        return number.to_bytes(8, "little") + self.row

    def load(self, ns):
        """Writes rows for `ns` nanoseconds; the answer contains the latency of each row, to the microsecond."""
        first, latencies = self.written, collections.Counter()
        begin = now = time.monotonic_ns()
        while now - begin < ns or self.written == first:
            row = (self.written % ROWS, self.value(self.written))
            sent = time.monotonic_ns()
            self.database.execute("INSERT OR REPLACE INTO rows VALUES (?, ?)", row)
            now = time.monotonic_ns()
            latencies[(now - sent) // 1000 * 1000] += 1
            self.written += 1
        numbers = [str(self.written - first), "0", str(now - begin)]
        return " ".join(numbers + [f"{ns}:{count}" for ns, count in latencies.items()])

    def verify(self):
        """Compares every row with the last one that was written to its key."""
        rows = self.database.execute("SELECT key, value FROM rows").fetchall()
        last = self.written - 1
        for key, value in rows:
            if value != self.value(last - (last - key) % ROWS):
                raise ValueError(f"wrong row {key}")
        if len(rows) != min(self.written, ROWS):
            raise ValueError(f"there are {len(rows)} rows after {self.written} were written")
        return f"0 {sum(len(value) for _, value in rows)} 0"

    def answer(self, verb, number):
        try:
            if verb == "load":
                return self.load(int(number))
            return self.verify() if verb == "verify" else "0 0 0"
        except (sqlite3.Error, ValueError) as error:
            return f"failed: {error}"


def main():
    table = Table(int(sys.argv[1]))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("control")
        listener.listen()
        print("ready", flush=True)
        control, _ = listener.accept()
    with control, control.makefile() as requests:
        for request in requests:
            control.sendall((table.answer(*request.split()) + "\n").encode())
    table.database.close()


main()
