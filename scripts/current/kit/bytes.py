"""Prints LENGTH bytes that follow from SEED: a third of them text that compresses. Usage: bytes.py SEED LENGTH"""

import random
import sys

source = random.Random(sys.argv[1])
left = int(sys.argv[2])
while left > 0:
    part = source.randbytes(1 << 17) + (b"%08d the same words again and again\n" % source.randrange(10**8)) * 1490
    sys.stdout.buffer.write(part[:left])
    left -= len(part)
