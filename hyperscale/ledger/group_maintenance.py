"""What the leader of a group does for it: voters, key slots, leadership, and its end.

The leader of group 0 proposes the decisions of `topology_policy`. The leader of any other group
brings the group closer to what the topology says: its voters and learners, the key slots it has
to hand over, its preferred leader, and its end once it is drained and empty.

Every step is right by itself and may be repeated. When a leader is lost between two steps, the
next leader finds the remaining ones by looking at the state.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from hyperscale.errors import InvariantError
from hyperscale.ledger.cluster_version import decide_version
from hyperscale.ledger.core import MANAGEMENT, LedgerCore
from hyperscale.ledger.core_events import LeadershipTransferRequested, VoterChangeRequested
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.records import (
    DigestRequested,
    KeySlotsAdopted,
    KeySlotsHandedOver,
    KeySlotsReleased,
    Record,
)
from hyperscale.ledger.topology import (
    Decision,
    GroupDestroyed,
    GroupRecord,
    GroupState,
    MigrationEnded,
    NodeState,
    VotersSettled,
)
from hyperscale.ledger.topology_policy import TierHealth, decide, management_voters
from hyperscale.sansio.core import Tick

CAUGHT_UP_ENTRIES: Final = 256
"""A learner at most this far behind may become a voter, and a voter may become leader."""


class MaintenanceTiming(Struct, frozen=True, kw_only=True):
    """How often groups are looked at, and how long observations count."""

    pass_s: float = 1.0
    founding_pass_s: float = 0.1
    """While the tier has no groups yet: everything waits for them."""
    unfit_s: float = 10.0
    """A node loses leaderships only after it was unfit for this long."""
    load_s: float = 10.0
    """The load of a group is measured over at least this long."""
    history_state_s: float = 10.0
    """A node's answer that its history is complete counts for this long."""
    upgrade_hold_s: float = 600.0
    """The cluster version rises when all members have announced a higher one for this long."""


# -- events -------------------------------------------------------------------------------


class GroupsChanged(Struct, frozen=True):
    """The topology changed, or this node became the leader of a group."""


class StepEnded(Struct, frozen=True):
    """The step that was under way for a group is done, or failed, or may have failed."""

    group: int
    is_done: bool


class HistoryStateReceived(Struct, frozen=True):
    """A node said whether it has all history rows of a group, or did not answer (False)."""

    group: int
    node: int
    is_complete: bool


MaintenanceEvent = GroupsChanged | StepEnded | HistoryStateReceived


# -- effects ------------------------------------------------------------------------------


class CommitDecision(Struct, frozen=True):
    """Commit a decision in group 0, as a step of the maintenance of `group`."""

    group: int
    decision: Decision


class CommitRecord(Struct, frozen=True):
    """Commit a record in the group `target`, as a step of the maintenance of `group`."""

    group: int
    target: int
    record: Record


class HandOverHistory(Struct, frozen=True):
    """Have the voters of a group's heir take over the history of the group."""

    group: int


class RequestHistoryState(Struct, frozen=True):
    """Ask a node whether it has all history rows of a group."""

    group: int
    node: int


Step = CommitDecision | CommitRecord | HandOverHistory
MaintenanceEffect = Step | RequestHistoryState | LeadershipTransferRequested | VoterChangeRequested
"""The last two are events for the ledger core of this node."""


# -- state --------------------------------------------------------------------------------


class UpkeepState(StrEnum):
    """What is under way for one group."""

    IDLE = "idle"
    DECIDING = "deciding"
    """Group 0: decisions about the topology."""
    REPORTING_VOTERS = "reporting_voters"
    RELEASING = "releasing"
    """Key slots are taken from this group."""
    HANDING_OVER = "handing_over"
    """Key slots and their keys are given to the group they move to."""
    ENDING = "ending"
    """A drained group without jobs hands over its history and is destroyed."""


UPKEEP_MOVES: Final[Mapping[UpkeepState, Mapping[UpkeepState, str]]] = {
    UpkeepState.IDLE: {
        UpkeepState.DECIDING: "group 0, and the policy has decisions",
        UpkeepState.REPORTING_VOTERS: "the wanted voters vote",
        UpkeepState.RELEASING: "a migration takes key slots from the group",
        UpkeepState.HANDING_OVER: "key slots are released",
        UpkeepState.ENDING: "drained and empty",
    },
    UpkeepState.DECIDING: {UpkeepState.IDLE: "done or failed"},
    UpkeepState.REPORTING_VOTERS: {
        UpkeepState.RELEASING: "reported",
        UpkeepState.HANDING_OVER: "reported",
        UpkeepState.ENDING: "reported",
        UpkeepState.IDLE: "done or failed",
    },
    UpkeepState.RELEASING: {
        UpkeepState.HANDING_OVER: "released",
        UpkeepState.IDLE: "done or failed",
    },
    UpkeepState.HANDING_OVER: {UpkeepState.IDLE: "done or failed"},
    UpkeepState.ENDING: {UpkeepState.IDLE: "done or failed"},
}


class GroupUpkeep:
    """The steps under way for one group: one at a time, each after the one before is done."""

    def __init__(self, group: int) -> None:
        self.state = UpkeepState.IDLE
        self._group = group
        self._steps: deque[tuple[UpkeepState, Step]] = deque()

    def begin(self, steps: Iterable[tuple[UpkeepState, Step]]) -> Step | None:
        """Plan steps, enter the state of the first and return it."""
        self._steps.extend(steps)
        return self.next_step()

    def next_step(self) -> Step | None:
        """Enter the state of the next step and return it; None if there is no more."""
        if not self._steps:
            self.stop()
            return None
        state, step = self._steps.popleft()
        self._enter(state)
        return step

    def stop(self) -> None:
        """Drop the remaining steps."""
        self._steps.clear()
        self._enter(UpkeepState.IDLE)

    def _enter(self, state: UpkeepState) -> None:
        """The only writer of `state`."""
        if state is not self.state and state not in UPKEEP_MOVES[self.state]:
            raise InvariantError(
                f"maintenance of group {self._group}: {self.state.name} -> {state.name}"
            )
        self.state = state


class LoadMeter:
    """Entries per second of each group, over long enough to be no accident."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._measured_s: float | None = None
        self._applied: dict[int, int] = {}
        self._load: dict[int, float] = {}

    def measure(self, applied: Mapping[int, int], now_s: float) -> Mapping[int, float]:
        """Take the applied index of each group; return the load last measured."""
        if self._measured_s is None:
            self._applied, self._measured_s = dict(applied), now_s
        elif (span_s := now_s - self._measured_s) >= self._span_s:
            before, self._applied, self._measured_s = self._applied, dict(applied), now_s
            self._load = {
                group: (index - before[group]) / span_s
                for group, index in applied.items()
                if group in before
            }
        return self._load


class HistoryStates:
    """Which nodes said a moment ago that they have all history rows of a group."""

    def __init__(self, valid_s: float) -> None:
        self._valid_s = valid_s
        self._complete_until_s: dict[tuple[int, int], float | None] = {}  # None: being asked

    def is_complete(self, group: int, node: int, now_s: float) -> bool:
        until_s = self._complete_until_s.get((group, node))
        return until_s is not None and now_s <= until_s

    def request(self, group: int, node: int) -> bool:
        """Return True if the node has to be asked; False if it is being asked already."""
        is_asked = self._complete_until_s.get((group, node), 0.0) is None
        self._complete_until_s[group, node] = None
        return not is_asked

    def receive(self, event: HistoryStateReceived, now_s: float) -> None:
        if event.is_complete:
            self._complete_until_s[event.group, event.node] = now_s + self._valid_s
        else:
            self._complete_until_s.pop((event.group, event.node), None)


class GroupMaintenance:
    """The maintenance of all groups that this node leads."""

    def __init__(
        self,
        core: LedgerCore,
        *,
        health: Callable[[], TierHealth],
        live_jobs: Callable[[Machine], int],
        timing: MaintenanceTiming | None = None,
    ) -> None:
        """`health` returns which nodes are dead or unfit to lead at this moment."""
        self._core = core
        self._read_health = health
        self._live_jobs = live_jobs
        self._timing = timing or MaintenanceTiming()
        self._upkeeps: dict[int, GroupUpkeep] = {}
        self._history = HistoryStates(self._timing.history_state_s)
        self._load = LoadMeter(self._timing.load_s)
        self._unfit_since_s: dict[int, float] = {}
        self._pass_at_s = 0.0

    def wake_at_s(self) -> float | None:
        return self._pass_at_s

    def handle(self, event: MaintenanceEvent | Tick, *, now_s: float) -> list[MaintenanceEffect]:
        match event:
            case Tick():
                return self._run_pass(now_s)
            case GroupsChanged():
                self._pass_at_s = now_s
            case HistoryStateReceived():
                self._history.receive(event, now_s)
                if event.is_complete:
                    self._pass_at_s = now_s
            case StepEnded(is_done=True):
                return self._advance(event.group, now_s)
            case StepEnded():
                # No quorum, or another leader: whichever node leads then does it again.
                self._upkeeps[event.group].stop()
        return []

    def _run_pass(self, now_s: float) -> list[MaintenanceEffect]:
        """Begin what there is to do for each group that has nothing under way."""
        core = self._core
        timing = self._timing
        has_groups = bool(core.topology.groups)
        self._pass_at_s = now_s + (timing.pass_s if has_groups else timing.founding_pass_s)
        health = self._read_health()
        effects: list[MaintenanceEffect] = []
        for group in tuple(core.leading):
            upkeep = self._upkeeps.setdefault(group, GroupUpkeep(group))
            if upkeep.state is not UpkeepState.IDLE:
                continue
            voters, outgoing, _ = core.raft.seats(group)
            if core.number not in (*voters, *outgoing):
                effects += self._give_up_leadership(group, voters)
            elif group == MANAGEMENT:
                effects += self._manage_tier(upkeep, health, now_s)
            else:
                effects += self._maintain(group, upkeep, health, now_s)
        return effects

    def _advance(self, group: int, now_s: float) -> list[MaintenanceEffect]:
        """Begin the next step of a group."""
        upkeep = self._upkeeps[group]
        ended = upkeep.state
        if group not in self._core.leading:
            upkeep.stop()
            return []
        if (step := upkeep.next_step()) is not None:
            return [step]
        if ended in (UpkeepState.RELEASING, UpkeepState.HANDING_OVER):
            self._pass_at_s = now_s  # what was released can be handed over, or the group can end
        return []

    def _give_up_leadership(self, group: int, voters: Sequence[int]) -> list[MaintenanceEffect]:
        """Hand over the leadership of a group in which this node has no vote.

        A node that was elected before it knew of its removal stays leader, because all voters
        hear it, and can commit nothing.
        """
        progress = self._core.raft.progress(group)
        able = [(index, number) for number, index, is_heard in progress if is_heard]
        best = max((each for each in able if each[1] in voters), default=None)
        return [] if best is None else [LeadershipTransferRequested(group, best[1])]

    # -- group 0 --------------------------------------------------------------------------

    def _manage_tier(
        self, upkeep: GroupUpkeep, health: TierHealth, now_s: float
    ) -> list[MaintenanceEffect]:
        core = self._core
        topology = core.topology
        observed = self._observe(health, now_s)
        voters = management_voters(topology, observed, core.raft.seats(MANAGEMENT)[0])
        learners = [
            number
            for number, node in topology.nodes.items()
            if node.state is not NodeState.GONE and number not in voters
        ]
        changes = self._change_voters(MANAGEMENT, voters, learners, now_s)
        if changes is not None and not topology.groups:
            return changes  # a new tier serves nobody before it can survive the loss of a node
        about_version = decide_version(
            topology,
            observed.versions,
            time_ms=core.time_ms(MANAGEMENT, now_s),
            hold_ms=round(self._timing.upgrade_hold_s * 1000),
        )
        step = upkeep.begin(
            (UpkeepState.DECIDING, CommitDecision(MANAGEMENT, decision))
            for decision in (*decide(topology, observed), *about_version)
        )
        return [*(changes or ()), *(() if step is None else (step,))]

    def _observe(self, health: TierHealth, now_s: float) -> TierHealth:
        """Add load and leaders; keep of the unfit nodes those that were unfit for long."""
        replicas, roles = self._core.replicas.items(), self._core.roles.items()
        since_s = {number: self._unfit_since_s.get(number, now_s) for number in health.unfit}
        self._unfit_since_s = since_s
        applied = {group: replica.applied for group, replica in replicas if group != MANAGEMENT}
        return replace(
            health,
            unfit=frozenset(n for n in since_s if now_s - since_s[n] >= self._timing.unfit_s),
            load=self._load.measure(applied, now_s),
            leaders={group: role.leader for group, role in roles if role.leader is not None},
        )

    # -- other groups ---------------------------------------------------------------------

    def _maintain(
        self, group: int, upkeep: GroupUpkeep, health: TierHealth, now_s: float
    ) -> list[MaintenanceEffect]:
        record = self._core.topology.groups.get(group)
        if record is None or record.state is GroupState.DESTROYED:
            return []
        changes = self._change_voters(group, record.voters, [], now_s)
        step = upkeep.begin(self._steps(record, are_voters_right=changes is None))
        wanted = record.leader
        effects = [*(changes or ()), *(() if step is None else (step,))]
        if effects or wanted == self._core.number or wanted in health.unfit:
            return effects
        is_able = self._is_caught_up(group, wanted)
        return [LeadershipTransferRequested(group, wanted)] if is_able else []

    def _steps(
        self, record: GroupRecord, *, are_voters_right: bool
    ) -> Iterator[tuple[UpkeepState, Step]]:
        group = record.number
        replica = self._core.replicas[group]
        if are_voters_right and record.settled != record.voters:
            # Once the report is committed, former voters destroy their replicas. By then the disk
            # of every voter must know the voters, also after a restart: an entry after the change
            # makes sure of that.
            yield UpkeepState.REPORTING_VOTERS, CommitRecord(group, group, DigestRequested(0))
            settled = VotersSettled(group, tuple(record.voters), record.change)
            yield UpkeepState.REPORTING_VOTERS, CommitDecision(group, settled)
        topology = self._core.topology
        migrations = {n: m for n, m in topology.migrations.items() if m.source == group}
        for number, each in migrations.items():
            if number not in replica.released:
                released = KeySlotsReleased(0, number, each.key_slots, group, each.target)
                yield UpkeepState.RELEASING, CommitRecord(group, group, released)
        for number, outgoing in replica.outgoing.items():
            adopted = KeySlotsAdopted(0, number, outgoing.key_slots, group, outgoing.keys)
            yield UpkeepState.HANDING_OVER, CommitRecord(group, outgoing.target, adopted)
            yield UpkeepState.HANDING_OVER, CommitDecision(group, MigrationEnded(number))
            handed_over = KeySlotsHandedOver(0, number)
            yield UpkeepState.HANDING_OVER, CommitRecord(group, group, handed_over)
        # Only the leader knows that a group is empty: it has applied everything, and a group
        # without key slots gets no new jobs. Another replica may merely lag behind.
        is_empty = not (replica.key_slots or replica.outgoing or self._live_jobs(replica.machine))
        if record.state is GroupState.DRAINING and is_empty and not migrations:
            yield UpkeepState.ENDING, HandOverHistory(group)
            yield UpkeepState.ENDING, CommitDecision(group, GroupDestroyed(group))

    def _change_voters(
        self, group: int, voters: Sequence[int], learners: Sequence[int], now_s: float
    ) -> list[MaintenanceEffect] | None:
        """Return the next change towards these voters and learners; None if they are in force.

        An empty list: the change has to wait.
        """
        present, outgoing, present_learners = self._core.raft.seats(group)
        if outgoing:
            return []  # a joint configuration is in force; consensus leaves it by itself
        own = self._core.number
        missing = [number for number in voters if number not in present]
        seated = (*present, *present_learners)
        newcomers = [number for number in (*missing, *learners) if number not in seated]
        demoted = [number for number in learners if number in present]
        surplus = [number for number in seated if number not in (*voters, *learners)]
        changes: list[MaintenanceEffect] | None = None
        if newcomers:
            changes = [VoterChangeRequested(group, learners=tuple(newcomers))]
        elif missing:
            changes = self._wait_for_history(group, missing, now_s)
            if changes is None:
                # The leader stays a voter until it has handed over the leadership.
                removed = tuple(number for number in surplus if number != own)
                kept = tuple(number for number in demoted if number != own)
                changes = [VoterChangeRequested(group, tuple(missing), kept, removed)]
        elif own in surplus or own in demoted:
            able = [n for n in voters if n != own and self._is_caught_up(group, n)]
            changes = [LeadershipTransferRequested(group, number) for number in able[:1]]
        elif surplus or demoted:
            changes = [VoterChangeRequested(group, (), tuple(demoted), tuple(surplus))]
        return changes

    def _wait_for_history(
        self, group: int, newcomers: Sequence[int], now_s: float
    ) -> list[MaintenanceEffect] | None:
        """Return None if these nodes may vote from now on, and others no longer."""
        if not all(self._is_caught_up(group, number) for number in newcomers):
            return []
        lacking = [n for n in newcomers if not self._history.is_complete(group, n, now_s)]
        if group == MANAGEMENT or not lacking:
            return None
        unasked = [n for n in lacking if self._history.request(group, n)]
        return [RequestHistoryState(group, number) for number in unasked]

    def _is_caught_up(self, group: int, number: int) -> bool:
        """Return True if a node is heard and has nearly all of a group's log."""
        raft = self._core.raft
        committed = raft.standing(group)[4]
        return any(
            node == number and is_heard and matched > 0 and committed <= matched + CAUGHT_UP_ENTRIES
            for node, matched, is_heard in raft.progress(group)
        )
