"""A program whose file's device fails: writes and syncs, and notes what was acknowledged; and checks that this is there.

failing.py work FILE JOURNAL COUNT [pause]  |  failing.py check FILE JOURNAL
"""

import errno, os, sys, time

BYTES = 65536


def block(number):
    return b"%08d" % number * (BYTES // 8)


def work(path, journal, count, pauses):
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in range(count):
        os.pwrite(file, block(number), number * BYTES)
        try:
            os.fsync(file)
        except OSError as error:
            os.write(journal, b"failed %d %s\n" % (number, errno.errorcode[error.errno].encode()))
            break
        os.write(journal, b"acknowledged %d\n" % number)
        if number < 100 or pauses:
            # Until there is a log; and on, so that its keeper syncs meanwhile.
            time.sleep(0.01)
    if pauses:
        # The file stays open until somebody says otherwise.
        os.write(journal, b"waits 0\n")
        sys.stdin.read()


def check(path, journal):
    with open(journal) as lines:
        acknowledged = [int(line.split()[1]) for line in lines if line.startswith("acknowledged")]
    with open(path, "rb") as file:
        contents = file.read()
    lost = [number for number in acknowledged if contents[number * BYTES : (number + 1) * BYTES] != block(number)]
    assert acknowledged and not lost, f"{len(acknowledged)} acknowledged, {len(lost)} lost: {lost[:5]}"
    print(f"checked {len(acknowledged)} blocks")


if sys.argv[1] == "work":
    work(sys.argv[2], sys.argv[3], int(sys.argv[4]), "pause" in sys.argv[5:])
else:
    check(sys.argv[2], sys.argv[3])
