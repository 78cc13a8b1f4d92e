"""What leaders do for their groups: seats, slots, leaderships, and group 0's decisions.

One pass every second and after each change of the topology. Whatever it does is a committed
step of its own; a pass that fails in the middle is repeated by whoever leads then.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from hyperscale.errors import HyperscaleError
from hyperscale.ledger.core import MANAGEMENT
from hyperscale.ledger.messages import HistoryGiven, HistoryKept
from hyperscale.ledger.placement import Sight, decide, management_voters
from hyperscale.ledger.records import Adopted, Handed, Released, encode_record
from hyperscale.ledger.replica import Move
from hyperscale.ledger.topology import (
    GroupDestroyed,
    GroupState,
    MoveEnded,
    NodeState,
    SeatsSettled,
)
from hyperscale.nodes.ledger.routing import Ledger

_PASS_S = 1.0
_CAUGHT_UP = 256
"""A learner this few entries behind may become a voter."""
_HISTORY_PAGE = 500
_HISTORY_S = 30.0

_log = logging.getLogger("hyperscale.ledger")


class Managing:
    """The duties of the groups this node leads."""

    def __init__(self, ledger: Ledger, live_jobs: Callable[[int], int | None]) -> None:
        self._ledger = ledger
        self._live_jobs = live_jobs
        self._changed = asyncio.Event()
        self._commands: dict[int, int] = {}
        ledger.hooks.topology.append(self._changed.set)
        ledger.hooks.leading.append(lambda _group, _term: self._changed.set())

    async def run(self) -> None:
        while True:
            try:
                await self._pass()
            except HyperscaleError as error:
                # No quorum, or no longer the leader: whoever leads next does it again.
                _log.info("ledger.managing_later: %s", error)
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_PASS_S):
                    await self._changed.wait()

    async def _pass(self) -> None:
        for group in tuple(self._ledger.leading()):
            if group != MANAGEMENT and group in self._ledger.core.replicas:
                await self._lead(group)
        if MANAGEMENT in self._ledger.leading():
            await self._manage()

    # -- group 0 --------------------------------------------------------------------------

    async def _manage(self) -> None:
        ledger = self._ledger
        topology = ledger.topology
        sight = self._sight()
        present, _, learners = ledger.core.raft.seats(MANAGEMENT)
        voters = management_voters(topology, sight, present)
        others = [
            number
            for number, node in topology.nodes.items()
            if node.state is not NodeState.GONE and number not in voters
        ]
        await self._seat(MANAGEMENT, voters, others, learners)
        for decision in decide(topology, sight):
            if isinstance(decision, GroupDestroyed) and not await self._bequeath(decision.group):
                continue
            verdict = await ledger.decide(decision)
            if verdict.refused:
                _log.warning("ledger.refused: %s", verdict.refused)
            else:
                _log.info("ledger.decided", extra={"decision": repr(decision)[:300]})

    def _sight(self) -> Sight:
        ledger = self._ledger
        nodes = ledger.topology.nodes
        dead = {
            number: dead_s
            for number, node in nodes.items()
            if (dead_s := ledger.peers.dead_for_s(node.name)) is not None
        }
        own = ledger.core.number
        unfit = {
            number
            for number, node in nodes.items()
            if number != own and not ledger.peers.is_fit(node.name)
        }
        groups = ledger.topology.groups
        live = {group: count for group in groups if (count := self._live_jobs(group)) is not None}
        return Sight(dead_s=dead, unfit=frozenset(unfit), live_jobs=live, load=self._load())

    def _load(self) -> Mapping[int, float]:
        """Commands per pass; only of the groups led here, which is enough to shed load."""
        now = dict(self._ledger.commands)
        load = {group: float(count - self._commands.get(group, 0)) for group, count in now.items()}
        self._commands = now
        return load if len(load) == len(self._ledger.topology.groups) else {}

    async def _bequeath(self, group: int) -> bool:
        """Before a group is destroyed, its heir's voters have its history."""
        ledger = self._ledger
        heir = ledger.topology.groups[group].heir
        voters = [name for name in ledger.voters_of(heir) if name != ledger.own_name]
        after = (-(2**63), 0, 0)
        loop = asyncio.get_running_loop()
        while True:
            rows = await asyncio.to_thread(
                ledger.store.history, group=group, after=after, limit=_HISTORY_PAGE
            )
            if not rows:
                return True
            for name in voters:
                link = ledger.peers.link(name)
                if link is None:
                    return False
                await link.call(
                    HistoryGiven(rows), HistoryKept, deadline_s=loop.time() + _HISTORY_S
                )
            after = (rows[-1][3], rows[-1][1], rows[-1][2])

    # -- a group led here -----------------------------------------------------------------

    async def _lead(self, group: int) -> None:
        ledger = self._ledger
        record = ledger.topology.groups.get(group)
        if record is None or record.state is GroupState.DESTROYED:
            return
        _, _, learners = ledger.core.raft.seats(group)
        if await self._seat(group, record.voters, [], learners) and record.settled != record.voters:
            await ledger.decide(SeatsSettled(group, tuple(record.voters)))
        for move in list(ledger.topology.moves.values()):
            if move.source == group and move.number not in ledger.core.replicas[group].outgoing:
                released = Released(ledger.core.stamp(), move.number, move.slots, move.target)
                await ledger.propose_record(group, released)
        for number, outgoing in list(ledger.core.replicas[group].outgoing.items()):
            await self._hand_over(group, number, outgoing)
        self._give_leadership(group, record.leader)

    async def _hand_over(self, group: int, number: int, move: Move) -> None:
        """The target adopts, then the topology says so, then the keys need not wait here."""
        ledger = self._ledger
        adopted = Adopted(ledger.core.stamp(), number, move.slots, group, move.keys)
        await ledger.execute_record(move.target, encode_record(adopted))
        await ledger.decide(MoveEnded(number))
        await ledger.propose_record(group, Handed(ledger.core.stamp(), number))

    async def _seat(
        self, group: int, voters: list[int], learners: list[int], present_learners: list[int]
    ) -> bool:
        """Brings a group's seats one step closer to these; true when they are these."""
        raft = self._ledger.core.raft
        present, outgoing, _ = raft.seats(group)
        if outgoing:
            return False  # two configurations are in force; the core ends that by itself
        missing = [number for number in voters if number not in present]
        seated = (*present, *present_learners)
        newcomers = [number for number in (*missing, *learners) if number not in seated]
        demoted = [number for number in learners if number in present]
        surplus = [number for number in seated if number not in (*voters, *learners)]
        if newcomers:
            raft.configure(group, learners=newcomers)
        elif missing:
            standing = raft.standing(group)
            reach = {
                number: matched for number, matched, is_heard in raft.progress(group) if is_heard
            }
            ready = [n for n in missing if reach.get(n, 0) + _CAUGHT_UP >= standing[4]]
            if ready == missing:
                raft.configure(group, voters=missing, learners=demoted, removed=surplus)
        elif surplus or demoted:
            own = self._ledger.core.number
            if own in surplus:
                raft.transfer_leadership(group, next(n for n in voters if n != own))
            else:
                raft.configure(group, learners=demoted, removed=surplus)
        else:
            return True
        self._ledger.wake()
        return False

    def _give_leadership(self, group: int, wanted: int) -> None:
        """Leads only while nobody else should: the wanted leader, or anyone fitter than this."""
        ledger = self._ledger
        own = ledger.core.number
        if wanted == own:
            return
        name = ledger.name_of(wanted)
        if not name or not ledger.peers.is_fit(name):
            return
        if self._is_close(group, wanted):
            ledger.core.raft.transfer_leadership(group, wanted)
            ledger.wake()

    def _is_close(self, group: int, number: int) -> bool:
        """Whether a node is heard and has nearly all of a group's log."""
        raft = self._ledger.core.raft
        committed = raft.standing(group)[4]
        return any(
            node == number and is_heard and matched > 0 and committed <= matched + _CAUGHT_UP
            for node, matched, is_heard in raft.progress(group)
        )
