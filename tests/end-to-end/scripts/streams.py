"""asyncio: streams over TCP and UNIX sockets, several at once, and pipes of a subprocess."""

import asyncio
import hashlib
import os
import random

SIZES = [10, 65_536, 200_001, 1 << 20, (2 << 20) + 3]


def data_of(size, salt):
    return random.Random(9000 + salt).randbytes(size)


async def serve(reader, writer):
    while True:
        header = await reader.readexactly(8)
        size = int.from_bytes(header, "little")
        if size == 0:
            break
        body = await reader.readexactly(size)
        writer.write(body[size // 2:])
        writer.writelines([body[: size // 4], body[size // 4: size // 2]])
        await writer.drain()
    writer.close()


async def run_client(number, reader, writer):
    digests = []
    for salt, size in enumerate(SIZES * 2):
        data = data_of(size, number * 100 + salt)
        writer.write(size.to_bytes(8, "little"))
        writer.write(data)
        await writer.drain()
        answer = await reader.readexactly(size)
        assert answer == data[size // 2:] + data[: size // 2], (number, size)
        digests.append(hashlib.sha256(answer).hexdigest())
    writer.write(bytes(8))
    await writer.drain()
    writer.close()
    return digests


async def main():
    tcp = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20)
    port = tcp.sockets[0].getsockname()[1]
    path = f"streams-{os.getpid()}.sock"
    unix = await asyncio.start_unix_server(serve, path)
    clients = []
    for number in range(4):
        if number % 2:
            ends = await asyncio.open_unix_connection(path)
        else:
            ends = await asyncio.open_connection("127.0.0.1", port)
        clients.append(run_client(number, *ends))
    for digests in await asyncio.gather(*clients):
        print(*digests, sep="\n")
    tcp.close()
    unix.close()
    os.unlink(path)
    data = data_of(3 << 20, 1)
    process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    output, _ = await asyncio.wait_for(process.communicate(data), 30)
    assert output == data
    print("cat", hashlib.sha256(output).hexdigest())


asyncio.run(asyncio.wait_for(main(), 60))
