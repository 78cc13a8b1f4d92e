"""Messages, nodes and loops for the tests of the wire."""

import asyncio
import contextlib
import itertools
import os
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

import uvloop
from msgspec import Struct

from hyperscale.wire.calls import InboundCall
from hyperscale.wire.cluster_secret import Secrets
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.messages import Introduction
from hyperscale.wire.registry import MessagePriority, SizeClass, message
from hyperscale.wire.roles import EVERYONE, Role
from hyperscale.wire.security import Security
from hyperscale.wire.server import PeerServer

SECRET = "correct horse battery staple"

_T = TypeVar("_T")


@message(kind=60001, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=EVERYONE)
class Question(Struct):
    text: str


@message(kind=60002, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=EVERYONE)
class Answer(Struct):
    text: str


@message(kind=60003, priority=MessagePriority.LOW, size=SizeClass.SMALL)
class Note(Struct):
    text: str


@message(kind=60004, priority=MessagePriority.HIGH, size=SizeClass.SMALL)
class Fetch(Struct):
    parts: int
    part_bytes: int = 100_000


@message(kind=60005, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL)
class Final(Struct):
    text: str


@message(kind=60006, priority=MessagePriority.NORMAL, size=SizeClass.LARGE)
class Bulk(Struct):
    data: bytes


def introduction(
    node_id: str = "a", role: Role = Role.MANAGER, incarnation: int = 1, **others: Any
) -> Introduction:
    fields: dict[str, Any] = {
        "cluster": "acme",
        "environment": "test",
        "version": "0.1.0",
        "capabilities": ["one", "two"],
        **others,
    }
    return Introduction(role=role, node_id=node_id, incarnation=incarnation, **fields)


def secured(secret: str | None = SECRET, previous: str | None = None) -> Security:
    return Security(secrets=None if secret is None else Secrets(secret, previous))


def server(
    node_id: str = "a",
    role: Role = Role.MANAGER,
    *,
    secret: str | None = SECRET,
    previous: str | None = None,
    handlers: Handlers | None = None,
    incarnation: int = 1,
    security: Security | None = None,
    intro: dict[str, Any] | None = None,
    **options: Any,
) -> PeerServer:
    return PeerServer(
        introduction(node_id, role, incarnation, **(intro or {})),
        security or secured(secret, previous),
        handlers,
        rng=Random(1),
        **options,
    )


def echoing() -> Handlers:
    """Answers every question with its text, upper case."""
    handlers = Handlers()

    async def answer(_call: Any, question: Question) -> Answer:
        return Answer(question.text.upper())

    handlers.add(Question, answer)
    return handlers


def ask(text: str = "hello") -> Question:
    return Question(text)


class Silent:
    """Handlers that take a question and answer when told to."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.release = asyncio.Event()
        self.handlers = Handlers()
        self.handlers.add(Question, self.answer)

    async def answer(self, _call: InboundCall, question: Question) -> Answer:
        self.begun.append(question.text)
        try:
            await self.release.wait()
            return Answer(question.text)
        finally:
            self.ended.append(question.text)


def run(main: Callable[[], Awaitable[_T]]) -> _T:
    """Runs on uvloop, and fails if a task, a socket or an exception is left behind."""

    async def checked() -> _T:
        loop = asyncio.get_running_loop()
        problems: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: problems.append(context))
        result = await asyncio.wait_for(main(), 60)
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left behind: {left}"
        assert not problems, f"the loop heard of: {problems}"
        return result

    before = open_sockets()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(checked())
    assert open_sockets() == before, "sockets left behind"
    return result


def open_sockets() -> int:
    """How many sockets this process has open."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
    return found


async def until(condition: Callable[[], object], *, within_s: float = 10.0) -> None:
    """Waits for a condition, turn by turn of the loop, with a deadline."""
    async with asyncio.timeout(within_s):
        for turn in itertools.count():
            if condition():
                return
            await asyncio.sleep(0 if turn < 100 else 0.005)


def soon(within_s: float = 10.0) -> float:
    return asyncio.get_running_loop().time() + within_s
