"""Membership with one rule broken each: the invariants and bounds must notice every one.

A mutant is a factory like `Membership` itself, and the profile of schedules that catches it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from hyperscale.membership.core import Membership
from hyperscale.membership.local_node import LocalIdentity
from hyperscale.membership.member_table import MemberRecord
from hyperscale.membership.settings import MembershipConfig


def no_stall_guard(identity: LocalIdentity, config: MembershipConfig, **kwargs: Any) -> Membership:
    """After a stall neither is the socket emptied (the shell's part) nor more time given."""
    core = Membership(identity, config, **kwargs)
    core.lifecycle.extend_for_stall = lambda late_s: None  # type: ignore[method-assign]
    return core


def no_nack(identity: LocalIdentity, config: MembershipConfig, **kwargs: Any) -> Membership:
    """Relays say nothing when a target is silent: whoever asked takes itself for deaf."""
    return Membership(identity, msgspec.structs.replace(config, nacks=False), **kwargs)


def incarnation_zero(
    identity: LocalIdentity, config: MembershipConfig, **kwargs: Any
) -> Membership:
    """A process starts as incarnation 0, like the one before it."""
    return Membership(msgspec.structs.replace(identity, incarnation=0), config, **kwargs)


def dead_never_reprobed(
    identity: LocalIdentity, config: MembershipConfig, **kwargs: Any
) -> Membership:
    """Who is dead is not asked again, nor synced with."""
    never_s = 3600.0
    rules = {
        "reprobe_silent_s": never_s,
        "reprobe_refused_s": never_s,
        "push_pull_silent_s": never_s,
    }
    return Membership(identity, msgspec.structs.replace(config, **rules), **kwargs)


def counted_twice(identity: LocalIdentity, config: MembershipConfig, **kwargs: Any) -> Membership:
    """The same witness shortens a suspicion each time it is heard."""
    core = Membership(identity, config, **kwargs)
    suspect = core.lifecycle.suspect

    def counted(peer: MemberRecord, by: str) -> None:
        suspicion = peer.suspicion
        if suspicion is not None and by in suspicion.witnesses and suspicion.wants_witnesses:
            by = f"{by} again {len(suspicion.witnesses)}"
        suspect(peer, by)

    core.lifecycle.suspect = counted  # type: ignore[method-assign]
    return core


def verdict_unnamed(identity: LocalIdentity, config: MembershipConfig, **kwargs: Any) -> Membership:
    """Verdicts do not say whose they are: they count beside the witnesses that are named."""
    core = Membership(identity, config, **kwargs)
    named = core.context.accuser_of

    def unnamed(peer: MemberRecord) -> str:
        return "" if peer.suspicion is None else named(peer)

    core.context.accuser_of = unnamed  # type: ignore[method-assign]
    return core


@dataclass(frozen=True)
class Mutant:
    name: str
    core: Callable[..., Membership]
    profile: str
    caught_by: str
    """Part of what the violation says."""
    drains: bool = True


MUTANTS = (
    Mutant("no stall guard", no_stall_guard, "naps", "waited unread", drains=False),
    Mutant("no nack", no_nack, "blackout", "after its silence"),
    Mutant("incarnation reset to 0", incarnation_zero, "deaths", "it was 0 before"),
    Mutant("dead never re-probed", dead_never_reprobed, "split", "no common view"),
    Mutant("confirmation counted twice", counted_twice, "deaths", "witnesses warrant"),
    Mutant("verdict unnamed", verdict_unnamed, "split", "never found it silent"),
)
