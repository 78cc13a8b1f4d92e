"""Carries out the maintenance of the groups this node leads."""

import asyncio
import logging
from collections.abc import Callable

from hyperscale.errors import HyperscaleError
from hyperscale.ledger.cluster_version import VersionsSeen
from hyperscale.ledger.core_events import LeadershipTransferRequested, VoterChangeRequested
from hyperscale.ledger.group_maintenance import (
    CommitDecision,
    CommitRecord,
    GroupMaintenance,
    GroupsChanged,
    HandOverHistory,
    HistoryStateReceived,
    MaintenanceEffect,
    MaintenanceEvent,
    MaintenanceTiming,
    RequestHistoryState,
    Step,
    StepEnded,
)
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.messages import (
    GetHistoryState,
    GetHistoryStateReply,
    TakeHistory,
    TakeHistoryReply,
)
from hyperscale.ledger.records import encode_record
from hyperscale.ledger.server.peer_requests import OpenLedger
from hyperscale.ledger.topology_policy import VOTERS, TierHealth
from hyperscale.sansio.driver import CoreDriver

_HISTORY_S = 60.0
_CALL_S = 2.0

_log = logging.getLogger("hyperscale.ledger")


class MaintenanceDriver:
    """Feeds the maintenance core of a node and performs its effects."""

    def __init__(
        self,
        open_ledger: OpenLedger,
        live_jobs: Callable[[Machine], int],
        *,
        voters: int = VOTERS,
        timing: MaintenanceTiming | None = None,
    ) -> None:
        """`voters`: how many each group has, if there are enough nodes."""
        self._voters = voters
        self._ledger = open_ledger.ledger
        self._ledger_driver = open_ledger.driver
        self._history = open_ledger.history
        self._tasks = open_ledger.driver.tasks
        self._loop = asyncio.get_running_loop()
        core = GroupMaintenance(
            self._ledger.core, health=self._health, live_jobs=live_jobs, timing=timing
        )
        self._driver: CoreDriver[MaintenanceEvent, MaintenanceEffect] = CoreDriver(
            core, self._perform, clock=self._loop.time, on_failure=self._tasks.fail
        )
        self._ledger.hooks.topology.append(self._groups_changed)
        self._ledger.hooks.leading.append(lambda _group, _term: self._groups_changed())

    def start(self) -> None:
        self._driver.arm()

    def stop(self) -> None:
        self._driver.stop()

    def _groups_changed(self) -> None:
        self._driver.feed(GroupsChanged())

    def _health(self) -> TierHealth:
        peers, own = self._ledger.peers, self._ledger.core.number
        nodes = self._ledger.topology.nodes.values()
        dead_s = {node.number: peers.dead_for_s(node.name) for node in nodes}
        unfit = [n.number for n in nodes if n.number != own and not peers.is_fit(n.name)]
        return TierHealth(
            dead_s={number: each_s for number, each_s in dead_s.items() if each_s is not None},
            unfit=frozenset(unfit),
            voters=self._voters,
            versions=self._versions_seen(),
        )

    def _versions_seen(self) -> VersionsSeen:
        peers = self._ledger.peers
        nodes = {n.number: peers.version_of(n.name) for n in self._ledger.topology.nodes.values()}
        return VersionsSeen(
            nodes={number: version for number, version in nodes.items() if version is not None},
            workers=peers.worker_versions().values(),
        )

    def _perform(self, effect: MaintenanceEffect) -> None:
        match effect:
            case LeadershipTransferRequested() | VoterChangeRequested():
                self._ledger_driver.feed(effect)
            case RequestHistoryState():
                self._tasks.spawn(self._request_history_state(effect), "ledger-history-state")
            case CommitDecision() | CommitRecord() | HandOverHistory():
                self._tasks.spawn(self._take_step(effect), f"ledger-group-{effect.group}")

    async def _take_step(self, step: Step) -> None:
        group = step.group
        is_done = True
        try:
            match step:
                case CommitDecision(decision=decision):
                    reply = await self._ledger.decide(decision)
                    if reply.refused:
                        _log.warning("ledger.refused: %s", reply.refused)
                    else:
                        _log.info("ledger.decided", extra={"decision": repr(decision)[:300]})
                case CommitRecord():
                    await self._ledger.execute_record(step.target, encode_record(step.record))
                case HandOverHistory():
                    is_done = await self._hand_over_history(group)
        except HyperscaleError as error:
            _log.info("ledger.maintenance_failed: %s", error, extra={"group": group})
            is_done = False
        self._driver.feed(StepEnded(group, is_done))

    async def _request_history_state(self, request: RequestHistoryState) -> None:
        group, node = request.group, request.node
        link = self._ledger.living_peer(self._ledger_driver.name_of(node))
        deadline_s = self._loop.time() + _CALL_S
        reply = GetHistoryStateReply(is_complete=False)
        try:
            if link is not None:
                asked = GetHistoryState(group)
                reply = await link.call(asked, GetHistoryStateReply, deadline_s=deadline_s)
        except HyperscaleError as error:
            _log.info("ledger.maintenance_failed: %s", error, extra={"group": group})
        self._driver.feed(HistoryStateReceived(group, node, reply.is_complete))

    async def _hand_over_history(self, group: int) -> bool:
        """Have the heir's voters take over the history of a group, and of the groups it is the
        heir of itself. Return False if it has to be tried again."""
        topology = self._ledger.topology
        name_of = self._ledger_driver.name_of
        heir = topology.groups[topology.heir_of(topology.groups[group].heir)]
        if heir.voters != heir.settled or not self._history.is_complete(group):
            return False  # the heir's voters are changing, or rows are missing on this node
        names = [name_of(number) for number in heir.settled]
        for name in names:
            if name == self._ledger_driver.own_name:
                continue
            if (link := self._ledger.living_peer(name)) is None:
                return False
            deadline_s = self._loop.time() + _HISTORY_S
            for each in self._ledger.answers_for(group):
                await link.call(TakeHistory(each), TakeHistoryReply, deadline_s=deadline_s)
        heir = topology.groups[heir.number]
        return names == [name_of(number) for number in heir.voters]
