"""Answers to the ledger messages of peers."""

from collections.abc import Callable

from hyperscale.errors import RunError
from hyperscale.ledger.messages import (
    FetchHistory,
    FetchSnapshot,
    ForwardCommand,
    ForwardCommandReply,
    GetHistoryState,
    GetHistoryStateReply,
    OfferSnapshot,
    RaftMessages,
    TakeHistory,
    TakeHistoryReply,
)
from hyperscale.ledger.server.ledger import Ledger
from hyperscale.ledger.server.transfers import Chunks, HistoryTransfer, SnapshotTransfer
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.handlers import Handlers


class OpenLedger:
    """The parts of a node's ledger that peers talk to."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.driver = ledger.driver
        self.snapshots = SnapshotTransfer(ledger.driver)
        self.history = HistoryTransfer(ledger)


def answer_peers(handlers: Handlers, open_ledger: Callable[[], OpenLedger | None]) -> None:
    """Register the handlers; `open_ledger` returns None while the node has no ledger."""

    def current() -> OpenLedger | None:
        found = open_ledger()
        return found if found is not None and found.driver.is_open else None

    def required() -> OpenLedger:
        found = current()
        if found is None:
            raise RunError("this node has not joined its ledger yet")
        return found

    def receive_messages(call: InboundCall, message: RaftMessages) -> None:
        if (found := current()) is not None:
            found.driver.receive(call, message)

    async def take_offer(call: InboundCall, offer: OfferSnapshot) -> None:
        if (found := current()) is not None:
            await found.snapshots.fetch(call.peer.node_id, offer)

    async def forward(call: InboundCall, command: ForwardCommand) -> ForwardCommandReply:
        return await required().ledger.answer_forwarded(call, command)

    async def serve_snapshot(_call: InboundCall, request: FetchSnapshot) -> Chunks:
        async for chunk in required().snapshots.serve(request):
            yield chunk

    async def serve_history(_call: InboundCall, request: FetchHistory) -> Chunks:
        async for chunk in required().history.serve(request):
            yield chunk

    async def take_history(call: InboundCall, request: TakeHistory) -> TakeHistoryReply:
        return await required().history.take(call.peer.node_id, request.group)

    def history_state(_call: InboundCall, request: GetHistoryState) -> GetHistoryStateReply:
        return GetHistoryStateReply(required().history.is_complete(request.group))

    handlers.add(RaftMessages, receive_messages)
    handlers.add(OfferSnapshot, take_offer)
    handlers.add(ForwardCommand, forward)
    handlers.add(FetchSnapshot, serve_snapshot)
    handlers.add(FetchHistory, serve_history)
    handlers.add(TakeHistory, take_history)
    handlers.add(GetHistoryState, history_state)
