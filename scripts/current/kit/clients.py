"""aiohttp's client: several posts at once. Usage: clients.py URL FILE"""

import asyncio
import hashlib
import sys

import aiohttp


async def main():
    body = open(sys.argv[2], "rb").read()
    async with aiohttp.ClientSession() as session:

        async def post(length):
            async with session.post(sys.argv[1], data=body[:length]) as answer:
                return hashlib.sha256(await answer.read()).hexdigest()

        for line in await asyncio.gather(*(post(length) for length in range(100_000, 4_000_000, 300_000))):
            print(line)


asyncio.run(main())
