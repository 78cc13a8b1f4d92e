"""Backups of groups for operators: a node streams what it has, or passes on what another has."""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from msgspec import Struct

from hyperscale.errors import HyperscaleError, RunError
from hyperscale.ledger.audit import audit_of
from hyperscale.ledger.core import MANAGEMENT
from hyperscale.ledger.replica import HistoryRow
from hyperscale.ledger.server.ledger import Ledger
from hyperscale.ledger.server.peer_requests import OpenLedger
from hyperscale.ledger.server.transfers import Chunks, chunks_of
from hyperscale.ledger.store import history_pages
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.client_access import Permission
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.messages import Chunk
from hyperscale.wire.registry import MessagePriority, SizeClass, message
from hyperscale.wire.roles import Role

_PAGE_ROWS = 100
_LENGTH_BYTES: Final = 4


@message(
    kind=344,
    priority=MessagePriority.NORMAL,
    size=SizeClass.SMALL,
    senders=frozenset({Role.MANAGER, Role.GATE, Role.OPERATOR}),
    permission=Permission.OPERATE,
)
class FetchGroupBackup(Struct, frozen=True):
    """Fetches the state and the history of a group. -> stream of `wire.messages.Chunk`"""

    group: int
    is_passed_on: bool = False
    """Another node asks for an operator: answer, or refuse."""


class GroupStateItem(Struct, frozen=True, tag="state"):
    """The first item of a backup: the state of the group after a committed entry."""

    index: int
    term: int
    state: bytes


class HistoryItem(Struct, frozen=True, tag="history"):
    """Further history rows of the group."""

    rows: list[HistoryRow]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(GroupStateItem | HistoryItem).decode


class BackupItems:
    """Puts the items of a backup together again from the chunks of a stream."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, chunk: bytes) -> Iterator[GroupStateItem | HistoryItem]:
        self._received += chunk
        while len(self._received) >= _LENGTH_BYTES:
            ends = _LENGTH_BYTES + int.from_bytes(self._received[:_LENGTH_BYTES], "big")
            if len(self._received) < ends:
                return
            item = bytes(self._received[_LENGTH_BYTES:ends])
            del self._received[:ends]
            try:
                yield _decode(item)
            except msgspec.MsgspecError as error:
                raise RunError(f"a piece of the backup cannot be decoded: {error}") from error

    @property
    def is_whole(self) -> bool:
        """True if no piece of an item is left over."""
        return not self._received


class BackupRequests:
    """Serves backups of this node's groups, and those of others through them."""

    def __init__(self, open_ledger: Callable[[], OpenLedger]) -> None:
        self._open_ledger = open_ledger

    def answer(self, handlers: Handlers) -> None:
        handlers.add(FetchGroupBackup, self._serve)

    async def _serve(self, call: InboundCall, request: FetchGroupBackup) -> Chunks:
        found = self._open_ledger()
        if request.group == MANAGEMENT and not request.is_passed_on:  # the first of a backup
            await found.ledger.note_request(audit_of(call, "backup"))
        is_here = request.group == MANAGEMENT or found.history.is_complete(request.group)
        if request.group in found.ledger.core.replicas and is_here:
            served = _own(found.ledger, request.group)
        elif not request.is_passed_on:
            served = _of_others(found.ledger, request.group, call.deadline_s)
        else:
            raise RunError(f"{found.driver.own_name} does not have all of group {request.group}")
        async for chunk in served:
            yield chunk


async def _own(ledger: Ledger, group: int) -> Chunks:
    """Stream the state after everything that was committed before, then the history up to it."""
    await ledger.fresh(group)
    replica = ledger.core.replicas[group]
    item = GroupStateItem(replica.applied, replica.term, replica.snapshot())
    for chunk in _framed(item):
        yield chunk
    await ledger.driver.until_durable(ledger.core.disk.history_ticket)
    for each in ledger.answers_for(group):
        for page in history_pages(ledger.store, each, _PAGE_ROWS):
            # What was committed after the state belongs to a later backup.
            rows = [row for row in page if each != group or row[2] <= item.index]
            for chunk in _framed(HistoryItem(rows)):
                yield chunk


async def _of_others(ledger: Ledger, group: int, deadline_s: float) -> Chunks:
    """Pass on what another node has of a group."""
    why = "none of its voters is up"
    for name in ledger.voters_of(group):
        if (link := ledger.living_peer(name)) is None:
            continue
        has_begun = False
        request = FetchGroupBackup(group, is_passed_on=True)
        try:
            async with await link.stream(request, Chunk, deadline_s=deadline_s) as chunks:
                async for chunk in chunks:
                    has_begun = True
                    yield chunk
        except HyperscaleError as error:
            if has_begun:  # what another node would send does not continue it
                raise
            why = str(error)
        else:
            return
    raise RunError(f"group {group} cannot be backed up: {why}")


def _framed(item: GroupStateItem | HistoryItem) -> Iterator[Chunk]:
    encoded = _encode(item)
    yield from chunks_of(len(encoded).to_bytes(_LENGTH_BYTES, "big") + encoded)
