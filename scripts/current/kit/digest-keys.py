"""Prints a digest of all strings of a Redis or Valkey server. Usage: digest-keys.py PORT"""

import hashlib
import socket
import sys

connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 120)
file = connection.makefile("rb")


def ask(*words):
    words = [word if isinstance(word, bytes) else word.encode() for word in words]
    connection.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
    return answer()


def answer():
    line = file.readline()
    if line[:1] == b"$":
        return file.read(int(line[1:]) + 2)[:-2] if int(line[1:]) >= 0 else None
    if line[:1] == b"*":
        return [answer() for _ in range(int(line[1:]))]
    return line.strip()


sum_, count = hashlib.sha256(), 0
for key in sorted(ask("KEYS", "*")):
    value = ask("DUMP", key) if ask("TYPE", key) != b"+hash" else b"".join(sorted(ask("HVALS", key)))
    sum_.update(key + value)
    count += 1
print(count, "keys", sum_.hexdigest())
