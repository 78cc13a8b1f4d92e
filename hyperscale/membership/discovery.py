"""Finding the first members: static seeds and DNS names together. Sans-IO.

Every candidate address is probed on its own schedule, many at once: a dead seed or a slow name
server delays no other candidate. A node that answers is handed to membership for a push-pull,
unless it is this node itself or belongs to another cluster or environment. Discovery never
stops: candidates that are not members yet are probed again and again (so nodes may start in any
order, and two halves that started apart find each other), and a node that has lost all members
starts over at once.

The last DNS answer is kept while DNS fails; a name that failed is not resolved again for a while.
"""

from enum import Enum, auto
from itertools import zip_longest
from random import Random
from typing import Annotated

from msgspec import Meta, Struct

from hyperscale.membership.formulas import backoff_s
from hyperscale.membership.settings import Seconds
from hyperscale.sansio.core import Tick

_CHECK_AGAIN_S = 2.5
"""After a push-pull: by then the candidate is a member, or it is probed again."""


class DiscoveryConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which addresses to try, how often, and with which timeouts."""

    cluster: str
    environment: str
    seeds: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    default_port: Annotated[int, Meta(ge=1, le=65535)] = 9000
    probe_timeout_s: Seconds = 0.5
    probe_timeout_most_s: Seconds = 2.0
    """Each failed probe doubles the timeout, up to this: a lost SYN alone costs a second."""
    probes_max: Annotated[int, Meta(ge=1, le=256)] = 10
    backoff_first_s: Seconds = 0.5
    backoff_most_s: Seconds = 15.0
    dns_timeout_s: Seconds = 2.0
    dns_ttl_min_s: Seconds = 5.0
    dns_failed_s: Seconds = 30.0
    refresh_s: Seconds = 60.0
    unmet_warning_s: Seconds = 60.0
    unmet_warning_again_s: Seconds = 600.0


# Events.


class NameResolved(Struct, frozen=True):
    """A DNS name was resolved to stream addresses, valid for `ttl_s`."""

    name: str
    addresses: tuple[str, ...]
    ttl_s: float


class NameUnresolved(Struct, frozen=True):
    """A DNS name could not be resolved."""

    name: str
    why: str


class ProbeAnswered(Struct, frozen=True):
    """A node of this cluster and environment answered a probe."""

    address: str
    node: str
    cluster: str
    environment: str


class ProbeFailed(Struct, frozen=True):
    """A probe was not answered, or was refused for the reason in `refusal`."""

    address: str
    refusal: str = ""


class MemberUp(Struct, frozen=True):
    """A confirmed member is alive, at this stream address."""

    node: str
    address: str


class MemberDown(Struct, frozen=True):
    """A member died or left."""

    node: str


DiscoveryEvent = (
    Tick | NameResolved | NameUnresolved | ProbeAnswered | ProbeFailed | MemberUp | MemberDown
)


# Effects.


class ResolveName(Struct, frozen=True):
    """Resolve a DNS name; report `NameResolved` or `NameUnresolved`."""

    name: str
    timeout_s: float


class ProbeAddress(Struct, frozen=True):
    """Connect to this address; report `ProbeAnswered` or `ProbeFailed`."""

    address: str
    timeout_s: float


class ContactMember(Struct, frozen=True):
    """Hand this address to membership (`events.MemberDiscovered`)."""

    address: str


class WarnOperator(Struct, frozen=True):
    """Log a warning."""

    text: str


DiscoveryEffect = ResolveName | ProbeAddress | ContactMember | WarnOperator


class _CandidateState(Enum):
    WAITING = auto()  # until `due_s`
    PROBING = auto()
    SELF = auto()  # this node answered there: never probed again


class _Candidate(Struct):
    due_s: float
    found_s: float
    state: _CandidateState = _CandidateState.WAITING
    node: str = ""  # the node that answered; a seed may be a host name, members have addresses
    attempts: int = 0
    warned_s: float | None = None
    refusal: str = ""


class _Name(Struct):
    due_s: float
    addresses: tuple[str, ...] = ()
    is_resolving: bool = False
    failures: int = 0


class Discovery:
    """One node's search for other members."""

    def __init__(
        self, node: str, address: str, config: DiscoveryConfig, *, rng: Random, now_s: float
    ) -> None:
        self._node = node
        self._address = address
        self._config = config
        self._rng = rng
        self._names = {name: _Name(now_s) for name in dict.fromkeys(config.dns_names)}
        self._candidates: dict[str, _Candidate] = {}
        self._living: dict[str, str] = {}  # node -> address
        self._living_at: dict[str, str] = {}  # address -> node
        self._was_joined = False
        self._now_s = now_s
        self._effects: list[DiscoveryEffect] = []
        self._collect_candidates()

    def handle(self, event: DiscoveryEvent, *, now_s: float) -> list[DiscoveryEffect]:
        """Take one event; return its effects, in order."""
        self._now_s = now_s
        self._effects = []
        match event:
            case Tick():
                pass
            case NameResolved(name, addresses, ttl_s):
                self._on_resolved(name, addresses, ttl_s)
            case NameUnresolved(name, why):
                self._on_unresolved(name, why)
            case ProbeAnswered():
                self._on_probe_answered(event)
            case ProbeFailed(address, refusal):
                self._on_probe_failed(address, refusal)
            case MemberUp(node, address):
                self._on_member_up(node, address)
            case MemberDown(node):
                self._on_member_down(node)
        self._start_due()
        self._warn_of_missing()
        return self._effects

    def wake_at_s(self) -> float | None:
        """Return when the core needs a `Tick`; None if nothing is scheduled."""
        times = [name.due_s for name in self._names.values() if not name.is_resolving]
        can_probe = self._probes_under_way() < self._config.probes_max
        for address, candidate in self._candidates.items():
            if can_probe and self._may_probe(address, candidate):
                times.append(candidate.due_s)
            if self._is_missing(address, candidate):
                times.append(self._warn_at_s(candidate))
        return min(times, default=None)

    @property
    def candidates(self) -> list[str]:
        """Every address to try, alternating between seeds and DNS names."""
        return list(self._candidates)

    def _on_resolved(self, name: str, addresses: tuple[str, ...], ttl_s: float) -> None:
        entry = self._names.get(name)
        if entry is None:
            return
        if not addresses:
            self._on_unresolved(name, "no addresses")
            return
        entry.is_resolving, entry.failures = False, 0
        entry.addresses = tuple(dict.fromkeys(addresses))
        ttl_s = max(ttl_s, self._config.dns_ttl_min_s)
        # A node with members only resolves names to find members it has not met.
        entry.due_s = self._now_s + (max(ttl_s, self._config.refresh_s) if self._living else ttl_s)
        self._collect_candidates()

    def _on_unresolved(self, name: str, why: str) -> None:
        entry = self._names.get(name)
        if entry is None:
            return
        entry.is_resolving = False
        entry.due_s = self._now_s + self._config.dns_failed_s
        if not entry.failures:
            kept = f", keeping {len(entry.addresses)} known addresses" if entry.addresses else ""
            self._effects.append(WarnOperator(f"DNS name {name} does not resolve: {why}{kept}"))
        entry.failures += 1

    def _collect_candidates(self) -> None:
        """Merge the addresses of all sources, alternating between them, each address once."""
        sources = [self._config.seeds, *(entry.addresses for entry in self._names.values())]
        merged = [address for row in zip_longest(*sources) for address in row if address]
        known = self._candidates
        self._candidates = {
            address: known.get(address) or _Candidate(self._now_s, self._now_s)
            for address in dict.fromkeys(merged)
            if address != self._address
        }

    def _may_probe(self, address: str, candidate: _Candidate) -> bool:
        return candidate.state is _CandidateState.WAITING and not self._is_member(
            address, candidate
        )

    def _is_member(self, address: str, candidate: _Candidate) -> bool:
        return address in self._living_at or candidate.node in self._living

    def _probes_under_way(self) -> int:
        candidates = self._candidates.values()
        return sum(candidate.state is _CandidateState.PROBING for candidate in candidates)

    def _start_due(self) -> None:
        config = self._config
        for name, entry in self._names.items():
            if not entry.is_resolving and entry.due_s <= self._now_s:
                entry.is_resolving = True
                self._effects.append(ResolveName(name, config.dns_timeout_s))
        free = config.probes_max - self._probes_under_way()
        for address, candidate in self._candidates.items():
            if free <= 0:
                break
            if candidate.due_s <= self._now_s and self._may_probe(address, candidate):
                candidate.state = _CandidateState.PROBING
                free -= 1
                timeout_s = config.probe_timeout_s * 2.0 ** min(candidate.attempts, 8)
                timeout_s = min(timeout_s, config.probe_timeout_most_s)
                self._effects.append(ProbeAddress(address, timeout_s))

    def _on_probe_answered(self, answer: ProbeAnswered) -> None:
        candidate = self._candidates.get(answer.address)
        if candidate is None:
            return
        if answer.node == self._node:
            candidate.state = _CandidateState.SELF
            return
        candidate.state = _CandidateState.WAITING
        refusal = _refusal_of(self._config, answer)
        if refusal:
            self._refuse(answer.address, candidate, refusal)
            return
        candidate.attempts, candidate.refusal, candidate.node = 0, "", answer.node
        candidate.found_s = self._now_s
        candidate.due_s = self._now_s + _CHECK_AGAIN_S
        if answer.node not in self._living:
            self._effects.append(ContactMember(answer.address))

    def _on_probe_failed(self, address: str, refusal: str) -> None:
        candidate = self._candidates.get(address)
        if candidate is None:
            return
        candidate.state = _CandidateState.WAITING
        if refusal:
            self._refuse(address, candidate, refusal)
        else:
            self._back_off(candidate)

    def _refuse(self, address: str, candidate: _Candidate, refusal: str) -> None:
        if refusal != candidate.refusal:
            candidate.refusal = refusal
            self._effects.append(WarnOperator(f"{address} cannot be joined: {refusal}"))
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

    def _is_missing(self, address: str, candidate: _Candidate) -> bool:
        """Return True if probes of a candidate failed; a refusal has its own warning."""
        return bool(
            candidate.attempts
            and not candidate.refusal
            and candidate.state is not _CandidateState.SELF
            and not self._is_member(address, candidate)
        )

    def _warn_at_s(self, candidate: _Candidate) -> float:
        warned_s = candidate.warned_s
        if warned_s is not None and warned_s > candidate.found_s:
            return warned_s + self._config.unmet_warning_again_s
        return candidate.found_s + self._config.unmet_warning_s

    def _warn_of_missing(self) -> None:
        for address, candidate in self._candidates.items():
            if self._is_missing(address, candidate) and self._warn_at_s(candidate) <= self._now_s:
                candidate.warned_s = self._now_s
                waited_s = self._now_s - candidate.found_s
                text = f"Peer {address} still unconfirmed after {waited_s:.0f}s"
                self._effects.append(WarnOperator(f"{text} - check configuration"))

    def _on_member_up(self, node: str, address: str) -> None:
        self._was_joined = True
        self._living_at.pop(self._living.get(node, ""), None)
        self._living[node] = address
        self._living_at[address] = node

    def _on_member_down(self, node: str) -> None:
        address = self._living.pop(node, "")
        if self._living_at.get(address) == node:
            del self._living_at[address]
        for known, candidate in self._candidates.items():
            if known == address or candidate.node == node:
                candidate.attempts, candidate.found_s = 0, self._now_s
                self._back_off(candidate)
        if not self._living and self._was_joined:
            # This node has lost its last member: try every known address at once.
            self._was_joined = False
            for other in self._candidates.values():
                other.attempts, other.due_s = 0, self._now_s
            for entry in self._names.values():
                if not entry.failures:
                    entry.due_s = self._now_s


def _refusal_of(config: DiscoveryConfig, answer: ProbeAnswered) -> str:
    """Return why the node that answered may not be joined; empty if it may."""
    for what, ours, theirs in (
        ("cluster", config.cluster, answer.cluster),
        ("environment", config.environment, answer.environment),
    ):
        if ours != theirs:
            return f"wrong {what}: node {answer.node} is of {theirs!r}, this node of {ours!r}"
    return ""
