"""A proxy of asyncio streams: every byte that comes from one side goes to the other.

What a program copies that was written to be read: the stream's buffer, the bytes object that read() gives, and what
the kernel does not take at once. Usage: asyncio_proxy.py ADDRESS PORT ADDRESS-BEHIND PORT-BEHIND
"""

import asyncio
import signal
import sys

# So many bytes are asked for at once, and kept before the sender has to wait.
CHUNK_BYTES = 256 * 1024


async def pass_on(reader, writer):
    """Passes bytes on until one side ends, then ends the other."""
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except ConnectionError:
        writer.close()


async def main():
    address, port, address_behind, port_behind = sys.argv[1:]

    async def accept(reader, writer):
        behind_reader, behind_writer = await asyncio.open_connection(
            address_behind, int(port_behind), limit=CHUNK_BYTES
        )
        try:
            await asyncio.gather(pass_on(reader, behind_writer), pass_on(behind_reader, writer))
        finally:
            behind_writer.close()
            writer.close()

    server = await asyncio.start_server(accept, address, int(port), limit=CHUNK_BYTES)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with server:
        await ended.wait()


asyncio.run(main())
