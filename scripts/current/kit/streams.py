"""Large data by everything that asyncio has for it; prints digests."""

import asyncio
import concurrent.futures
import hashlib
import os
import random
import socket


def data(seed, length):
    return random.Random(seed).randbytes(length)


async def echo(reader, writer):
    while part := await reader.read(1 << 18):
        writer.write(part)
        await writer.drain()
    writer.close()


class Buffered(asyncio.BufferedProtocol):
    def __init__(self):
        self.buffer, self.sum, self.done = bytearray(1 << 19), hashlib.sha256(), asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, _size):
        return self.buffer

    def buffer_updated(self, count):
        self.sum.update(memoryview(self.buffer)[:count])
        self.transport.write(bytes(memoryview(self.buffer)[:count]))

    def eof_received(self):
        self.done.set_result(self.sum.hexdigest())


async def stream(port, seed, total):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    sent, got = hashlib.sha256(), hashlib.sha256()

    async def send():
        for step in range(total):
            part = data(seed * 1000 + step, random.Random(step).choice([1000, 65536, 300_000, 1_500_000]))
            sent.update(part)
            writer.write(part)
            await writer.drain()
        writer.write_eof()

    task = asyncio.create_task(send())
    while part := await reader.read(1 << 20):
        got.update(part)
    await task
    writer.close()
    return sent.hexdigest() == got.hexdigest(), got.hexdigest()


async def main():
    server = await asyncio.start_server(echo, "127.0.0.1", 7000, limit=1 << 20)
    for answer in await asyncio.gather(*(stream(7000, seed, 30) for seed in range(6))):
        print(*answer)
    server.close()
    loop, made = asyncio.get_running_loop(), []
    server = await loop.create_server(lambda: made.append(Buffered()) or made[-1], "127.0.0.1", 7001)
    for answer in await asyncio.gather(*(stream(7001, seed, 30) for seed in range(4))):
        print(*answer)
    server.close()
    with open("file", "wb") as file:
        file.write(data(5, 8 << 20))
    left, right = socket.socketpair()
    left.setblocking(False)
    reader, _writer = await asyncio.open_connection(sock=right, limit=1 << 20)
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=left)
    with open("file", "rb") as file:
        task = asyncio.create_task(loop.sendfile(transport, file))
        print(hashlib.sha256(await reader.readexactly(8 << 20)).hexdigest(), await task)
    child = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    print(hashlib.sha256((await child.communicate(data(6, 5 << 20)))[0]).hexdigest())
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        for answer in await asyncio.gather(*(loop.run_in_executor(pool, data, seed, 1 << 20) for seed in range(8))):
            print(hashlib.sha256(answer).hexdigest())


asyncio.run(main())
