"""A network on which packets are lost, delayed, repeated and reordered: two TUN devices, one here (r0, 10.78.0.1) and one in the
network namespace of another process (r1, 10.78.0.2), and what goes between them.

usage: bad_relay.py NAMESPACE SEED LOSS DELAY_MS JITTER_MS DUPLICATES
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 1, 0x1000
CLONE_NEWNET = 0x40000000


def device(name, address):
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    for command in (f"addr add {address}/24 dev {name}", f"link set {name} mtu 1500 txqueuelen 10000 up"):
        subprocess.run(["ip"] + command.split(), check=True)
    return tun


def main():
    namespace = sys.argv[1]
    seed, loss, delay_ms, jitter_ms, duplicates = (float(word) for word in sys.argv[2:7])
    choose = random.Random(seed)
    here = device("r0", "10.78.0.1")
    with open(namespace) as other:
        if ctypes.CDLL(None, use_errno=True).setns(other.fileno(), CLONE_NEWNET):
            sys.exit(f"setns: {os.strerror(ctypes.get_errno())}")
    there = device("r1", "10.78.0.2")
    print("ready", flush=True)
    under_way, number = [], 0
    while True:
        now = time.monotonic()
        while under_way and under_way[0][0] <= now:
            _, _, tun, packet = heapq.heappop(under_way)
            try:
                os.write(tun, packet)
            except (BlockingIOError, OSError):
                pass
        wait = max(0, under_way[0][0] - now) if under_way else None
        for tun in select.select([here, there], [], [], wait)[0]:
            try:
                while True:
                    packet = os.read(tun, 2000)
                    copies = 2 if choose.random() < duplicates else 1
                    for _ in range(copies):
                        if choose.random() >= loss:
                            late = (delay_ms + choose.random() * jitter_ms) / 1000
                            number += 1
                            onto = there if tun == here else here
                            heapq.heappush(under_way, (time.monotonic() + late, number, onto, packet))
            except BlockingIOError:
                pass


main()
