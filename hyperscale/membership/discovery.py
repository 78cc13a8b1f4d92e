"""Finding the first members: static seeds and DNS names together. Sans-IO.

Every candidate address is probed on its own schedule, many at once: a dead seed or a slow name
server delays nobody. Whoever answers, is not this node itself and is of the same cluster and
environment, is handed to membership to exchange views with. It goes on in the background:
candidates that are no members yet are probed again and again (so any start order works, and two
halves that started apart find each other), and a node left alone starts over at once.

What DNS said last is kept when DNS fails; a name that failed is left alone for a while.
"""

from enum import StrEnum
from itertools import zip_longest
from random import Random
from typing import Annotated

from msgspec import Meta, Struct

from hyperscale.membership.formulas import backoff_s
from hyperscale.membership.settings import Seconds

_CHECK_AGAIN_S = 2.5
"""After views were exchanged: by then the candidate is a member, or is asked again."""


class DiscoveryConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to look, and how patiently."""

    cluster: str
    environment: str
    seeds: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    default_port: Annotated[int, Meta(ge=1, le=65535)] = 9000
    probe_timeout_s: Seconds = 0.5
    probe_timeout_most_s: Seconds = 2.0
    """A probe that failed is given twice the time, up to this: a lost SYN alone costs a second."""
    probes_max: Annotated[int, Meta(ge=1, le=256)] = 10
    backoff_first_s: Seconds = 0.5
    backoff_most_s: Seconds = 15.0
    dns_timeout_s: Seconds = 2.0
    dns_ttl_min_s: Seconds = 5.0
    dns_failed_s: Seconds = 30.0
    refresh_s: Seconds = 60.0
    unmet_warning_s: Seconds = 60.0
    unmet_warning_again_s: Seconds = 600.0


class DiscoveryPhase(StrEnum):
    """How far this node has come in finding others."""

    INITIAL = "initial"
    RESOLVING = "resolving"
    PROBING = "probing"
    JOINED = "joined"
    BACKOFF = "backoff"


# Events.


class DiscoveryTick(Struct, frozen=True):
    pass


class NameResolved(Struct, frozen=True):
    """What a DNS name stands for: stream addresses, good for `ttl_s`."""

    name: str
    addresses: tuple[str, ...]
    ttl_s: float


class NameUnresolved(Struct, frozen=True):
    name: str
    why: str


class ProbeAnswered(Struct, frozen=True):
    """A probe was answered by this node of this cluster and environment."""

    address: str
    node: str
    cluster: str
    environment: str


class ProbeFailed(Struct, frozen=True):
    """A probe was not answered, or refused with a reason worth showing."""

    address: str
    refusal: str = ""


class MemberUp(Struct, frozen=True):
    """A confirmed member lives, at this stream address."""

    node: str
    address: str


class MemberDown(Struct, frozen=True):
    node: str


DiscoveryEvent = (
    DiscoveryTick
    | NameResolved
    | NameUnresolved
    | ProbeAnswered
    | ProbeFailed
    | MemberUp
    | MemberDown
)


# Effects.


class ResolveName(Struct, frozen=True):
    name: str
    timeout_s: float


class ProbeAddress(Struct, frozen=True):
    """Connect to this address and report `ProbeAnswered` or `ProbeFailed`."""

    address: str
    timeout_s: float


class ContactMember(Struct, frozen=True):
    """Hand this address to membership (`events.Contact`)."""

    address: str


class WarnOperator(Struct, frozen=True):
    """Something people should read, once."""

    text: str


DiscoveryEffect = ResolveName | ProbeAddress | ContactMember | WarnOperator


class _Candidate:
    __slots__ = (
        "attempts",
        "due_s",
        "found_s",
        "is_self",
        "is_under_way",
        "node",
        "refusal",
        "warned_s",
    )

    def __init__(self, now_s: float) -> None:
        self.node = ""  # who answered there: a seed may be written as a name, members are not
        self.due_s = now_s
        self.attempts = 0
        self.is_self = False
        self.is_under_way = False
        self.found_s = now_s
        self.warned_s = float("-inf")
        self.refusal = ""


class _Name:
    __slots__ = ("addresses", "due_s", "failed", "is_under_way")

    def __init__(self, now_s: float) -> None:
        self.addresses: tuple[str, ...] = ()
        self.due_s = now_s
        self.is_under_way = False
        self.failed = 0


class Discovery:
    """One node's search for the others."""

    def __init__(
        self, node: str, address: str, config: DiscoveryConfig, *, rng: Random, now_s: float
    ) -> None:
        self._node = node
        self._address = address
        self._config = config
        self._rng = rng
        self._names = {name: _Name(now_s) for name in dict.fromkeys(config.dns_names)}
        self._candidates: dict[str, _Candidate] = {}
        self._living: dict[str, str] = {}
        self._inhabited: dict[str, str] = {}
        self._was_joined = False
        self._now_s = now_s
        self._effects: list[DiscoveryEffect] = []
        self._collect()

    @property
    def phase(self) -> DiscoveryPhase:
        if self._living:
            return DiscoveryPhase.JOINED
        if any(c.is_under_way for c in self._candidates.values()):
            return DiscoveryPhase.PROBING
        if any(n.is_under_way for n in self._names.values()):
            return DiscoveryPhase.RESOLVING
        if any(c.attempts for c in self._candidates.values()):
            return DiscoveryPhase.BACKOFF
        return DiscoveryPhase.INITIAL

    @property
    def candidates(self) -> list[str]:
        """Every address worth a try, seeds and names taking turns."""
        return list(self._candidates)

    def wake_at_s(self) -> float:
        times = [n.due_s for n in self._names.values() if not n.is_under_way]
        if self._under_way() < self._config.probes_max:
            times += [c.due_s for a, c in self._candidates.items() if self._is_wanted(a, c)]
        times += [self._warn_at_s(c) for a, c in self._candidates.items() if self._is_unmet(a, c)]
        return min(times, default=float("inf"))

    def handle(self, event: DiscoveryEvent, *, now_s: float) -> list[DiscoveryEffect]:
        self._now_s = now_s
        self._effects = []
        match event:
            case DiscoveryTick():
                pass
            case NameResolved(name, addresses, ttl_s):
                self._resolved(name, addresses, ttl_s)
            case NameUnresolved(name, why):
                self._unresolved(name, why)
            case ProbeAnswered():
                self._met(event)
            case ProbeFailed(address, refusal):
                self._missed(address, refusal)
            case MemberUp(node, address):
                self._up(node, address)
            case MemberDown(node):
                self._down(node)
        self._start_due()
        self._warn_of_unmet()
        return self._effects

    # Names.

    def _resolved(self, name: str, addresses: tuple[str, ...], ttl_s: float) -> None:
        entry = self._names.get(name)
        if entry is None:
            return
        if not addresses:
            self._unresolved(name, "no addresses")
            return
        entry.is_under_way, entry.failed = False, 0
        entry.addresses = tuple(dict.fromkeys(addresses))
        ttl_s = max(ttl_s, self._config.dns_ttl_min_s)
        # Once there are members, names only matter for those not yet met.
        entry.due_s = self._now_s + (max(ttl_s, self._config.refresh_s) if self._living else ttl_s)
        self._collect()

    def _unresolved(self, name: str, why: str) -> None:
        entry = self._names.get(name)
        if entry is None:
            return
        entry.is_under_way = False
        entry.due_s = self._now_s + self._config.dns_failed_s
        if not entry.failed:
            kept = f", keeping {len(entry.addresses)} known addresses" if entry.addresses else ""
            self._effects.append(WarnOperator(f"DNS name {name} does not resolve: {why}{kept}"))
        entry.failed += 1

    def _collect(self) -> None:
        """The candidates of all sources, taking turns, each address once."""
        sources = [self._config.seeds, *(entry.addresses for entry in self._names.values())]
        turns = [address for turn in zip_longest(*sources) for address in turn if address]
        known = self._candidates
        self._candidates = {
            address: known.get(address) or _Candidate(self._now_s)
            for address in dict.fromkeys(turns)
            if address != self._address
        }

    # Probes.

    def _is_wanted(self, address: str, candidate: _Candidate) -> bool:
        return not (
            candidate.is_self
            or candidate.is_under_way
            or address in self._inhabited
            or candidate.node in self._living
        )

    def _under_way(self) -> int:
        return sum(1 for c in self._candidates.values() if c.is_under_way)

    def _start_due(self) -> None:
        config = self._config
        for name, entry in self._names.items():
            if not entry.is_under_way and entry.due_s <= self._now_s:
                entry.is_under_way = True
                self._effects.append(ResolveName(name, config.dns_timeout_s))
        free = config.probes_max - self._under_way()
        for address, candidate in self._candidates.items():
            if free <= 0:
                break
            if candidate.due_s <= self._now_s and self._is_wanted(address, candidate):
                candidate.is_under_way = True
                free -= 1
                timeout_s = config.probe_timeout_s * 2.0 ** min(candidate.attempts, 8)
                timeout_s = min(timeout_s, config.probe_timeout_most_s)
                self._effects.append(ProbeAddress(address, timeout_s))

    def _met(self, met: ProbeAnswered) -> None:
        candidate = self._candidates.get(met.address)
        if candidate is None:
            return
        candidate.is_under_way = False
        if met.node == self._node:
            candidate.is_self = True
            return
        refusal = refusal_of(self._config, met)
        if refusal:
            self._refused(met.address, candidate, refusal)
            return
        candidate.attempts, candidate.refusal, candidate.node = 0, "", met.node
        candidate.found_s = self._now_s
        candidate.due_s = self._now_s + _CHECK_AGAIN_S
        if met.node not in self._living:
            self._effects.append(ContactMember(met.address))

    def _missed(self, address: str, refusal: str) -> None:
        candidate = self._candidates.get(address)
        if candidate is None:
            return
        candidate.is_under_way = False
        if refusal:
            self._refused(address, candidate, refusal)
            return
        self._back_off(candidate)

    def _is_unmet(self, address: str, candidate: _Candidate) -> bool:
        """Tried in vain; who refused has had a warning of its own."""
        return bool(
            candidate.attempts
            and not candidate.refusal
            and not candidate.is_self
            and address not in self._inhabited
            and candidate.node not in self._living
        )

    def _warn_at_s(self, candidate: _Candidate) -> float:
        if candidate.warned_s > candidate.found_s:
            return candidate.warned_s + self._config.unmet_warning_again_s
        return candidate.found_s + self._config.unmet_warning_s

    def _warn_of_unmet(self) -> None:
        for address, candidate in self._candidates.items():
            if self._is_unmet(address, candidate) and self._warn_at_s(candidate) <= self._now_s:
                candidate.warned_s = self._now_s
                waited_s = self._now_s - candidate.found_s
                text = f"Peer {address} still unconfirmed after {waited_s:.0f}s"
                self._effects.append(WarnOperator(f"{text} - check configuration"))

    def _refused(self, address: str, candidate: _Candidate, refusal: str) -> None:
        if refusal != candidate.refusal:
            candidate.refusal = refusal
            self._effects.append(WarnOperator(f"{address} is not one of ours: {refusal}"))
        candidate.attempts = max(candidate.attempts, 5)
        self._back_off(candidate)

    def _back_off(self, candidate: _Candidate) -> None:
        config = self._config
        candidate.attempts += 1
        candidate.due_s = self._now_s + backoff_s(
            config.backoff_first_s,
            config.backoff_most_s,
            candidate.attempts,
            self._rng.random(),
        )

    def _up(self, node: str, address: str) -> None:
        self._was_joined = True
        self._inhabited.pop(self._living.get(node, ""), None)
        self._living[node] = address
        self._inhabited[address] = node

    def _down(self, node: str) -> None:
        address = self._living.pop(node, "")
        if self._inhabited.get(address) == node:
            del self._inhabited[address]
        for known, candidate in self._candidates.items():
            if known == address or candidate.node == node:
                candidate.attempts, candidate.found_s = 0, self._now_s
                self._back_off(candidate)
        if not self._living and self._was_joined:
            # Alone again: everything known is worth a try, at once.
            self._was_joined = False
            for other in self._candidates.values():
                other.attempts, other.due_s = 0, self._now_s
            for entry in self._names.values():
                if not entry.failed:
                    entry.due_s = self._now_s


def refusal_of(own: DiscoveryConfig, met: ProbeAnswered) -> str:
    """Why whoever answered may not be joined, naming both sides; empty if it may."""
    for what, ours, theirs in (
        ("cluster", own.cluster, met.cluster),
        ("environment", own.environment, met.environment),
    ):
        if ours != theirs:
            return f"wrong {what}: node {met.node} is of {theirs!r}, this node of {ours!r}"
    return ""
