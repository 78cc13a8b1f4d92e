"""The control socket of a run: `hyperscale scale --run DIR` talks to the run through it.

A run listens on `control.sock` in its results directory, which only its user may open. A client
sends one `LoadChange` as a line of JSON and gets one `ChangeAnswer`.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from hyperscale.errors import HyperscaleError, InputError, RunError
from hyperscale.plan.changes import LoadChange

SOCKET_NAME = "control.sock"
_LINE_BYTES_MAX = 64 * 1024
_ANSWER_S = 10.0

MakeChange = Callable[[LoadChange], Awaitable[None]]
"""Make a change; raise `InputError` if it does not fit."""


class ChangeAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    error: str = ""  # empty: the change is made
    hint: str = ""


class RunControl:
    """Changes the load of a run from its live view and from Python, on any thread."""

    def __init__(self) -> None:
        self.on_refusal: Callable[[str], object] = str  # gets why a key did nothing
        self._loop: asyncio.AbstractEventLoop | None = None
        self._change: MakeChange | None = None
        self._pending: set[asyncio.Task[None]] = set()

    def attach(self, change: MakeChange) -> None:
        """Connect it to what makes changes, on the running loop."""
        self._loop, self._change = asyncio.get_running_loop(), change

    async def change(self, change: LoadChange) -> None:
        """Make a change. Raises InputError if nothing runs, or if the change does not fit."""
        if self._change is None:
            raise InputError("no run is under way")
        await self._change(change)

    def press(self, change: LoadChange) -> None:
        """Make a change that was asked for by a key, on another thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._spawn, change)

    def _spawn(self, change: LoadChange) -> None:
        task = asyncio.create_task(self._try(change), name="key")
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _try(self, change: LoadChange) -> None:
        try:
            await self.change(change)
        except HyperscaleError as error:
            self.on_refusal(f"{error}\n")


@contextlib.asynccontextmanager
async def control_socket(directory: Path | None, change: MakeChange) -> AsyncIterator[None]:
    """Listen in a directory for changes of the load; None: nowhere."""
    if directory is None:
        yield
        return
    with _bound(directory) as listener:
        server = await asyncio.start_unix_server(
            lambda reader, writer: _serve(reader, writer, change),
            sock=listener,
            limit=_LINE_BYTES_MAX,
        )
        try:
            yield
        finally:
            server.close()


@contextlib.contextmanager
def _bound(directory: Path) -> Iterator[socket.socket]:
    """Yield a socket that is bound in a directory; remove its file at the end."""
    path = directory / SOCKET_NAME
    directory.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # left by a run that was killed
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        with _short(directory) as near:
            listener.bind(f"{near}/{SOCKET_NAME}")
        try:
            path.chmod(0o600)  # before it listens: nobody could connect until now
            yield listener
        finally:
            path.unlink(missing_ok=True)


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: MakeChange
) -> None:
    answer = ChangeAnswer()
    try:
        async with asyncio.timeout(_ANSWER_S):
            line = await reader.readline()
            await change(msgspec.json.decode(line, type=LoadChange))
    except HyperscaleError as error:
        answer = ChangeAnswer(error=error.message, hint=error.hint)
    except (msgspec.MsgspecError, ValueError) as error:
        answer = ChangeAnswer(error=f"not a change of the load: {error}")
    except (TimeoutError, OSError):
        answer = ChangeAnswer(error="the run did not answer in time")
    with contextlib.suppress(OSError):  # the client is gone
        writer.write(msgspec.json.encode(answer) + b"\n")
        await writer.drain()
    writer.close()


def change_run(directory: Path, change: LoadChange) -> None:
    """Change the load of the run that writes its results to a directory. Raises InputError if there
    is no such run or the change does not fit, RunError if the run does not answer."""
    if not directory.is_dir():
        raise InputError(f"--run: there is no directory {directory}")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_S)
            with _short(directory) as near:
                connection.connect(f"{near}/{SOCKET_NAME}")
            connection.sendall(msgspec.json.encode(change) + b"\n")
            with connection.makefile("rb") as answers:
                line = answers.readline(_LINE_BYTES_MAX)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise InputError(
            f"--run: no run writes to {directory} now",
            hint="give the results directory of a run that has not ended",
        ) from error
    except PermissionError as error:
        raise InputError(f"--run: the run in {directory} belongs to another user") from error
    except OSError as error:
        raise RunError(f"the run in {directory} does not answer: {error}") from error
    if not line:
        raise RunError(f"the run in {directory} ended before it answered")
    answer = msgspec.json.decode(line, type=ChangeAnswer)
    if answer.error:
        raise InputError(answer.error, hint=answer.hint)


@contextlib.contextmanager
def _short(directory: Path) -> Iterator[str]:
    """Yield a short path of a directory: the address of a socket has at most 107 bytes."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
