"""A TCP relay on loopback that delays every byte: a login node that is far away."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def delayed(port: int, round_trip_seconds: float) -> Iterator[int]:
    """Relay to a local port; yields the port to use instead. Half of the delay lies on each way."""
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    found: list[int] = []

    async def serve() -> asyncio.Server:
        server = await asyncio.start_server(lambda r, w: _relay(r, w, port, round_trip_seconds / 2), "127.0.0.1", 0)
        found.append(server.sockets[0].getsockname()[1])
        ready.set()
        return server

    def run() -> None:
        asyncio.set_event_loop(loop)
        server = loop.run_until_complete(serve())
        loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, one_way: float) -> None:
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
    for side in (writer, far_writer):
        side.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    await asyncio.gather(_pump(reader, far_writer, one_way), _pump(far_reader, writer, one_way))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, one_way: float) -> None:
    """Each piece arrives one delay after it was sent, however many are on their way."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            due, data = await queue.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not data:
                writer.close()
                return
            writer.write(data)

    delivery = asyncio.ensure_future(deliver())
    while True:
        try:
            data = await reader.read(65536)
        except ConnectionError:
            data = b""
        await queue.put((loop.time() + one_way, data))
        if not data:
            break
    await delivery
