"""Large data between processes of multiprocessing; prints digests. Usage: processes.py fork|forkserver|spawn"""

import hashlib
import multiprocessing
import multiprocessing.shared_memory
import random
import sys


def data(seed):
    return random.Random(seed).randbytes(random.Random(seed).choice([1000, 65536, 500_000, 3_000_000]))


def changed(part):
    return bytes(part[::-1])


def answer(connection):
    while (part := connection.recv_bytes()) != b"end":
        connection.send_bytes(changed(part))


def queued(tasks, results):
    while (seed := tasks.get()) is not None:
        results.put((seed, data(seed)))


def shared(name, seed):
    memory = multiprocessing.shared_memory.SharedMemory(name)
    memory.buf[: 1 << 20] = random.Random(seed).randbytes(1 << 20)
    memory.close()


def main():
    context = multiprocessing.get_context(sys.argv[1])
    sum_ = hashlib.sha256()
    ours, theirs = context.Pipe()
    process = context.Process(target=answer, args=(theirs,))
    process.start()
    for seed in range(60):
        part = data(seed)
        ours.send_bytes(part)
        got = ours.recv_bytes()
        if got != changed(part):
            print("wrong at", seed, len(part), len(got))
        sum_.update(got)
    ours.send_bytes(b"end")
    process.join()
    print("pipe", sum_.hexdigest(), process.exitcode)
    tasks, results = context.Queue(), context.Queue()
    workers = [context.Process(target=queued, args=(tasks, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for seed in range(60):
        tasks.put(seed)
    found = dict(results.get() for _ in range(60))
    for _ in workers:
        tasks.put(None)
    for worker in workers:
        worker.join()
    print("queue", hashlib.sha256(b"".join(found[seed] for seed in range(60))).hexdigest(), [w.exitcode for w in workers])
    memory = multiprocessing.shared_memory.SharedMemory(create=True, size=1 << 20)
    for seed in range(4):
        process = context.Process(target=shared, args=(memory.name, seed))
        process.start()
        process.join()
        print("shared", hashlib.sha256(memory.buf).hexdigest(), process.exitcode)
    memory.close()
    memory.unlink()
    with context.Pool(3) as pool:
        sum_ = hashlib.sha256()
        for got in pool.imap(changed, [data(seed) for seed in range(40)]):
            sum_.update(got)
        print("pool", sum_.hexdigest())


if __name__ == "__main__":
    main()
