"""Relays packets between two TUN devices, and loses, delays, duplicates, reorders and marks them.

One device is in this network namespace (r0, 10.78.0.1), the other in NAMESPACE (r1, 10.78.0.2). This namespace forwards
packets, and is the default route of the other. MARKED is the probability that a packet with ECN support gets the mark CE
(RFC 3168). Each direction has its own random numbers, so the packets of one direction do not influence those of the
other. At most MAX_WAITING packets of a direction are in flight; further packets are lost. The devices accept no packets
above the MTU, so the kernel segments them first.

usage: bad_relay.py NAMESPACE SEED LOSS DELAY_MS JITTER_MS DUPLICATES MARKED
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
MAX_WAITING = 10000


def device(name, address):
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    for command in (f"addr add {address}/24 dev {name}", f"link set {name} mtu 1500 txqueuelen 10000 up"):
        subprocess.run(["ip"] + command.split(), check=True)
    return tun


def marked(packet):
    """Returns the packet with the mark CE, if it is an IPv4 packet with ECN support."""
    if packet[0] != 0x45 or packet[1] & 3 not in (1, 2):
        return packet
    changed = bytearray(packet)
    changed[1] |= 3
    changed[10:12] = bytes(2)
    total = sum(struct.unpack_from("!10H", changed))
    total = (total & 0xFFFF) + (total >> 16)
    struct.pack_into("!H", changed, 10, ~(total + (total >> 16)) & 0xFFFF)
    return bytes(changed)


def main():
    namespace = sys.argv[1]
    seed, loss, delay_ms, jitter_ms, duplicates, marks = (float(word) for word in sys.argv[2:8])
    here = device("r0", "10.78.0.1")
    with open("/proc/sys/net/ipv4/ip_forward", "w") as forward:
        forward.write("1")
    with open(namespace) as other:
        if ctypes.CDLL(None, use_errno=True).setns(other.fileno(), CLONE_NEWNET):
            sys.exit(f"setns: {os.strerror(ctypes.get_errno())}")
    there = device("r1", "10.78.0.2")
    subprocess.run("ip route add default via 10.78.0.1".split(), check=True)
    print("ready", flush=True)
    ends = {here: (there, random.Random(seed)), there: (here, random.Random(seed + 1))}
    in_flight, number, waiting = [], 0, {here: 0, there: 0}
    while True:
        now = time.monotonic()
        while in_flight and in_flight[0][0] <= now:
            _, _, tun, packet = heapq.heappop(in_flight)
            waiting[tun] -= 1
            try:
                os.write(tun, packet)
            except (BlockingIOError, OSError):
                pass
        wait = max(0, in_flight[0][0] - now) if in_flight else None
        for tun in select.select([here, there], [], [], wait)[0]:
            onto, choose = ends[tun]
            try:
                while True:
                    packet = os.read(tun, 2000)
                    copies = 2 if choose.random() < duplicates else 1
                    if choose.random() < marks:
                        packet = marked(packet)
                    for _ in range(copies):
                        if choose.random() >= loss and waiting[onto] < MAX_WAITING:
                            late = (delay_ms + choose.random() * jitter_ms) / 1000
                            number += 1
                            waiting[onto] += 1
                            heapq.heappush(in_flight, (time.monotonic() + late, number, onto, packet))
            except BlockingIOError:
                pass


main()
