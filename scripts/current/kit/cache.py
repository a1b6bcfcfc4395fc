"""Load for memcached by its text protocol: large values, several connections. Usage: cache.py PORT [THREADS [ROUNDS]]"""

import random
import socket
import sys
import threading

port, number, rounds = int(sys.argv[1]), int((sys.argv[2:] or [4])[0]), int((sys.argv[3:] or [60])[0])
faults, hits = [], [0] * number


def work(thread):
    source, mirror = random.Random(thread), {}
    try:
        connection = socket.create_connection(("127.0.0.1", port), 120)
        file = connection.makefile("rb")

        def get(keys):
            connection.sendall(b"get " + " ".join(keys).encode() + b"\r\n")
            found = {}
            while (line := file.readline()) != b"END\r\n":
                _, key, _, length = line.split()
                found[key.decode()] = file.read(int(length) + 2)[:-2]
            return found

        for _ in range(rounds):
            key = f"{thread}-{source.randrange(8)}"
            value = source.randbytes(source.choice([100, 40_000, 100_000, 262_144, 700_000, 900_000]))
            word = source.choice(["set", "set", "append", "prepend", "get", "get", "many"])
            if word in ("append", "prepend") and (key not in mirror or len(mirror[key]) + len(value) > 3 << 20):
                word = "set"
            if word in ("set", "append", "prepend"):
                connection.sendall(f"{word} {key} 0 0 {len(value)}\r\n".encode() + value + b"\r\n")
                if (said := file.readline()) != b"STORED\r\n":
                    raise ValueError(f"{word}: {said!r}")
                old = mirror.get(key, b"")
                mirror[key] = {"set": value, "append": old + value, "prepend": value + old}[word]
            keys = list(mirror) if word == "many" and mirror else [key]
            for key, value in get(keys).items():
                hits[thread] += 1
                if value != mirror.get(key):
                    raise ValueError(f"{key}: wrong bytes: {len(value)} of {len(mirror.get(key, b''))}")
        print_later[thread] = sum(len(value) for value in mirror.values())
    except Exception as error:
        faults.append(f"thread {thread}: {error!r}")


print_later = [0] * number
threads = [threading.Thread(target=work, args=(thread,)) for thread in range(number)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("hits", hits, "bytes", print_later)
for fault in sorted(faults):
    print("fault:", fault)
sys.exit(1 if faults else 0)
