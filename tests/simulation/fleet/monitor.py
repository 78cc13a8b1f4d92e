"""The invariants of membership, checked after every event, and what is measured on the way.

Safety, at any time:
 1. no live node that was reachable is declared dead (loss up to 20 %, stalls up to 5 s)
 2. each death fires once at each member: between two deaths of a node there is a return
 3. nobody is judged by timers while the judge's own packets wait unread
 4. no suspicion ends sooner than its independent witnesses warrant; a witness is a member that
    found the node silent itself
 5. a process outranks every earlier life of its node from its first moment
Bounds:
 6. refused: dead everywhere within 3 s of the evidence, with little loss within 3 s of the crash;
    silence: within 15 s
"""

from dataclasses import dataclass, field
from typing import Any

from hyperscale.membership.core import Membership
from hyperscale.membership.events import LIVING, Member, MemberChanged, MemberDied, MemberState
from hyperscale.membership.formulas import suspicion_s
from hyperscale.membership.member_table import MemberRecord
from hyperscale.membership.messages import ClaimedState
from hyperscale.wire.roles import MAY_CONNECT
from tests.simulation.kernel import Host, Monitor, World

REFUSED_WITHIN_S = 3.0
SILENT_WITHIN_S = 15.0
STALL_MAX_S = 5.0
LITTLE_LOSS = 0.01
"""Up to this, evidence of a crash is there so soon that the bound holds from the crash itself."""
SETTLED_S = 20.0
"""After a cut or a long stall a suspicion may be old; this long later nothing of it is left."""

Life = tuple[str, int]
Charge = tuple[str, int, int]
"""A life and its refutation: whatever is held against a node ends with its next refutation."""


@dataclass
class _Suspected:
    """One suspicion at one member: since when, and for how long its witnesses warrant it."""

    began_s: float
    warranted_s: float | None = None  # None until its witnesses were checked


@dataclass
class Findings:
    """What was measured."""

    false_deaths: int = 0
    deaths: int = 0
    suspicions: int = 0
    refused_s: list[float] = field(default_factory=list)
    evidence_s: list[float] = field(default_factory=list)
    silent_s: list[float] = field(default_factory=list)


class FleetMonitor(Monitor):
    """Watches a fleet. `strict` raises at a violation; else false deaths are only counted."""

    def __init__(self, *, strict: bool = True, bounds: bool = True) -> None:
        self.world: World
        self.strict = strict
        self.bounds = bounds
        self.findings = Findings()
        self._living: dict[tuple[str, str], int] = {}
        self._suspected: dict[tuple[str, str], _Suspected] = {}
        self._accusers: dict[Charge, set[str]] = {}
        self._condemned: set[Charge] = set()
        self._ended: dict[Life, tuple[float, str]] = {}
        self._evidence_s: dict[Life, float] = {}
        self._incarnations: dict[str, int] = {}
        self._disturbed_s: dict[str, float | None] = {}  # None while the host is paused
        self._stood_still_s: dict[str, float] = {}
        self.calm_s: float | None = None  # when a cut or a burst of loss last touched everyone

    # What the kernel says.

    def started(self, host: Host) -> None:
        core: Membership = host.program.core
        local = core.local
        last = self._incarnations.get(local.node, -1)
        if local.incarnation <= last and not host.clock_was_off:
            self.world.fail(
                f"{local.node} starts as incarnation {local.incarnation}, it was {last} before"
            )
        self._incarnations[local.node] = max(last, local.incarnation)
        self._disturbed_s[host.address] = self.world.now_s
        _observe_accusations(core, self._accused)

    def stopping(self, host: Host, how: str) -> None:
        local = host.program.core.local
        life = (local.node, local.incarnation)
        self._incarnations[local.node] = max(self._incarnations[local.node], local.incarnation)
        self._ended[life] = (self.world.now_s, how)
        for key in [key for key in self._living if key[0] == host.address]:
            del self._living[key]
        for key in [key for key in self._suspected if key[0] == host.address]:
            del self._suspected[key]
        if how != "exit" and self.bounds:
            observers = [
                (other, other.life)
                for other in self.world.hosts.values()
                if other is not host
                and other.is_up
                and other.program.core.state_of(local.node) in LIVING
            ]
            holders = [
                (other, other.life)
                for other, _ in observers
                if other.is_running and local.role in MAY_CONNECT[other.program.role]
            ]
            little_loss = self.world.network.link.loss <= LITTLE_LOSS
            if how == "crash" and holders and little_loss and not self._cut_lately():
                self._expect(life, how, observers, holders, REFUSED_WITHIN_S)
            self._expect(life, "silence", observers, [], SILENT_WITHIN_S)

    def paused(self, host: Host) -> None:
        self._disturbed_s[host.address] = None

    def resumed(self, host: Host, stood_s: float) -> None:
        now_s = self.world.now_s
        self._disturbed_s[host.address] = now_s
        if stood_s > STALL_MAX_S + 1e-6:
            self._stood_still_s[host.address] = now_s

    def disturb(self) -> None:
        """Something touched everyone (a cut, a burst of loss): bounds count from here on."""
        self.calm_s = self.world.now_s

    # Invariants.

    def after(self, host: Host) -> None:
        program = host.program
        if program is None:
            return
        if program.changes:
            changes, program.changes = program.changes, []
            for change in changes:
                if type(change) is MemberDied:
                    self._died(host, change)
                else:
                    self._changed(host, change)
        if program.core.lifecycle.suspects:
            self._check_witnesses(host, program.core)

    def _changed(self, host: Host, change: MemberChanged) -> None:
        member = change.member
        if member.state is MemberState.SUSPECT and change.before is not MemberState.SUSPECT:
            self.findings.suspicions += 1
            suspected = _Suspected(self.world.now_s)
            self._suspected[host.address, member.node] = suspected
            self._check_drained(host, change)
        elif member.state is MemberState.ALIVE and change.before is MemberState.SUSPECT:
            del self._suspected[host.address, member.node]
        elif member.state is MemberState.ALIVE and change.before is not MemberState.ALIVE:
            self._living[host.address, member.node] = member.incarnation

    def _died(self, host: Host, died: MemberDied) -> None:
        member = died.member
        life = (member.node, member.incarnation)
        self.findings.deaths += 1
        if self._living.pop((host.address, member.node), None) is None:
            self.world.fail(f"{host.address}: {member.node} died twice")
        self._check_drained(host, died)
        suspected = self._suspected.pop((host.address, member.node), None)
        if died.evidence is ClaimedState.REFUSED and not died.is_from_gossip and self.bounds:
            self._evidenced(host, life)
        if died.evidence is ClaimedState.SILENT:
            charge = _charge(member)
            self._check_patience(host, member.node, suspected)
            self._accused(host.program.node, charge)
            self._condemned.add(charge)
        ended = self._ended.get(life)
        if ended is None:
            self._check_reachable(host, died)
        else:
            self._measure(host, life, *ended)

    def _measure(self, host: Host, life: Life, ended_s: float, how: str) -> None:
        """How long it took, unless a cut or a stall came in between."""
        calm_s = self._calm_since_s(host, how)
        if calm_s is None or calm_s > ended_s:
            return
        now_s, findings = self.world.now_s, self.findings
        (findings.refused_s if how == "crash" else findings.silent_s).append(now_s - ended_s)
        if life in self._evidence_s:
            findings.evidence_s.append(now_s - self._evidence_s[life])

    def _evidenced(self, finder: Host, life: Life) -> None:
        """The first evidence of a crash is there: if its finder lives on, everyone shall know."""
        if life not in self._evidence_s and life in self._ended:
            self._evidence_s[life] = self.world.now_s
            observers = [(h, h.life) for h in self.world.hosts.values() if h.is_up]
            if not self._cut_lately():
                finders = [(finder, finder.life)]
                self._expect(life, "evidence", observers, finders, REFUSED_WITHIN_S)

    def _check_reachable(self, host: Host, died: MemberDied) -> None:
        """Invariant 1."""
        world, now_s, member = self.world, self.world.now_s, died.member
        target = world.hosts[member.address]
        if not target.is_up or target.program.core.local.incarnation != member.incarnation:
            return
        clear_s = world.network.clear_since_s(host.address, target.address)
        if clear_s is None or (target.paused and now_s - target.paused_at_s > STALL_MAX_S):
            return
        if now_s - max(clear_s, self._stood_still_s.get(target.address, clear_s)) < SETTLED_S:
            return
        self.findings.false_deaths += 1
        if self.strict:
            world.fail(
                f"{host.address} declared {member.node} dead ({died.evidence.name}, "
                f"{'gossip' if died.is_from_gossip else 'own evidence'}); it lives and is reachable"
            )

    def _check_drained(self, host: Host, change: MemberChanged | MemberDied) -> None:
        """Invariant 3."""
        if host.program.last == "wake" and host.inbox and self.strict:
            waiting = sum(1 for item in host.inbox if item[0] == "datagram")
            if waiting:
                self.world.fail(
                    f"{host.address} judged {change.member.node} {change.member.state} "
                    f"while {waiting} packets waited unread"
                )

    def _check_patience(self, host: Host, node: str, suspected: _Suspected | None) -> None:
        """Invariant 4, when a suspicion has become a verdict."""
        if suspected is None:
            self.world.fail(f"{host.address}: {node} died of silence without being suspected")
            return
        look_s = host.program.config.membership.final_probe_s
        lasted_s, warranted_s = self.world.now_s - suspected.began_s - look_s, suspected.warranted_s
        if self.strict and (warranted_s is None or lasted_s < warranted_s - 0.01):
            self.world.fail(
                f"{host.address} suspected {node} for {lasted_s:.2f} s only; "
                f"its witnesses warrant {warranted_s} s"
            )

    def _check_witnesses(self, host: Host, core: Membership) -> None:
        """Invariant 4, while a suspicion lasts."""
        for peer in core.lifecycle.suspects.values():
            suspicion = peer.suspicion
            if suspicion is None:
                continue
            charge = _charge(peer)
            accusers = self._accusers.get(charge, set())
            witnesses = suspicion.witnesses.keys() & accusers
            warranted_s = self._warranted_s(host, charge, len(witnesses), suspicion._wanted)
            self._suspected[host.address, peer.node].warranted_s = warranted_s
            if not self.strict:
                continue
            if suspicion.deadline_s < suspicion.start_s + warranted_s - 1e-6:
                self.world.fail(
                    f"{host.address} suspects {peer.node} until "
                    f"{suspicion.deadline_s - suspicion.start_s:.2f} s after the start; "
                    f"its {len(witnesses)} witnesses warrant {warranted_s:.2f} s"
                )
            if strangers := suspicion.witnesses.keys() - accusers:
                self.world.fail(
                    f"{host.address} counts {sorted(strangers)} against {peer.node}, "
                    "who never found it silent"
                )

    def _warranted_s(self, host: Host, charge: Charge, witnesses: int, wanted: int) -> float:
        """How long a suspicion has to last at least, its last look apart."""
        config = host.program.config.membership
        least_s: float = config.suspicion_min_s
        if charge in self._condemned:
            return least_s  # by another: who has condemned a charge itself does not suspect it
        most_s = config.suspicion_max_s - config.final_probe_s
        return suspicion_s(least_s, most_s, max(0, witnesses - 1), wanted)

    def _accused(self, accuser: str, charge: Charge) -> None:
        self._accusers.setdefault(charge, set()).add(accuser)

    # Bounds.

    def _expect(
        self,
        life: Life,
        how: str,
        observers: list[tuple[Host, int]],
        holders: list[tuple[Host, int]],
        bound_s: float,
        at_s: float | None = None,
    ) -> None:
        """Invariant 6: everyone who knew it says so, a bound after the last disturbance.

        Refused evidence needs a holder: a node that lived on and may connect to the dead one."""

        registered_s = self.world.now_s

        def check() -> None:
            if how != "silence" and self.calm_s is not None and self.calm_s > registered_s:
                return  # the news may have passed by those cut off meanwhile: they notice silence
            if holders and not any(h.is_up and h.life == lived for h, lived in holders):
                return
            waiting: list[tuple[Host, int]] = []
            next_s = self.world.now_s + 5.0
            for host, host_life in observers:
                if not host.is_up or host.life != host_life:
                    continue
                core: Membership = host.program.core
                peer = core.table.peers.get(life[0])
                if peer is None or not peer.is_living or peer.incarnation != life[1]:
                    continue
                waiting.append((host, host_life))
                calm_s = self._calm_since_s(host, how)
                if calm_s is None:
                    continue
                due_s = calm_s + bound_s
                if due_s <= self.world.now_s + 1e-9:
                    self.world.fail(
                        f"{host.address} still has {life[0]} as {peer.state} "
                        f"{self.world.now_s - self._ended[life][0]:.2f} s after its {how}"
                    )
                next_s = min(next_s, due_s)
            if waiting:
                later_s = max(self.world.now_s + 0.1, next_s)
                self._expect(life, how, waiting, holders, bound_s, later_s)

        self.world.at(self.world.now_s + bound_s if at_s is None else at_s, check)

    def _cut_lately(self) -> bool:
        """Views may differ for a while after a cut: who is not thought alive is not watched."""
        is_unsettled = self.calm_s is not None and self.world.now_s - self.calm_s < SETTLED_S
        return self.world.network.has_cuts or is_unsettled

    def _calm_since_s(self, host: Host, how: str) -> float | None:
        """Return since when nothing disturbed the observer; None if something does now.

        The hosts that hold evidence of a crash must be awake to see it, so all hosts count then.
        """
        if self.world.network.has_cuts:
            return None
        calm_s = 0.0 if self.calm_s is None else self.calm_s
        hosts = [h for h in self.world.hosts.values() if h.is_up] if how == "crash" else [host]
        for each in hosts:
            disturbed_s = self._disturbed_s[each.address]
            if disturbed_s is None:
                return None
            calm_s = max(calm_s, disturbed_s)
        return calm_s


def _observe_accusations(core: Membership, note: Any) -> None:
    """Hears every accusation a core makes of its own (not those it repeats)."""
    suspect = core.lifecycle.suspect

    def observed(peer: Any, by: str) -> None:
        if by == core.local.node:
            note(by, _charge(peer))
        suspect(peer, by)

    core.lifecycle.suspect = observed  # type: ignore[method-assign]  # a spy, not a stub


def _charge(member: Member | MemberRecord) -> Charge:
    return (member.node, member.incarnation, member.refutation)


def views_agree(world: World, *, suspects: bool = False) -> str:
    """Empty if every running member sees exactly the running members alive (or, under heavy loss,
    `suspects` them for the moment); else who does not."""
    fine = LIVING if suspects else (MemberState.ALIVE,)
    running = {
        host.program.core.local.node: host.program.core
        for host in world.hosts.values()
        if host.is_running and not host.program.core.local.is_leaving
    }
    for node, core in running.items():
        for other, theirs in running.items():
            if other == node:
                continue
            peer = core.table.peers.get(other)
            if (
                peer is None
                or peer.state not in fine
                or peer.incarnation != theirs.local.incarnation
            ):
                seen = "unknown" if peer is None else f"{peer.state} {peer.incarnation}"
                return f"{node} sees {other} as {seen}"
        if len(core.table.living) != len(running) - 1:
            extra = [p.node for p in core.table.living if p.node not in running]
            return f"{node} still has {', '.join(extra)} among the living"
    return ""
