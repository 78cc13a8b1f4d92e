"""Runs the membership core of a node: datagrams, dials, push-pulls and kept sessions.

The evidence that a process has ended is collected here: when a kept session ends, this node
dials again at once. Only a connection that the kernel refuses, or another process that answers at
the address, is reported to the core; what the report means is decided there.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, get_args

import msgspec

from hyperscale.config.addresses import split_address
from hyperscale.errors import RunError
from hyperscale.membership import events
from hyperscale.membership.core import Membership
from hyperscale.membership.discovery import Discovery, MemberDown, MemberUp
from hyperscale.membership.events import (
    LIVING,
    HolderOutcome,
    MemberChanged,
    MemberDied,
    MembershipEffect,
    MembershipEvent,
    MemberState,
)
from hyperscale.membership.messages import Datagram, PushPull, PushPullReply
from hyperscale.membership.name_claims import NameVerdict
from hyperscale.nodes.discovery import DiscoveryDriver, Resolver
from hyperscale.sansio.driver import CoreDriver
from hyperscale.sansio.tasks import TaskSupervisor
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.connection import Connection
from hyperscale.wire.datagrams import DatagramSocket
from hyperscale.wire.errors import (
    CallError,
    PeerProtocolError,
    PeerRefusedError,
    RefusalReason,
)
from hyperscale.wire.messages import Introduction
from hyperscale.wire.roles import NODES
from hyperscale.wire.server import NAME_HINT, ConnectionHooks, PeerServer

DIAL_S = 2.0
PUSH_PULL_S = 5.0
_REDIAL_S = 2.0
_SETTLE_S = 0.1
_DATAGRAMS = frozenset(get_args(Datagram))

_log = logging.getLogger("hyperscale.membership")


class MembershipDriver:
    """Feeds the membership core and performs its effects."""

    def __init__(
        self,
        core: Membership,
        discovery: Discovery,
        *,
        address: str,
        resolver: Resolver | None,
        server: PeerServer,
        datagrams: DatagramSocket,
        tasks: TaskSupervisor,
        on_change: Callable[[MemberChanged | MemberDied], None],
    ) -> None:
        self.core = core
        self.discovery = DiscoveryDriver(
            discovery,
            address=address,
            server=server,
            tasks=tasks,
            resolver=resolver,
            on_contact=lambda found: self.feed(events.MemberDiscovered(found)),
        )
        self.datagrams = datagrams
        self.counts: Counter[str] = Counter()
        self.deaths: Counter[str] = Counter()
        self._loop = asyncio.get_running_loop()
        self.left: asyncio.Future[None] = self._loop.create_future()
        """Done when the other members had time to hear that this node leaves."""
        self._server = server
        self._tasks = tasks
        self._on_change = on_change
        self._sessions: dict[str, asyncio.Task[None]] = {}
        self._dialing: set[str] = set()
        performers: dict[type, Callable[[Any], Any]] = {
            events.SendDatagram: lambda effect: datagrams.send(effect.address, effect.datagram),
            MemberChanged: self._report_change,
            MemberDied: self._report_death,
            events.StartPushPull: lambda effect: tasks.spawn_request(
                self._push_pull(effect), f"push-pull:{effect.address}"
            ),
            events.ReplyToPushPull: lambda effect: effect.token.reply(effect.reply),
            events.DialMember: self._dial_member,
            events.VerifyHolder: lambda effect: tasks.spawn(
                self._verify_holder(effect), f"verify:{effect.node}"
            ),
            events.KeepSession: self._keep_session,
            events.DropSession: self._drop_session,
            events.DrainSocket: self._drain_socket,
            events.IncarnationRaised: self._raise_incarnation,
            events.NameLost: self._end_replaced,
            events.LeaveCompleted: self._complete_leave,
        }
        self._driver: CoreDriver[MembershipEvent, MembershipEffect] = CoreDriver(
            core,
            lambda effect: performers[type(effect)](effect),
            clock=time.monotonic,
            on_failure=tasks.fail,
            # A datagram in the socket was sent before now: read it before any timer fires.
            before_tick=datagrams.drain,
        )
        self.feed = self._driver.feed
        server.hooks = ConnectionHooks(claimed=self._check_claim, rejected=self._rejected)

    # -- lifetime -------------------------------------------------------------------------

    def start(self) -> None:
        """Take part in the cluster. The sockets are open."""
        self.datagrams.listen(self._received)
        self._driver.arm()
        self.discovery.start()

    def move(self, address: str) -> None:
        """Announce that this node is reached at another address."""
        _log.info("node.moved", extra={"address": address, "was": self.discovery.address})
        self.discovery.address = address
        self._server.local = msgspec.structs.replace(self._server.local, address=address)
        self.feed(events.AddressChanged(address))

    def leave(self) -> None:
        """Announce that this node leaves; `left` is done once the others had time to hear it."""
        self.discovery.stop()
        self.feed(events.LeaveRequested())

    def stop(self) -> None:
        """Take no more events. The supervisor ends the tasks."""
        self.discovery.stop()
        self._driver.stop()

    # -- events ---------------------------------------------------------------------------

    def _received(self, source: str, node: str, incarnation: int, message: Any) -> None:
        if type(message) in _DATAGRAMS:  # messages of streams are ignored
            self.feed(events.DatagramReceived(source, node, incarnation, message))

    def push_pull_requested(self, call: InboundCall, request: PushPull) -> None:
        """Handle the push-pull of another member; `ReplyToPushPull` answers the call."""
        peer = call.peer
        self.feed(events.PushPullRequested(peer.node_id, peer.incarnation, request, call))

    # -- effects --------------------------------------------------------------------------

    def _dial_member(self, effect: events.DialMember) -> None:
        if effect.node not in self._dialing:
            self._dialing.add(effect.node)
            self._tasks.spawn_request(self._dial_once(effect), f"dial:{effect.address}")

    def _keep_session(self, effect: events.KeepSession) -> None:
        self._drop_session(effect)
        self._sessions[effect.node] = self._tasks.spawn(
            self._maintain_session(effect), f"session:{effect.address}"
        )

    def _drop_session(self, effect: events.KeepSession | events.DropSession) -> None:
        task = self._sessions.pop(effect.node, None)
        if task is not None:
            task.cancel()

    def _drain_socket(self, effect: events.DrainSocket) -> None:
        self.counts["stalls"] += 1
        _log.info("node.stalled", extra={"late_s": round(effect.late_s, 3)})
        self.datagrams.drain()

    def _complete_leave(self, _: events.LeaveCompleted) -> None:
        if not self.left.done():
            self.left.set_result(None)

    def _report_change(self, changed: MemberChanged) -> None:
        member, before = changed.member, changed.before
        if member.state is not before and member.state is not MemberState.DEAD:
            _log.info(
                _event_name(member.state, before),
                extra={
                    "member": member.node,
                    "member_role": str(member.role),
                    "address": member.address,
                    "incarnation": member.incarnation,
                    "was": "" if before is None else str(before),
                },
            )
        if member.state is MemberState.LEFT and before in LIVING:
            self.counts["leaves"] += 1
        if member.state is MemberState.ALIVE and before is not MemberState.SUSPECT:
            self.discovery.feed(MemberUp(member.node, member.stream_address))
        elif member.state not in LIVING and before in LIVING:
            self.discovery.feed(MemberDown(member.node))
        self._on_change(changed)

    def _report_death(self, died: MemberDied) -> None:
        self.deaths[died.evidence.name.lower()] += 1
        if died.is_from_gossip:
            self.counts["gossip_informed_deaths"] += 1
        _log.warning(
            "member.died",
            extra={
                "member": died.member.node,
                "incarnation": died.member.incarnation,
                "evidence": died.evidence.name.lower(),
                "source": "gossip" if died.is_from_gossip else "own",
            },
        )
        self._on_change(died)

    def _raise_incarnation(self, effect: events.IncarnationRaised) -> None:
        incarnation = effect.incarnation
        _log.warning(
            "incarnation.raised", extra={"incarnation": incarnation, "detail": effect.reason}
        )
        self.datagrams.sealer.renew(incarnation)
        self._server.local = msgspec.structs.replace(self._server.local, incarnation=incarnation)

    # -- names ----------------------------------------------------------------------------

    def _check_claim(self, peer: Introduction) -> None:
        """Raise `PeerProtocolError` if a living node has the name of a peer that connects."""
        if peer.role not in NODES:
            return
        claim = events.NameClaimed(peer.node_id, peer.incarnation, peer.address, peer.key)
        self.feed(claim)
        verdict, holder = self.core.names.verdict(claim), self.core.member(peer.node_id)
        if verdict is NameVerdict.FREE or holder is None:
            return
        if verdict is NameVerdict.UNCERTAIN:
            raise PeerProtocolError(
                f"the name '{peer.node_id}' belongs to a {holder.role} at {holder.address}; "
                "whether it is alive is being found out",
                RefusalReason.NAME_UNCERTAIN,
            )
        raise PeerProtocolError(
            f"the name '{peer.node_id}' is taken by a living {holder.role} at {holder.address}",
            RefusalReason.NAME_TAKEN,
            hint=NAME_HINT,
        )

    def _rejected(self, error: PeerRefusedError) -> None:
        """End this node if another one has its name: every message of it would be refused."""
        # A namesake that was cut off may not know yet that the other members follow this node.
        is_alone = not self.core.table.living
        if error.reason is RefusalReason.NAME_TAKEN or (
            error.reason is RefusalReason.NAMESAKE and is_alone
        ):
            self._tasks.fail(RunError(error.message, hint=error.hint))

    def _end_replaced(self, effect: events.NameLost) -> None:
        text = f"this node was replaced: another one at {effect.address} has its name by now"
        self._tasks.fail(RunError(text, hint=NAME_HINT))

    async def _verify_holder(self, effect: events.VerifyHolder) -> None:
        outcome = await self._outcome_of(effect)
        _log.info(
            "name.disputed",
            extra={"member": effect.node, "holder": effect.address, "outcome": str(outcome)},
        )
        self.feed(events.HolderVerified(effect.node, effect.incarnation, effect.address, outcome))

    async def _outcome_of(self, effect: events.VerifyHolder) -> HolderOutcome:
        try:
            async with asyncio.timeout(DIAL_S):
                peer = (await self._server.dial(*split_address(effect.address))).peer
        except ConnectionRefusedError:
            return HolderOutcome.ENDED
        except (PeerProtocolError, CallError, OSError) as error:
            is_namesake = (
                isinstance(error, PeerProtocolError) and error.reason is RefusalReason.NAMESAKE
            )
            return HolderOutcome.ANSWERED if is_namesake else HolderOutcome.SILENT
        is_holder = (peer.node_id, peer.incarnation) == (effect.node, effect.incarnation)
        return HolderOutcome.ANSWERED if is_holder else HolderOutcome.ENDED

    # -- streams --------------------------------------------------------------------------

    async def _push_pull(self, effect: events.StartPushPull) -> None:
        try:
            async with asyncio.timeout(PUSH_PULL_S):
                node = effect.node or self.discovery.node_at.get(effect.address, "")
                connection = self._server.connection_to(node) or await self._server.dial(
                    *split_address(effect.address)
                )
                deadline_s = self._loop.time() + PUSH_PULL_S
                reply = await connection.call(effect.request, PushPullReply, deadline_s=deadline_s)
        except (PeerProtocolError, CallError, OSError) as error:
            self.counts["syncs_failed"] += 1
            _log.debug("push_pull.failed: %s", error, extra={"address": effect.address})
            self.feed(events.PushPullFailed(effect.node))
            return
        self.counts["syncs"] += 1
        peer = connection.peer
        self.feed(events.PushPullCompleted(peer.node_id, peer.incarnation, reply))

    async def _dial_once(self, effect: events.DialMember) -> None:
        try:
            await self._dial(effect.node, effect.incarnation, effect.address)
        finally:
            self._dialing.discard(effect.node)

    async def _dial(self, node: str, incarnation: int, address: str) -> Connection | None:
        """Connect and report the outcome; return the connection if it is to that incarnation."""
        connection: Connection | None = None
        peer = self._server.local
        try:
            async with asyncio.timeout(DIAL_S):
                connection = await self._server.dial(*split_address(address))
                peer = connection.peer
        except ConnectionRefusedError:
            self.feed(events.DialRefused(node, incarnation, address))
            return None
        except (PeerProtocolError, CallError, OSError) as error:
            _log.debug("dial.failed: %s", error, extra={"address": address, "member": node})
            # LOOPED: this node has that address by now.
            if not isinstance(error, PeerProtocolError) or error.reason is not RefusalReason.LOOPED:
                return None
        self.feed(events.DialAnswered(node, incarnation, address, peer.node_id, peer.incarnation))
        return connection if (peer.node_id, peer.incarnation) == (node, incarnation) else None

    async def _maintain_session(self, session: events.KeepSession) -> None:
        """Keep a connection; when it ends, dial again to see whether the process still runs."""
        node, incarnation = session.node, session.incarnation
        while True:
            connection = self._server.connection_to(node)
            if connection is None or connection.peer.incarnation != incarnation:
                connection = await self._dial(node, incarnation, session.address)
            if connection is None:
                await asyncio.sleep(_REDIAL_S)
                continue
            began_s = self._loop.time()
            await asyncio.wait([connection.gone])
            if self._loop.time() - began_s < _REDIAL_S:
                await asyncio.sleep(_SETTLE_S)  # both nodes dialed at once, or the peer is broken


_EVENT_OF_RETURN = {
    MemberState.SUSPECT: "suspicion.cleared",
    MemberState.DEAD: "member.returned",
    MemberState.LEFT: "member.returned",
}


def _event_name(state: MemberState, before: MemberState | None) -> str:
    if state is MemberState.UNCONFIRMED:
        return "member.heard_of" if before is None else "member.restarted"
    if state is MemberState.ALIVE:
        return _EVENT_OF_RETURN.get(before or MemberState.UNCONFIRMED, "member.confirmed")
    return "member.suspected" if state is MemberState.SUSPECT else "member.left"
