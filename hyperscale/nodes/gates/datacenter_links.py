"""Datacenters as a gate reaches them: managers that registered, probes, and calls to them."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from random import Random
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from hyperscale.config.addresses import split_address
from hyperscale.gates.datacenters.monitor import (
    DatacenterChanged,
    DatacenterForgotten,
    DatacenterMonitor,
    DatacenterRegistered,
    DatacenterView,
    MonitorEffect,
    MonitorEvent,
    ProbeAcked,
    SendProbe,
)
from hyperscale.gates.datacenters.registry import (
    MANAGERS_MAX,
    DatacenterEntry,
    DatacenterState,
    name_problem,
)
from hyperscale.gates.messages import (
    CrossClusterAck,
    CrossClusterProbe,
    DatacenterRow,
    ListDatacenters,
    ListDatacentersReply,
    RegisterDatacenter,
    RegisterDatacenterReply,
)
from hyperscale.membership.coordinates import CoordinateSystem, unpack
from hyperscale.membership.events import LIVING
from hyperscale.nodes.member import MemberNode
from hyperscale.sansio.driver import CoreDriver
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import CallError, UnreachableError
from hyperscale.wire.link import PeerLink
from hyperscale.wire.roles import Role
from hyperscale.wire.streams import ReplyStream

_PROBE_S = 5.0
_FORGOTTEN_S = 60.0
"""A manager that has not registered for so long is not probed any more, if others are left."""

_Reply = TypeVar("_Reply", bound=Struct)
_log = logging.getLogger("hyperscale.gates")


class DatacenterLinks:
    """The datacenters that one gate knows."""

    def __init__(
        self,
        member: MemberNode,
        *,
        on_seen: Callable[[], None],
        on_registered: Callable[[str, tuple[str, ...]], None],
    ) -> None:
        self._member = member
        self._on_seen = on_seen
        self._on_registered = on_registered
        self._entries: dict[str, DatacenterEntry] = {}  # as committed
        self._links: dict[str, PeerLink] = {}  # by address
        self._registered_s: dict[str, dict[str, float]] = {}  # datacenter -> address -> when
        self._turns: dict[str, int] = {}
        self.coordinates = CoordinateSystem(Random())  # noqa: S311  for directions, not for keys
        self._monitor = DatacenterMonitor(first_nonce=secrets.randbits(48))
        self._driver: CoreDriver[MonitorEvent, MonitorEffect] = CoreDriver(
            self._monitor, self._perform, clock=time.monotonic, on_failure=member.tasks.fail
        )

    def views(self) -> dict[str, DatacenterView]:
        return self._monitor.views(now_s=time.monotonic())

    def stop(self) -> None:
        self._driver.stop()
        while self._links:
            self._links.popitem()[1].close()

    # -- requests --------------------------------------------------------------------------

    def register(self, call: InboundCall, request: RegisterDatacenter) -> RegisterDatacenterReply:
        """Take note of a datacenter's managers; answer with the gates."""
        name = request.datacenter
        if (refused := self._refusal(call, request)) is not None:
            _log.warning(
                "datacenter.refused: %s",
                refused,
                extra={"manager": call.peer.node_id, "datacenter": name},
            )
            is_removed = self._state_of(call.peer.datacenter) is DatacenterState.REMOVED
            return RegisterDatacenterReply(refused=refused, is_removed=is_removed)
        now_s = time.monotonic()
        known = self._registered_s.get(name)
        if known is None:
            known = self._registered_s[name] = {}
            _log.info("datacenter.registered", extra={"datacenter": name})
        known.update(dict.fromkeys(request.managers, now_s))
        for address in [a for a, at_s in known.items() if at_s < now_s - _FORGOTTEN_S]:
            del known[address]
        self._driver.feed(DatacenterRegistered(name, tuple(known), self._state_of(name)))
        self._on_registered(name, tuple(known))
        return RegisterDatacenterReply(
            gates=self._gates(),
            node=self._member.node_id,
            coordinate=self.coordinates.local.pack(),
        )

    def _refusal(self, call: InboundCall, request: RegisterDatacenter) -> str | None:
        name = request.datacenter
        if call.peer.datacenter != name:
            return f"a manager of {call.peer.datacenter} cannot register {name}"
        if (problem := name_problem(name)) is not None:
            return problem
        if not request.managers or len(request.managers) > MANAGERS_MAX:
            return f"{name} has {len(request.managers)} managers, not 1 to {MANAGERS_MAX}"
        if self._state_of(name) is DatacenterState.REMOVED:
            return f"datacenter {name} was removed ('hyperscale datacenters resume {name}' undoes)"
        return None

    def _state_of(self, name: str) -> DatacenterState:
        entry = self._entries.get(name)
        return DatacenterState.ACTIVE if entry is None else entry.state

    def registered(self) -> dict[str, tuple[str, ...]]:
        """Return the datacenters that registered with this gate, and their managers."""
        return {name: tuple(known) for name, known in self._registered_s.items()}

    def committed(self, entries: dict[str, DatacenterEntry]) -> None:
        """Follow what the gates have committed: probe what is known, forget what was removed."""
        now_s = time.monotonic()
        for name, entry in entries.items():
            if entry == self._entries.get(name):
                continue
            if entry.state is DatacenterState.REMOVED:
                self._registered_s.pop(name, None)
                self._driver.feed(DatacenterForgotten(name))
                continue
            known = self._registered_s.setdefault(name, dict.fromkeys(entry.managers, now_s))
            self._driver.feed(DatacenterRegistered(name, tuple(known), entry.state))
        self._entries = entries
        self._on_seen()

    def _gates(self) -> list[str]:
        members = self._member.members()
        others = [m.stream_address for m in members if m.role is Role.GATE and m.state in LIVING]
        return sorted({self._member.address, *others})

    def listed(self, _call: InboundCall, _request: ListDatacenters) -> ListDatacentersReply:
        rows = {name: _row(view) for name, view in self.views().items()}
        for name, entry in self._entries.items():
            if entry.state is DatacenterState.REMOVED:
                rows[name] = DatacenterRow(
                    datacenter=name, reachability="-", health="-", state=entry.state
                )
        return ListDatacentersReply(datacenters=[rows[name] for name in sorted(rows)])

    # -- calls -----------------------------------------------------------------------------

    async def call(
        self, datacenter: str, message: Struct, reply: type[_Reply], *, within_s: float
    ) -> _Reply:
        """Call a manager of a datacenter: the leader, or the next one after a failure."""
        address = self._address(datacenter)
        deadline_s = asyncio.get_running_loop().time() + within_s
        try:
            link = self._link(address)
            return await link.call(message, reply, deadline_s=deadline_s, retries=0)
        except CallError:
            self._turns[datacenter] = self._turns.get(datacenter, 0) + 1
            raise

    async def stream(
        self, datacenter: str, message: Struct, item: type[_Reply], *, within_s: float
    ) -> ReplyStream[_Reply]:
        """Open a stream of a manager of a datacenter; chosen as for `call`."""
        deadline_s = asyncio.get_running_loop().time() + within_s
        try:
            link = self._link(self._address(datacenter))
            return await link.stream(message, item, deadline_s=deadline_s)
        except CallError:
            self._turns[datacenter] = self._turns.get(datacenter, 0) + 1
            raise

    def _address(self, datacenter: str) -> str:
        known = sorted(self._registered_s.get(datacenter, {}))
        if not known:
            raise UnreachableError(f"no manager of {datacenter} has registered with this gate")
        view = self.views().get(datacenter)
        turn = self._turns.get(datacenter, 0)
        start = turn // 2 % len(known)
        order = [*known[start:], *known[:start]]
        if view is not None and view.leader in known and turn % 2 == 0:
            order.insert(0, view.leader)
        # A manager that refuses connections is not waited for while there are others.
        return next((each for each in order if not self._link(each).is_refused), order[0])

    def _link(self, address: str) -> PeerLink:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = self._member.server.link(*split_address(address))
        return link

    # -- probes ----------------------------------------------------------------------------

    def _perform(self, effect: MonitorEffect) -> None:
        if isinstance(effect, SendProbe):
            self._member.tasks.spawn_request(self._probe(effect), f"probe:{effect.datacenter}")
        elif isinstance(effect, DatacenterChanged):
            _log.info(
                "datacenter.changed",
                extra={
                    "datacenter": effect.datacenter,
                    "reachability": effect.reachability.value,
                    "health": effect.health.name.lower(),
                },
            )
            self._on_seen()

    async def _probe(self, probe: SendProbe) -> None:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        question = CrossClusterProbe(nonce=probe.nonce, coordinate=self.coordinates.local.pack())
        try:
            link = self._link(probe.manager)
            ack = await link.call(
                question, CrossClusterAck, deadline_s=begun_s + _PROBE_S, retries=0
            )
        except CallError as error:
            _log.debug("probe.unanswered: %s", error, extra={"manager": probe.manager})
            return
        if ack.datacenter != probe.datacenter or ack.nonce != probe.nonce:
            return
        coordinate = unpack(ack.coordinate)
        if coordinate is not None:
            self.coordinates.measured(ack.node, coordinate, loop.time() - begun_s)
        self._driver.feed(
            ProbeAcked(
                probe.datacenter,
                probe.manager,
                ack.nonce,
                ack.figures,
                term=ack.term,
                is_leader=ack.is_leader,
                leader=ack.leader,
                coordinate=coordinate,
            )
        )
        self._on_seen()


def _row(view: DatacenterView) -> DatacenterRow:
    row = DatacenterRow(
        datacenter=view.datacenter,
        reachability=view.reachability.value,
        health=view.health.name.lower(),
        rtt_ms=None if view.rtt_s is None else round(view.rtt_s * 1000, 3),
        state=view.state,
    )
    if (figures := view.figures) is None:
        return row
    return replace(
        row,
        total_cores=figures.total_cores,
        available_cores=figures.available_cores,
        queue_depth=figures.queue_depth,
        workers=figures.healthy_workers,
        managers=figures.healthy_managers,
    )
