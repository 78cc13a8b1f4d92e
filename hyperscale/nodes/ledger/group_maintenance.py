"""Carries out what leaders owe their groups: the steps are `stewardship`'s, the calls are here.

One pass every second and after each change of the topology. Whatever fails is done again by
whoever leads then.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from hyperscale.errors import HyperscaleError, RunError
from hyperscale.ledger.core import MANAGEMENT
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.maintenance import Bequeath, Commit, Decide, Request, Steps, Steward
from hyperscale.ledger.messages import (
    GetHistoryState,
    GetHistoryStateReply,
    TakeHistory,
    TakeHistoryReply,
)
from hyperscale.ledger.placement import Sight
from hyperscale.ledger.records import encode_record
from hyperscale.ledger.topology import Verdict
from hyperscale.nodes.ledger.routing import Ledger

_PASS_S = 1.0
_FOUNDING_S = 0.1
_HISTORY_S = 60.0
_ASK_S = 2.0
_WHOLE_S = 10.0
"""For so long an answer counts."""

_UNFIT_S = 10.0
_LOAD_S = 10.0

_log = logging.getLogger("hyperscale.ledger")


class Managing:
    """The duties of the groups this node leads."""

    def __init__(self, ledger: Ledger, live_jobs: Callable[[Machine], int]) -> None:
        self._ledger = ledger
        self._changed = asyncio.Event()
        self._applied: dict[int, int] = {}
        self._looked_s = 0.0
        self._load: dict[int, float] = {}
        self._unfit_since_s: dict[str, float] = {}
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._whole_until_s: dict[tuple[int, int], float] = {}
        self._steward = Steward(
            ledger.core,
            sight=self._sight,
            is_fit=lambda number: ledger.peers.is_fit(ledger.name_of(number)),
            live_jobs=live_jobs,
            is_whole=self._is_whole,
        )
        ledger.hooks.topology.append(self._changed.set)
        ledger.hooks.leading.append(lambda _group, _term: self._changed.set())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._pass(tasks)
                self._changed.clear()
                is_new = not self._ledger.topology.groups  # everybody waits for it
                with suppress(TimeoutError):
                    async with asyncio.timeout(_FOUNDING_S if is_new else _PASS_S):
                        await self._changed.wait()

    def _pass(self, tasks: asyncio.TaskGroup) -> None:
        """Begins what there is to do for every group that is not busy with it already."""
        for group, task in tuple(self._under_way.items()):
            if task.done():
                del self._under_way[group]
        for group, steps in self._steward.duties().items():
            if group not in self._under_way:
                task = tasks.create_task(self._do(group, steps), name=f"ledger-group-{group}")
                self._under_way[group] = task

    async def _do(self, group: int, steps: Steps) -> None:
        try:
            request = next(steps, None)
            while request is not None:
                answer = await self._carry_out(request)
                try:
                    request = steps.send(answer)
                except StopIteration:
                    request = None
        except HyperscaleError as error:
            # No quorum, or no longer the leader: whoever leads next does it again.
            _log.info("ledger.managing_later: %s", error, extra={"group": group})
        finally:
            steps.close()
            self._ledger.wake()

    async def _carry_out(self, request: Request) -> Verdict | bool | None:
        ledger = self._ledger
        match request:
            case Decide(decision=decision):
                verdict = await ledger.decide(decision)
                if verdict.refused:
                    _log.warning("ledger.refused: %s", verdict.refused)
                else:
                    _log.info("ledger.decided", extra={"decision": repr(decision)[:300]})
                return verdict
            case Commit(group=group, record=record):
                await ledger.execute_record(group, encode_record(record))
                return None
            case Bequeath(group=group):
                return await self._bequeath(group)

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
            if number != own and self._is_long_unfit(node.name)
        }
        leading = {group: ledger.core.leader_of(group) for group in ledger.topology.groups}
        return Sight(dead_s=dead, unfit=frozenset(unfit), load=self._measured(), leading=leading)

    def _is_long_unfit(self, name: str) -> bool:
        """A moment of overload is no reason to move leaderships about."""
        now_s = asyncio.get_running_loop().time()
        if self._ledger.peers.is_fit(name):
            self._unfit_since_s.pop(name, None)
            return False
        return now_s - self._unfit_since_s.setdefault(name, now_s) >= _UNFIT_S

    def _measured(self) -> Mapping[int, float]:
        """Entries per second of each group here, over long enough to be no accident."""
        span_s = asyncio.get_running_loop().time() - self._looked_s
        if span_s >= _LOAD_S:
            self._looked_s += span_s
            before, replicas = self._applied, self._ledger.core.replicas
            self._applied = {group: replicas[group].applied for group in replicas}
            self._load = {
                group: (applied - before[group]) / span_s
                for group, applied in self._applied.items()
                if group != MANAGEMENT and group in before
            }
        return self._load

    def _is_whole(self, group: int, number: int) -> bool:
        """Whether a node said a moment ago that it has a group's history; else it is asked."""
        place = (group, number)
        now_s = asyncio.get_running_loop().time()
        known_s = self._whole_until_s.get(place)
        if known_s is None:
            self._whole_until_s[place] = 0.0  # being asked
            self._ledger.spawn(self._ask_whole(group, number))
        elif 0 < known_s < now_s:
            del self._whole_until_s[place]
        return known_s is not None and known_s >= now_s

    async def _ask_whole(self, group: int, number: int) -> None:
        ledger = self._ledger
        name = ledger.name_of(number)
        link = ledger.peers.link(name) if name else None
        now_s = asyncio.get_running_loop().time()
        try:
            if link is None:
                raise RunError(f"node {number} is not known")
            told = await link.call(
                GetHistoryState(group), GetHistoryStateReply, deadline_s=now_s + _ASK_S
            )
            if told.is_whole:
                self._whole_until_s[group, number] = now_s + _WHOLE_S
                self._changed.set()
                return
        except HyperscaleError as error:
            _log.info("ledger.managing_later: %s", error, extra={"group": group})
        self._whole_until_s.pop((group, number), None)  # asked again at the next pass

    async def _bequeath(self, group: int) -> bool:
        """Before a group is destroyed, its heir's voters have its history, and that of the
        groups it answers for."""
        ledger = self._ledger
        topology = ledger.topology
        heir = topology.groups[topology.heir_of(topology.groups[group].heir)]
        if heir.voters != heir.settled or not ledger.transfer.is_whole(group):
            return False  # who votes there changes just now, or rows are missing here
        names = [ledger.name_of(number) for number in heir.settled]
        for name in names:
            if name != ledger.own_name and not await self._give_history(group, name):
                return False
        heir = topology.groups[heir.number]
        return names == [ledger.name_of(number) for number in heir.voters]

    async def _give_history(self, group: int, name: str) -> bool:
        link = self._ledger.peers.link(name)
        if link is None:
            return False
        deadline_s = asyncio.get_running_loop().time() + _HISTORY_S
        for each in self._ledger.lineage(group):
            await link.call(TakeHistory(each), TakeHistoryReply, deadline_s=deadline_s)
        return True
