"""Peers that exchange the messages of the wire tests."""

import asyncio
from random import Random
from typing import Any

from msgspec import Struct

from hyperscale.wire.calls import InboundCall
from hyperscale.wire.client_access import Permission
from hyperscale.wire.cluster_secret import Secrets
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.messages import Introduction
from hyperscale.wire.registry import MessagePriority, SizeClass, message
from hyperscale.wire.roles import EVERYONE, Role
from hyperscale.wire.security import Security
from hyperscale.wire.server import PeerServer

SECRET = "correct horse battery staple"


@message(
    kind=60001,
    priority=MessagePriority.NORMAL,
    size=SizeClass.SMALL,
    senders=EVERYONE,
    permission=Permission.LOOK,
)
class Question(Struct):
    text: str


@message(
    kind=60002,
    priority=MessagePriority.NORMAL,
    size=SizeClass.SMALL,
    senders=EVERYONE,
    permission=Permission.LOOK,
)
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
    """Return handlers that answer a question with its text in upper case."""
    handlers = Handlers()

    async def answer(_call: Any, question: Question) -> Answer:
        return Answer(question.text.upper())

    handlers.add(Question, answer)
    return handlers


def ask(text: str = "hello") -> Question:
    return Question(text)


class Silent:
    """Handlers that answer questions once `release` is set."""

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
