"""A server that notes when each request arrived, finer than the seconds of the built-in target."""

import asyncio
import os
import threading
import time
from types import TracebackType
from typing import Self

from benchmarks.lab import SERVER_CPU

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class ArrivalLog:
    """Listens in a thread of its own, for some hundred requests per second."""

    def __init__(self) -> None:
        self.times_s: list[float] = []  # monotonic, in order
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_ready.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        os.sched_setaffinity(0, {SERVER_CPU})
        server = self._loop.run_until_complete(
            asyncio.start_server(self._answer, "127.0.0.1", 0, backlog=1024)
        )
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        self._is_ready.set()
        self._loop.run_forever()
        server.close()
        self._loop.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            self.times_s.append(time.monotonic())
            writer.write(_ANSWER)
