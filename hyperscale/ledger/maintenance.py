"""What the leaders of groups do for them: seats, slots, leaderships, and group 0's decisions.

Written as steps: a generator says what is to be committed next and is told what became of it.
Whoever carries the steps out brings the network and the time; the simulator does so as well as
a node. Every step is right by itself and may be repeated: when a leader is lost between two of
them, the next leader's first look at the state finds the rest.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

from msgspec import Struct

from hyperscale.ledger.core import MANAGEMENT, LedgerCore
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.placement import Sight, decide, management_voters
from hyperscale.ledger.records import Adopted, Handed, Record, Released, Surveyed
from hyperscale.ledger.replica import Move
from hyperscale.ledger.topology import (
    Decision,
    GroupDestroyed,
    GroupRecord,
    GroupState,
    MoveEnded,
    NodeState,
    SeatsSettled,
)

CAUGHT_UP: Final = 256
"""A learner this few entries behind may become a voter, and a voter may be given the lead."""


class Decide(Struct, frozen=True):
    """To be decided by group 0, wherever that is led. Answered with its `Verdict`."""

    decision: Decision


class Commit(Struct, frozen=True):
    """To be committed in a group, whoever leads it."""

    group: int
    record: Record


class Bequeath(Struct, frozen=True):
    """The history of a group is to be with the voters of its heir. Answered with whether."""

    group: int


Request = Decide | Commit | Bequeath
Steps = Generator[Request, Any, None]


class Steward:
    """The duties of one node for the groups it leads."""

    def __init__(
        self,
        core: LedgerCore,
        *,
        sight: Callable[[], Sight],
        is_fit: Callable[[int], bool],
        live_jobs: Callable[[Machine], int],
        is_whole: Callable[[int, int], bool] = lambda _group, _number: True,
    ) -> None:
        """`is_whole`: whether a node (the second) has what a group keeps beside its log."""
        self._core = core
        self._is_whole = is_whole
        self._sight = sight
        self._is_fit = is_fit
        self._live_jobs = live_jobs

    def duties(self) -> dict[int, Steps]:
        """What there is to do, group by group: none waits for another."""
        core = self._core
        return {
            group: self._manage() if group == MANAGEMENT else self._lead(group)
            for group in core.replicas
            if core.may_act(group) and self._is_seated(group)
        }

    def _is_seated(self, group: int) -> bool:
        """Whether this leader has a vote. One that was elected before it knew that it had lost
        its seat stays in office, heard by all, and nothing can be committed: it gives way."""
        raft = self._core.raft
        voters, outgoing, _ = raft.seats(group)
        if self._core.number in (*voters, *outgoing):
            return True
        reach = {number: matched for number, matched, is_heard in raft.progress(group) if is_heard}
        if able := [number for number in voters if number in reach]:
            raft.transfer_leadership(group, max(able, key=lambda number: reach[number]))
        return False

    # -- group 0 --------------------------------------------------------------------------

    def _manage(self) -> Steps:
        core = self._core
        sight = self._sight()
        topology = core.topology
        voters = management_voters(topology, sight, core.raft.seats(MANAGEMENT)[0])
        learners = [
            number
            for number, node in topology.nodes.items()
            if node.state is not NodeState.GONE and number not in voters
        ]
        is_seated = self._seat(MANAGEMENT, voters, learners)
        if not is_seated and not topology.groups:
            return  # a new tier serves nobody before it can lose a node
        for decision in decide(topology, sight):
            yield Decide(decision)

    # -- a group led here -----------------------------------------------------------------

    def _record(self, group: int) -> GroupRecord | None:
        """What group 0 says about a group, as long as this node may act for it."""
        record = self._core.topology.groups.get(group)
        if record is None or record.state is GroupState.DESTROYED:
            return None
        return record if self._core.may_act(group) else None

    def _lead(self, group: int) -> Steps:
        record = self._record(group)
        if record is None:
            return
        if self._seat(group, record.voters, []) and record.settled != record.voters:
            settled = SeatsSettled(group, tuple(record.voters), record.change)
            # Once this is reported others destroy their replicas. Of a node that restarts the disk
            # must know by then who votes: it does with an entry after the change.
            yield Commit(group, Surveyed(self._core.stamp()))
            yield Decide(settled)
        yield from self._release(group)
        yield from self._hand_over(group)
        yield from self._end(group)
        if (record := self._record(group)) is not None:
            self._give_leadership(group, record.leader)

    def _release(self, group: int) -> Steps:
        core = self._core
        for move in list(core.topology.moves.values()):
            if move.source != group or self._record(group) is None:
                continue
            if not core.replicas[group].has_released(move.number):
                released = Released(core.stamp(), move.number, move.slots, group, move.target)
                yield Commit(group, released)

    def _hand_over(self, group: int) -> Steps:
        """The target adopts, then the topology says so, then the keys need not wait here."""
        core = self._core
        if self._record(group) is None:
            return
        for number, move in list(core.replicas[group].outgoing.items()):
            yield Commit(move.target, self._adopted(group, number, move))
            yield Decide(MoveEnded(number))
            yield Commit(group, Handed(core.stamp(), number))

    def _adopted(self, group: int, number: int, move: Move) -> Adopted:
        return Adopted(self._core.stamp(), number, move.slots, group, move.keys)

    def _end(self, group: int) -> Steps:
        """A group that gave everything away and has no job left ends.

        Only its own leader can know: it has applied all there is, and what owns no slot gets no
        new job. Any other replica may be empty because it has not heard yet.
        """
        record = self._record(group)
        if record is None or record.state is not GroupState.DRAINING:
            return
        replica = self._core.replicas[group]
        if replica.slots or replica.outgoing or self._live_jobs(replica.machine):
            return
        if (yield Bequeath(group)):
            yield Decide(GroupDestroyed(group))

    def _seat(self, group: int, voters: Sequence[int], learners: Sequence[int]) -> bool:
        """Brings a group's seats one step closer to these; true when they are these."""
        raft = self._core.raft
        present, outgoing, present_learners = raft.seats(group)
        if outgoing:
            return False  # two configurations are in force; the core ends that by itself
        missing = [number for number in voters if number not in present]
        seated = (*present, *present_learners)
        newcomers = [number for number in (*missing, *learners) if number not in seated]
        demoted = [number for number in learners if number in present]
        surplus = [number for number in seated if number not in (*voters, *learners)]
        own = self._core.number
        if newcomers:
            raft.configure(group, learners=newcomers)
        elif missing:
            if all(self._is_able(group, number) for number in missing):
                # A leader stays in office until it has handed that over.
                removed = [number for number in surplus if number != own]
                kept = [number for number in demoted if number != own]
                raft.configure(group, voters=missing, learners=kept, removed=removed)
        elif own in surplus or own in demoted:
            able = [number for number in voters if number != own and self.is_close(group, number)]
            if able:
                raft.transfer_leadership(group, able[0])
        elif surplus or demoted:
            raft.configure(group, learners=demoted, removed=surplus)
        else:
            return True
        return False

    def _give_leadership(self, group: int, wanted: int) -> None:
        """Leads only while nobody else should."""
        core = self._core
        if wanted != core.number and self._is_fit(wanted) and self.is_close(group, wanted):
            core.raft.transfer_leadership(group, wanted)

    def _is_able(self, group: int, number: int) -> bool:
        """Whether a node may vote from now on, and others no longer: nothing would be lost."""
        is_close = self.is_close(group, number)
        return is_close and (group == MANAGEMENT or self._is_whole(group, number))

    def is_close(self, group: int, number: int) -> bool:
        """Whether a node is heard and has nearly all of a group's log."""
        raft = self._core.raft
        committed = raft.standing(group)[4]
        return any(
            node == number and is_heard and matched > 0 and committed <= matched + CAUGHT_UP
            for node, matched, is_heard in raft.progress(group)
        )
