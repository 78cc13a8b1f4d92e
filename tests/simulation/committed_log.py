"""A ledger that is correct by construction; consensus itself is tested elsewhere.

The simulations of job leaders and of gates share it. Each group has one log that all nodes of the
tier see. The leader of a group commits after a short delay if it reaches a majority. A leader that
is paused or cut off is replaced after a while, and may believe for a short time that it still
leads: fences must stop the commands it sends then.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hyperscale.jobs.committed.events import Reply, encode
from hyperscale.jobs.committed.state import decode_job
from hyperscale.ledger.group_clock import FIRST_MS

if TYPE_CHECKING:
    from tests.simulation.kernel import Host, World

ALLOCATION = 0
"""The management group: its leader is the allocator."""
_LOOK_EVERY_S = 0.1
_PROPOSAL_S = 5.0
_LEADERLESS_S = 4.0


def true_ms(now_s: float) -> int:
    """Return the time of a group as a perfect clock measures it."""
    return int(now_s * 1000) + 1_000_000


@dataclass(slots=True)
class Entry:
    time_ms: int  # of the group, by the clocks of its leader
    unix_ms: int
    event: Any
    body: bytes
    committed_s: float


@dataclass(slots=True)
class Group:
    term: int = 0
    leader: str | None = None
    life: int = 0  # of the leader's process; a restarted process does not lead
    lost_s: float | None = None  # when the leader lost its majority
    patience_s: float = 1.0
    log: list[Entry] = field(default_factory=list)


class Ledger:
    """All groups of the tier."""

    def __init__(
        self,
        world: "World",
        managers: list[str],
        groups: int,
        machine: Callable[[int], Any],
        *,
        encode: Callable[[Any], bytes] = encode,
        decode_record: Callable[[bytes], Any] = decode_job,
        time_of: Callable[["Host", int], int] | None = None,
    ) -> None:
        """`machine` makes the machine of a group; `encode` encodes its events, and `decode_record`
        decodes the record of a finished job. `time_of`: the time of a group by the clocks of its
        leader; None: the true time."""
        self.world = world
        self.managers = managers
        self.groups = {number: Group() for number in range(groups + 1)}
        self.machine = machine
        self.truth = {number: machine(number) for number in range(1, groups + 1)}
        self._encode, self._decode_record = encode, decode_record
        self._time_of = time_of
        self.records: dict[str, Any] = {}
        self.was_leaderless = False  # longer than the leases
        self.on_commit: Callable[[int, Any, Reply], None] = lambda group, event, reply: None
        world.after(_LOOK_EVERY_S, self._look)

    def leads(self, host: str, group: int, term: int) -> bool:
        known = self.groups[group]
        return (known.leader, known.term) == (host, term)

    # --- committing -----------------------------------------------------------------------

    def submit(
        self,
        group: int,
        job: str,
        submission: Any,
        *,
        at_s: float,
        cancel: Any = None,
        cancel_s: float | None = None,
    ) -> None:
        """Commit a submission as soon as the group is led, and a cancel once the job is there."""

        def try_cancel() -> None:
            if self.truth[group].job(job) is None:
                self.world.after(0.5, try_cancel)
            else:
                self.commit_when_led(group, cancel)

        self.world.at(at_s, lambda: self.commit_when_led(group, submission))
        if cancel_s is not None:
            self.world.at(cancel_s, try_cancel)

    def commit_when_led(self, group: int, event: Any) -> None:
        """Commit an event of a client, which tries again while the group has no leader."""
        known = self.groups[group]
        if known.leader is None or known.lost_s is not None:
            self.world.after(0.5, lambda: self.commit_when_led(group, event))
        else:
            self.commit(group, event)

    def propose(
        self, host: "Host", group: int, term: int, event: Any, failed: Callable[[], None]
    ) -> None:
        life = host.life

        def fail() -> None:
            if host.program is not None and host.life == life:
                failed()

        if not self.leads(host.address, group, term):
            self.world.after(0.001, fail)
        elif not self._reaches_majority(host.address):
            self.world.after(_PROPOSAL_S, fail)
        else:
            delay_s = 0.001 + 0.01 * self.world.rng.random() ** 3
            self.world.after(delay_s, lambda: self._decide(host, group, term, event, fail))

    def _decide(
        self, host: "Host", group: int, term: int, event: Any, fail: Callable[[], None]
    ) -> None:
        if self.leads(host.address, group, term) and self._reaches_majority(host.address):
            self.commit(group, event)
        else:
            self.world.after(_PROPOSAL_S * self.world.rng.random(), fail)

    def confirm(self, host: "Host", group: int, term: int, question: int) -> None:
        """Confirm a leadership after a delay, if the leader still reaches a majority.

        A paused leader gets the answer when it resumes. One answer in twelve takes more than a
        quarter of a second, as with a slow disk, and one in forty more than a second.
        """
        draw = self.world.rng.random()
        wait_s = 0.005 + 3.0 * draw**30

        def decide() -> None:
            if self.leads(host.address, group, term) and self._has_majority_near(host.address):
                self._later(host.address, "confirmed", (group, term, question), wait_s)

        self.world.after(0.001 + 0.01 * draw**3, decide)

    def commit(self, group: int, event: Any) -> Reply:
        known = self.groups[group]
        body = self._encode(event)
        time_ms, unix_ms = self._clocks_of_leader(group)
        entry = Entry(time_ms, unix_ms, event, body, self.world.now_s)
        known.log.append(entry)
        applied = self.truth[group].apply(len(known.log), time_ms, body, unix_ms=unix_ms)
        for job, kind, data in applied.history:
            if kind == "finished":
                if job in self.records:
                    self.world.fail(f"job {job} ended twice")
                self.records[job] = self._decode_record(data)
        reply = applied.reply
        if self.world.trace is not None:
            self.world.trace.add(self.world.now_s, f"group {group}", "COMMIT", f"{event} {reply}")
        self.on_commit(group, event, reply)
        for name in self.managers:
            self._later(name, "entry", group, 0.02)
        return reply

    def _clocks_of_leader(self, number: int) -> tuple[int, int]:
        """Return what a group's leader reads: the time of the group, and the date."""
        group, now_s = self.groups[number], self.world.now_s
        host = self.world.hosts[group.leader or self.managers[0]]
        if self._time_of is None:
            return true_ms(now_s), host.wall_ms()
        last = group.log[-1] if group.log else None
        before_ms = FIRST_MS if last is None else last.time_ms
        if host.program is not None:
            time_ms = self._time_of(host, number)
        else:  # it died a moment ago, and its last entry is committed all the same
            time_ms = before_ms + round((now_s - (last.committed_s if last else now_s)) * 1000)
        return max(before_ms, time_ms), host.wall_ms()

    def _later(self, name: str, what: str, payload: object, within_s: float) -> None:
        host = self.world.hosts[name]
        life = host.life

        def tell() -> None:
            if host.program is not None and host.life == life:
                host.deliver(what, name, payload)

        self.world.after(within_s * self.world.rng.random(), tell)

    # --- leaders --------------------------------------------------------------------------

    def _reaches_majority(self, name: str) -> bool:
        return self.world.hosts[name].is_running and self._has_majority_near(name)

    def _has_majority_near(self, name: str) -> bool:
        hosts, network = self.world.hosts, self.world.network
        near = 1 + sum(
            hosts[other].is_running
            and not network.is_cut(name, other)
            and not network.is_cut(other, name)
            for other in self.managers
            if other != name
        )
        return near * 2 > len(self.managers)

    def _look(self) -> None:
        self.world.after(_LOOK_EVERY_S, self._look)
        now_s, rng = self.world.now_s, self.world.rng
        for number, group in self.groups.items():
            if self.is_led(number):
                group.lost_s = None
                continue
            if group.lost_s is None:
                group.lost_s = now_s
                group.patience_s = 1.0 + rng.random()
                if group.leader is not None:
                    self._notice(number, group.leader, group.term, 1.0 + rng.random())
            if now_s >= group.lost_s + _LEADERLESS_S:
                self.was_leaderless = True
            if now_s >= group.lost_s + group.patience_s:
                self._elect(number, group)

    def is_led(self, number: int) -> bool:
        """Return True if the leader of a group runs and reaches a majority."""
        group = self.groups[number]
        if group.leader is None:
            return False
        is_same = self.world.hosts[group.leader].life == group.life
        return is_same and self._reaches_majority(group.leader)

    def stepped_down(self, number: int) -> None:
        """Note that the leader of a group has noticed that it lost its majority."""
        self.groups[number].leader = None

    def _elect(self, number: int, group: Group) -> None:
        able = [name for name in self.managers if self._reaches_majority(name)]
        if able:
            self.make_leader(number, self.world.rng.choice(able))

    def make_leader(self, number: int, name: str) -> None:
        """Elect a leader, or transfer the leadership."""
        group = self.groups[number]
        is_told = group.leader is not None and not self.world.network.is_cut(name, group.leader)
        if group.leader is not None and group.leader != name and is_told:
            self._depose(number, group.leader, group.term, 0.05)
        group.term += 1
        group.leader, group.lost_s = name, None
        group.life = self.world.hosts[name].life
        self._later(name, "lead", (number, group.term), 0.01)

    def transfer(self) -> None:
        """Give the leadership of a random group to another node that could lead."""
        number = self.world.rng.choice(list(self.groups))
        group = self.groups[number]
        others = [
            name for name in self.managers if name != group.leader and self._reaches_majority(name)
        ]
        if others and group.leader is not None and group.lost_s is None:
            self.make_leader(number, self.world.rng.choice(others))

    def _notice(self, number: int, name: str, term: int, after_s: float) -> None:
        """Let a leader notice that it lost its majority; a paused one notices after it resumes."""
        host = self.world.hosts[name]

        def look() -> None:
            if host.paused:
                self._notice(number, name, term, 0.2 + 1.8 * self.world.rng.random())
            else:
                self._depose(number, name, term, 0.0)

        self.world.after(after_s, look)

    def _depose(self, number: int, name: str, term: int, after_s: float) -> None:
        host = self.world.hosts[name]
        life = host.life

        def tell() -> None:
            if host.program is not None and host.life == life:
                host.deliver("follow", name, (number, term))

        self.world.after(after_s, tell)
