"""Commands and reads in a simulated tier.

It does on virtual time what `hyperscale.ledger.server.ledger` does with sockets: a command is
forwarded to the leader of its group; a strong read waits for a read index, a session read for
the entry its caller has seen.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.ledger.core import MANAGEMENT, LedgerCore
from hyperscale.ledger.core_events import (
    LedgerEvent,
    ProposalFailure,
    ProposalResult,
    ReadRequested,
    RecordsProposed,
)
from hyperscale.ledger.records import MachineCommand, Record, decode_record, encode_record
from hyperscale.ledger.replica import AppliedEntry, key_slot_of
from hyperscale.ledger.topology import NO_GROUP
from tests.simulation.kernel import Host
from tests.simulation.ledger.observed import ObservedCore, Observer
from tests.simulation.ledger.pending_work import PendingWork

RETRY_S = 0.05
CALL_S = 1.5
READ_AGAIN_S = 0.25
HOPS_MAX = 3

Answer = tuple[Any, ...]
"""("done", group, index, reply), ("refused", why, leader) or ("unknown",)."""
UNKNOWN: Answer = ("unknown",)
Told = Callable[[Answer], None]


@dataclass(slots=True)
class Command:
    """A command for a state machine, or a record of the ledger itself."""

    group: int
    key: str
    body: bytes
    is_record: bool = False
    hops: int = 0


def record_command(group: int, record: Record) -> Command:
    return Command(group, "", encode_record(record), is_record=True)


class Router:
    """Routes the commands and reads of one node."""

    def __init__(
        self,
        host: Host,
        core: ObservedCore,
        pending: PendingWork,
        observer: Observer,
        *,
        acks_early: bool,
    ) -> None:
        self._host = host
        self._core = core
        self._pending = pending
        self._observer = observer
        self._acks_early = acks_early
        self.heard_from: dict[int, str] = {}
        """Addresses of nodes whose number the topology may not name yet."""
        self._requests: dict[int, Callable[[Any], None]] = {}
        self._sessions: list[tuple[int, int, Callable[[], None]]] = []

    def answer(self, answers: Iterable[tuple[int, ProposalResult | None]]) -> None:
        """Tell the callers what became of their proposals, or that they may read."""
        for token, result in answers:
            if (told := self._requests.pop(token, None)) is not None:
                told(result)

    def _feed(self, event: LedgerEvent) -> None:
        self._core.handle(event, now_s=self._host.world.now_s)

    def address_of(self, number: int) -> str:
        return self._core.topology.name_of(number) or self.heard_from.get(number, "")

    # -- commands -------------------------------------------------------------------------

    def _group_of(self, command: Command) -> int:
        if command.group < 0:
            return self._core.topology.owners[key_slot_of(command.key)]
        return self._core.topology.heir_of(command.group)

    def _here(self, command: Command, told: Told) -> None:
        """Propose a command, if this node leads its group."""
        core = self._core
        group = command.group
        if not core.is_leader(group):
            leader = self.address_of(core.leader_of(group))
            told(("refused", "not leader", leader if leader != self._host.address else ""))
            return
        token = core.proposals.new_token()
        record: Record = MachineCommand(0, command.key, command.body)
        if command.is_record:
            record = decode_record(command.body)
        self._feed(RecordsProposed([(token, group, record)]))
        data = core.proposals.queued[group][-1][1]
        if self._acks_early:
            reply = _early_reply(core, group, data)
            _, term, _, _, committed, *_ = core.raft.standing(group)
            outcome = AppliedEntry(group, committed + 1, term, reply=reply)
            self._committed(group, data, outcome, told)
            return
        self._requests[token] = lambda outcome: self._committed(group, data, outcome, told)

    def _committed(
        self,
        group: int,
        data: bytes,
        outcome: ProposalResult,
        told: Told,
    ) -> None:
        if outcome is ProposalFailure.SUPERSEDED:
            told(("refused", "not leader", ""))
        elif isinstance(outcome, ProposalFailure):
            told(UNKNOWN)
        else:
            self._observer.acknowledged(self._core, group, outcome, data)
            if outcome.is_key_foreign:
                told(("refused", "wrong group", ""))
            else:
                told(("done", group, outcome.index, outcome.reply))

    def forwarded(self, command: Command, told: Told) -> None:
        """Commit a command for another node, or forward it to the leader this node knows."""
        routed = _routed_to(command, self._group_of(command))

        def done(answer: Answer) -> None:
            if answer[:2] == ("refused", "not leader") and answer[2] and routed.hops < HOPS_MAX:
                onward = _routed_to(routed, routed.group)
                onward.hops += 1
                self._pending.ask(answer[2], ("op", onward), told, CALL_S)
            else:
                told(answer)

        self._here(routed, done)

    def routed(self, command: Command, told: Told) -> None:
        """Commit a command for a client; retry while it is certainly not committed."""
        deadline_s = self._host.world.now_s + CALL_S

        def once(hint: str) -> None:
            core = self._core
            group = self._group_of(command)
            if self._host.world.now_s > deadline_s:
                told(("refused", "no leader in time", ""))
            elif command.group < 0 and group == NO_GROUP:
                self._pending.after(RETRY_S, lambda: once(""))
            elif core.is_leader(group):
                self._here(_routed_to(command, group), again)
            elif target := self._someone(group, hint):
                self._pending.ask(target, ("op", _routed_to(command, group)), again, CALL_S)
            else:
                self._pending.after(RETRY_S, lambda: once(""))

        def again(answer: Answer) -> None:
            if answer[0] == "refused":
                self._pending.after(RETRY_S, lambda: once(answer[2]))
            else:
                told(answer)

        once("")

    def _someone(self, group: int, hint: str) -> str:
        core = self._core
        leader = self.address_of(core.leader_of(group))
        if group == MANAGEMENT:
            numbers = list(core.topology.nodes)
        else:
            record = core.topology.groups.get(group)
            numbers = [] if record is None else record.settled
        voters = [self.address_of(number) for number in numbers]
        self._host.world.rng.shuffle(voters)
        own = self._host.address
        return next((a for a in (hint, leader, *voters) if a and a != own), "")

    # -- reads ----------------------------------------------------------------------------

    def read(self, group: int, job: str, told: Told) -> None:
        core = self._core
        if group not in core.replicas:
            told(("refused", "no replica", ""))
            return
        is_done = False

        def ask() -> None:
            if is_done:
                return
            if group not in core.replicas:
                told(("refused", "no replica", ""))
                return
            token = core.proposals.new_token()
            self._requests[token] = fresh
            self._feed(ReadRequested(token, group))
            self._pending.after(READ_AGAIN_S, ask)

        def fresh(_result: None) -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                self._tell_status(group, job, told)

        ask()

    def session(self, group: int, index: int, job: str, told: Told) -> None:
        if group not in self._core.replicas:
            told(("refused", "no replica", ""))
            return
        self._sessions.append((group, index, lambda: self._tell_status(group, job, told)))

    def answer_sessions(self) -> None:
        """Answer the session reads whose entry has been applied."""
        replicas = self._core.replicas
        left = []
        for group, index, then in self._sessions:
            if group in replicas and replicas[group].applied >= index:
                then()
            elif group in replicas:
                left.append((group, index, then))
        self._sessions = left

    def _tell_status(self, group: int, job: str, told: Told) -> None:
        replica = self._core.replicas.get(group)
        machine = None if replica is None else replica.machine
        found = machine.job(job) if isinstance(machine, JobMachine) else None
        told(("status", "none" if found is None else found.status.value))


def _routed_to(command: Command, group: int) -> Command:
    return Command(group, command.key, command.body, command.is_record, command.hops)


def _early_reply(core: LedgerCore, group: int, data: bytes) -> object:
    """Return the reply the state machine would give now."""
    replica, record = core.replicas[group], decode_record(data)
    before = replica.machine.snapshot()
    reply = replica.machine.apply(0, core.clock.now_ms, getattr(record, "body", b"")).reply
    replica.machine.restore(before)
    return reply
