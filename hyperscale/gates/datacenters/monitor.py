"""Which datacenters can be reached: probes to two or three managers of each, every two seconds.

A round of probes fails if no manager has answered within its timeout. Rounds have independent
deadlines, so five failures in a row take 13 s (SUSPECTED), and 30 s later the datacenter is
UNREACHABLE. Any ack, however late, makes it REACHABLE again. An election within a datacenter
changes nothing, since any manager may answer. If several datacenters fall silent together the
network is to blame, and UNREACHABLE waits, but not for ever (`health.correlation`).
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from statistics import median

from msgspec import Struct

from hyperscale.gates.datacenters.health import (
    DatacenterFigures,
    DatacenterHealth,
    HealthFilter,
    classify,
)
from hyperscale.gates.datacenters.registry import DatacenterState
from hyperscale.health.correlation import CorrelationGuard
from hyperscale.membership.coordinates import Coordinate
from hyperscale.sansio.core import Tick


class ProbeSettings(Struct, frozen=True, kw_only=True):
    interval_s: float = 2.0
    timeout_s: float = 5.0
    failures: int = 5
    suspicion_s: float = 30.0
    hold_s: float = 30.0  # how much longer, if several datacenters are silent
    managers: int = 3  # probed in one round
    stale_s: float = 6.0  # figures older than this are no ground for a good class


class Reachability(Enum):
    UNREACHABLE = "unreachable"  # also before the first ack
    REACHABLE = "reachable"
    SUSPECTED = "suspected"


@dataclass(frozen=True, slots=True)
class DatacenterRegistered:
    """Managers of a datacenter, by address. Those named last time and not now are dropped."""

    datacenter: str
    managers: tuple[str, ...]
    state: DatacenterState = DatacenterState.ACTIVE


@dataclass(frozen=True, slots=True)
class DatacenterForgotten:
    datacenter: str


@dataclass(frozen=True, slots=True)
class ProbeAcked:
    """A manager answered the probe with this nonce."""

    datacenter: str
    manager: str
    nonce: int
    figures: DatacenterFigures
    term: int = 0  # of the datacenter's management group
    is_leader: bool = False
    leader: str = ""
    coordinate: Coordinate | None = None


MonitorEvent = DatacenterRegistered | DatacenterForgotten | ProbeAcked | Tick


@dataclass(frozen=True, slots=True)
class SendProbe:
    """Probe a manager. `ProbeAcked` follows, or nothing."""

    datacenter: str
    manager: str
    nonce: int


@dataclass(frozen=True, slots=True)
class DatacenterChanged:
    """Reachability or class of a datacenter has changed."""

    datacenter: str
    reachability: Reachability
    health: DatacenterHealth


MonitorEffect = SendProbe | DatacenterChanged


class DatacenterView(Struct, frozen=True, kw_only=True):
    """What a gate knows about a datacenter."""

    datacenter: str
    reachability: Reachability
    health: DatacenterHealth
    figures: DatacenterFigures | None = None  # None: no manager has answered yet
    rtt_s: float | None = None
    leader: str = ""
    coordinate: Coordinate | None = None
    age_s: float = 0.0  # of the figures
    state: DatacenterState = DatacenterState.ACTIVE  # as committed


@dataclass(slots=True)
class _Round:
    sent_s: float
    has_failed: bool = False


@dataclass(slots=True)
class _Latest:
    """The figures that count, and where they are from."""

    figures: DatacenterFigures
    at_s: float
    is_of_leader: bool
    term: int


@dataclass(slots=True)
class _Datacenter:
    managers: tuple[str, ...]
    probe_at_s: float
    state: DatacenterState = DatacenterState.ACTIVE
    reachability: Reachability = Reachability.UNREACHABLE
    failures: int = 0
    suspected_s: float | None = None
    rounds: dict[int, _Round] = field(default_factory=dict)
    turn: int = 0
    filter: HealthFilter = field(default_factory=HealthFilter)
    latest: _Latest | None = None
    leader: str = ""
    coordinate: Coordinate | None = None
    rtts_s: deque[float] = field(default_factory=lambda: deque(maxlen=9))
    shown: tuple[Reachability, DatacenterHealth] | None = None


class DatacenterMonitor:
    """Every gate runs one. `views()` is what it knows."""

    def __init__(self, settings: ProbeSettings | None = None, *, first_nonce: int = 1) -> None:
        self._settings = settings or ProbeSettings()
        self._nonce = first_nonce
        self._datacenters: dict[str, _Datacenter] = {}
        self._guard = CorrelationGuard(hold_s=self._settings.suspicion_s + self._settings.hold_s)

    def handle(self, event: MonitorEvent, *, now_s: float) -> list[MonitorEffect]:
        match event:
            case DatacenterRegistered():
                return self._registered(event, now_s)
            case DatacenterForgotten(datacenter):
                self._datacenters.pop(datacenter, None)
                self._guard.recovered(datacenter)
                return []
            case ProbeAcked():
                return self._acked(event, now_s)
            case Tick():
                return self._tick(now_s)

    def wake_at_s(self) -> float | None:
        settings = self._settings
        times = [known.probe_at_s for known in self._datacenters.values()]
        for known in self._datacenters.values():
            times += [
                each.sent_s + settings.timeout_s
                for each in known.rounds.values()
                if not each.has_failed
            ]
        return min(times, default=None)

    def views(self, *, now_s: float) -> dict[str, DatacenterView]:
        return {
            name: DatacenterView(
                datacenter=name,
                reachability=known.reachability,
                health=self._health(known, now_s),
                figures=known.latest.figures if known.latest else None,
                rtt_s=median(known.rtts_s) if known.rtts_s else None,
                leader=known.leader,
                coordinate=known.coordinate,
                age_s=now_s - known.latest.at_s if known.latest else 0.0,
                state=known.state,
            )
            for name, known in self._datacenters.items()
        }

    # --- events -----------------------------------------------------------------------------

    def _registered(self, event: DatacenterRegistered, now_s: float) -> list[MonitorEffect]:
        known = self._datacenters.get(event.datacenter)
        if known is None:
            known = _Datacenter(event.managers, now_s)
            self._datacenters[event.datacenter] = known
        known.managers, known.state = event.managers, event.state
        return self._tick(now_s)

    def _acked(self, ack: ProbeAcked, now_s: float) -> list[MonitorEffect]:
        known = self._datacenters.get(ack.datacenter)
        sent = None if known is None else known.rounds.get(ack.nonce)
        if known is None or sent is None:
            return []  # not the answer to a probe of this gate
        if not sent.has_failed:
            known.rtts_s.append(now_s - sent.sent_s)
            sent.has_failed = True  # its deadline means nothing any more
        known.failures, known.suspected_s = 0, None
        for other in known.rounds.values():
            # The datacenter answers, so rounds that were lost on the way say nothing about it.
            other.has_failed = other.has_failed or other.sent_s < sent.sent_s
        known.reachability = Reachability.REACHABLE
        self._guard.recovered(ack.datacenter)
        if self._is_newer(known, ack, now_s):
            known.latest = _Latest(ack.figures, now_s, ack.is_leader, ack.term)
            known.leader = ack.leader or known.leader
            known.coordinate = ack.coordinate or known.coordinate
            known.filter.reported(classify(ack.figures))
        return self._changes(ack.datacenter, known, now_s)

    def _is_newer(self, known: _Datacenter, ack: ProbeAcked, now_s: float) -> bool:
        """Return True if the figures replace what is known: those of an old leader do not, nor
        those of a follower while the leader answers. A datacenter that was built anew has lower
        terms, so that old figures give way after a while."""
        latest = known.latest
        if latest is None or ack.term > latest.term:
            return True
        if now_s >= latest.at_s + self._settings.suspicion_s:
            return True
        is_fresh = now_s < latest.at_s + self._settings.stale_s
        is_better = ack.is_leader or not (latest.is_of_leader and is_fresh)
        return ack.term == latest.term and is_better

    def _tick(self, now_s: float) -> list[MonitorEffect]:
        effects: list[MonitorEffect] = []
        for name, known in self._datacenters.items():
            self._expire(name, known, now_s)
            if now_s >= known.probe_at_s and known.managers:
                known.probe_at_s = now_s + self._settings.interval_s
                effects += self._probe(name, known, now_s)
            elif now_s >= known.probe_at_s:
                known.probe_at_s = now_s + self._settings.interval_s
            effects += self._changes(name, known, now_s)
        return effects

    def _probe(self, name: str, known: _Datacenter, now_s: float) -> list[MonitorEffect]:
        self._nonce += 1
        known.rounds[self._nonce] = _Round(now_s)
        chosen = self._chosen(known)
        known.turn += 1
        return [SendProbe(name, manager, self._nonce) for manager in chosen]

    def _chosen(self, known: _Datacenter) -> list[str]:
        """Return the managers of this round: the leader, and others in turn."""
        others = [each for each in known.managers if each != known.leader]
        chosen = [known.leader] if known.leader in known.managers else []
        wanted = min(self._settings.managers, len(known.managers)) - len(chosen)
        start = known.turn * max(1, wanted)
        chosen += [others[(start + n) % len(others)] for n in range(wanted)] if others else []
        return chosen

    def _expire(self, name: str, known: _Datacenter, now_s: float) -> None:
        settings = self._settings
        for nonce, each in list(known.rounds.items()):
            if not each.has_failed and now_s >= each.sent_s + settings.timeout_s:
                each.has_failed = True
                known.failures += 1
            if now_s >= each.sent_s + settings.timeout_s + settings.suspicion_s:
                del known.rounds[nonce]
        if known.reachability is Reachability.REACHABLE and known.failures >= settings.failures:
            known.reachability, known.suspected_s = Reachability.SUSPECTED, now_s
            self._guard.failed(name, is_certain=False, now_s=now_s)
        if known.suspected_s is not None and now_s >= known.suspected_s + settings.suspicion_s:
            reached = sum(each.latest is not None for each in self._datacenters.values())
            if not self._guard.is_held(name, nodes=reached, now_s=now_s):
                known.reachability, known.suspected_s = Reachability.UNREACHABLE, None

    def _health(self, known: _Datacenter, now_s: float) -> DatacenterHealth:
        current = known.filter.current
        if current is None or known.latest is None:
            return DatacenterHealth.UNHEALTHY
        is_stale = now_s > known.latest.at_s + self._settings.stale_s
        return max(current, DatacenterHealth.DEGRADED) if is_stale else current

    def _changes(self, name: str, known: _Datacenter, now_s: float) -> list[MonitorEffect]:
        shown = (known.reachability, self._health(known, now_s))
        if shown == known.shown:
            return []
        known.shown = shown
        return [DatacenterChanged(name, *shown)]
