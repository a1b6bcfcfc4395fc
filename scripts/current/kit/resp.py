"""Load for Redis and Valkey: large values by several connections, every byte of every answer checked or digested.

Usage: resp.py [--threads N] [--rounds N] [--migrate PORT] PORT
Prints digests of what is stored at the end. Keys belong to threads, so the order of threads does not matter.
"""

import argparse
import hashlib
import random
import socket
import sys
import threading

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=4)
parser.add_argument("--rounds", type=int, default=40)
parser.add_argument("--migrate", type=int)
parser.add_argument("port", type=int)
options = parser.parse_args()
SIZES = [100, 40_000, 65_536, 131_072, 262_144, 1_000_003, 3 << 20]
faults = []


class Connection:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 120)
        self.file = self.socket.makefile("rb", 1 << 18)

    def send(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))

    def answer(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            length = int(rest)
            return None if length < 0 else self.file.read(length + 2)[:-2]
        if kind in b"*%~":
            return [self.answer() for _ in range(int(rest))]
        if kind == b":":
            return int(rest)
        if kind in b"+-" and line:
            return kind + rest
        raise EOFError(f"answer {line!r}")

    def __call__(self, *words):
        self.send(*words)
        return self.answer()


def expect(what, got, wanted):
    if got != wanted:
        lengths = [len(value) if isinstance(value, bytes) else value for value in (got, wanted)]
        raise ValueError(f"{what}: wrong: {lengths}, {got[:60] if isinstance(got, bytes) else got!r}")


def work(number):
    source, mirror = random.Random(number), {}
    try:
        connection = Connection(options.port)
        for step in range(options.rounds):
            key = f"k{number}-{source.randrange(6)}"
            size = source.choice(SIZES)
            what = source.choice(["set", "set", "append", "setrange", "get", "get", "getrange", "pipeline", "copy", "hash", "del"])
            value = mirror.get(key, b"")
            new = source.randbytes(size)
            if what == "set":
                expect(what, connection("SET", key, new), b"+OK")
                mirror[key] = new
            elif what == "append" and len(value) < 8 << 20:
                expect(what, connection("APPEND", key, new), len(value + new))
                mirror[key] = value + new
            elif what == "setrange" and len(value) > 100:
                at = source.randrange(len(value))
                mirror[key] = value[:at] + new + value[at + len(new):]
                expect(what, connection("SETRANGE", key, at, new), len(mirror[key]))
            elif what == "getrange" and value:
                at, end = sorted((source.randrange(len(value)), source.randrange(len(value))))
                expect(what, connection("GETRANGE", key, at, end), value[at:end + 1])
            elif what == "pipeline":
                for part in range(4):
                    connection.send("SET", f"{key}-{part}", new)
                for part in range(4):
                    connection.send("GET", f"{key}-{part}")
                for part in range(4):
                    expect(what, connection.answer(), b"+OK")
                for part in range(4):
                    expect(what, connection.answer(), new)
                    mirror[f"{key}-{part}"] = new
            elif what == "copy" and value and not options.migrate:
                expect(what, connection("COPY", key, f"{key}-0", "REPLACE"), 1)
                mirror[f"{key}-0"] = value
            elif what == "hash":
                connection("HSET", f"h{number}", step, new)
                expect(what, connection("HGET", f"h{number}", step), new)
                connection("LPUSH", f"l{number}", new)
                expect(what, connection("LINDEX", f"l{number}", 0), new)
                connection("LTRIM", f"l{number}", 0, 3)
            elif what == "del":
                connection("UNLINK", key)
                mirror.pop(key, None)
            else:
                expect(what, connection("GET", key) or b"", value)
            if options.migrate and step % 10 == 5 and key in mirror:
                expect("migrate", connection("MIGRATE", "127.0.0.1", options.migrate, key, 0, 60000, "COPY", "REPLACE"), b"+OK")
                other = Connection(options.migrate)
                expect("migrated", other("GET", key), mirror[key])
        for key, value in mirror.items():
            expect("end", connection("GET", key), value)
    except Exception as error:
        faults.append(f"thread {number}: {error!r}")


threads = [threading.Thread(target=work, args=(number,)) for number in range(options.threads)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if not faults:
    connection, sum_ = Connection(options.port), hashlib.sha256()
    keys = sorted(connection("KEYS", "*"))
    for key in keys:
        kind = connection("TYPE", key)
        if kind == b"+string":
            value = connection("GET", key)
        elif kind == b"+hash":
            value = b"".join(sorted(connection("HVALS", key)))
        else:
            value = b"".join(connection("LRANGE", key, 0, -1))
        sum_.update(key + b"%d" % len(value) + value)
    print(len(keys), "keys", sum_.hexdigest())
for fault in sorted(faults):
    print("fault:", fault)
sys.exit(1 if faults else 0)
