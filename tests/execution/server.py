"""An HTTP server in its own thread that counts the requests it received."""

import asyncio
import contextlib
import threading
from collections import Counter
from types import TracebackType
from typing import Self


class CountingServer:
    """Serves `/`, `/status/{code}` and `/delay/{ms}` on 127.0.0.1."""

    def __init__(self) -> None:
        self.port = 0
        self.requests: Counter[str] = Counter()  # "GET /path"
        self.open_now = 0
        self.open_peak = 0
        self.busy_now = 0
        self.busy_peak = 0
        self.bodies: list[bytes] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="counting server")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _serve(self) -> None:
        try:
            self._loop.run_until_complete(self._main())
        finally:
            self._loop.close()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.open_now += 1
        self.open_peak = max(self.open_peak, self.open_now)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    await self._answer(reader, writer)
        except asyncio.CancelledError:
            pass  # the server stops: a stream callback must not end cancelled
        finally:
            self.open_now -= 1
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ")
        fields = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        body = await reader.readexactly(int(fields.get("content-length", 0)))
        if body:
            self.bodies.append(body)
        self.requests[f"{method} {path}"] += 1
        self.busy_now += 1
        self.busy_peak = max(self.busy_peak, self.busy_now)
        try:
            status = 200
            match path.strip("/").split("/"):
                case ["status", code]:
                    status = int(code)
                case ["delay", ms]:
                    await asyncio.sleep(int(ms) / 1000)
        finally:
            self.busy_now -= 1
        writer.write(f"HTTP/1.1 {status} Said\r\ncontent-length: 2\r\n\r\nok".encode())
        await writer.drain()
