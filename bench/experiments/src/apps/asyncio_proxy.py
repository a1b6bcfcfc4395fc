"""A proxy with asyncio streams: forwards every byte between a client and the server behind it.

It is written without regard to copies: data passes through the stream's buffer, the bytes object that read() returns,
and the buffer of data that the kernel did not accept at once.

Usage: asyncio_proxy.py ADDRESS PORT ADDRESS-BEHIND PORT-BEHIND
"""

import asyncio
import signal
import sys

# Maximum size of a read, and of the data buffered before the sender is paused.
CHUNK_BYTES = 256 * 1024


async def forward(reader, writer):
    """Forwards bytes until one side ends, then ends the other."""
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
            await asyncio.gather(forward(reader, behind_writer), forward(behind_reader, writer))
        finally:
            behind_writer.close()
            writer.close()

    server = await asyncio.start_server(accept, address, int(port), limit=CHUNK_BYTES)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with server:
        await ended.wait()


asyncio.run(main())
