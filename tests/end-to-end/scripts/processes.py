"""Pipes to other programs, threads, and multiprocessing by fork and spawn."""

import hashlib
import multiprocessing
import os
import random
import subprocess
import sys
import threading


def data_of(size, salt):
    return random.Random(3000 + salt).randbytes(size)


def print_digest(what, data):
    print(what, len(data), hashlib.sha256(data).hexdigest(), flush=True)


def work(task):
    size, salt = task
    data = data_of(size, salt)
    edited = bytearray(data)
    edited[size // 2] ^= 1
    return bytes(edited), hashlib.sha256(data).hexdigest()


def answer_messages(connection):
    while True:
        message = connection.recv_bytes()
        if not message:
            return
        connection.send_bytes(bytes(reversed(message)))
        connection.send(message[: len(message) // 2])


def run_pool(method):
    context = multiprocessing.get_context(method)
    with context.Pool(2) as workers:
        tasks = [(size, salt) for salt, size in enumerate([10, 70_000, 300_000, 1 << 20, 2 << 20] * 2)]
        for data, digest in workers.imap(work, tasks):
            print_digest(f"{method} {digest[:8]}", data)


def run_conversation(method):
    context = multiprocessing.get_context(method)
    near, far = context.Pipe()
    child = context.Process(target=answer_messages, args=(far,))
    child.start()
    far.close()
    kept = data_of(2 << 20, 77)
    for size in [100, 65_536, 400_000, 1 << 20]:
        data = data_of(size, size)
        near.send_bytes(data)
        assert near.recv_bytes() == bytes(reversed(data))
        assert near.recv() == data[: size // 2]
        print_digest(f"{method} pipe", data)
    near.send_bytes(b"")
    child.join(30)
    assert child.exitcode == 0, child.exitcode
    print_digest("kept", kept)


def forked_while_threads_work():
    stop = threading.Event()
    wrong = []

    def churn(salt):
        expected = data_of(600_000, salt)
        while not stop.is_set():
            reader, writer = os.pipe()
            with os.fdopen(reader, "rb") as source, os.fdopen(writer, "wb") as sink:
                threading.Thread(target=lambda: (sink.write(expected), sink.close())).start()
                if source.read() != expected:
                    wrong.append(salt)

    threads = [threading.Thread(target=churn, args=(salt,)) for salt in range(2)]
    for thread in threads:
        thread.start()
    data = data_of(1 << 20, 9)
    for number in range(6):
        pid = os.fork()
        if pid == 0:
            copy = bytearray(data)
            copy[0] ^= 255
            is_correct = bytes(copy[1:]) == data[1:] and hashlib.sha256(data).digest()
            os._exit(0 if is_correct else 1)
        _, status = os.waitpid(pid, 0)
        assert status == 0, status
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    print_digest("after forks", data)


def main():
    for number, size in enumerate([1, 70_000, 1 << 20, 5 << 20]):
        data = data_of(size, number)
        for command in (["cat"], ["dd", "bs=256k", "status=none"], [sys.executable, "-c", COPY]):
            done = subprocess.run(command, input=data, stdout=subprocess.PIPE, check=True, timeout=60)
            assert done.stdout == data, command
            print_digest(command[0].rsplit("/", 1)[-1], done.stdout)
    lines = b"".join(b"%d line\n" % (number * 7919 % 100_003) for number in range(100_003))
    done = subprocess.run(["sort", "-n"], input=lines, stdout=subprocess.PIPE, check=True, timeout=60)
    print_digest("sort", done.stdout)
    for method in ("fork", "spawn"):
        run_pool(method)
        run_conversation(method)
    forked_while_threads_work()


COPY = """
import sys
while True:
    part = sys.stdin.buffer.read1(1 << 20)
    if not part:
        break
    sys.stdout.buffer.write(part)
"""

if __name__ == "__main__":
    main()
