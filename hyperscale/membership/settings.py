"""The knobs of membership, with units and bounds."""

from typing import Annotated

from msgspec import Meta, Struct

from hyperscale.errors import InputError

Seconds = Annotated[float, Meta(gt=0, le=3600)]
Count = Annotated[int, Meta(ge=0, le=64)]


class MembershipConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults hold the bounds we promise: refused 3 s, silence 15 s, a stall of 5 s kills nobody.

    Silence is noticed after a watch period and a failed probe (2 s), suspected for 6 s with
    witnesses and 10.5 s without, and looked at for a last 1.5 s: suspicion lasts at most 12 s.
    """

    probe_interval_s: Seconds = 1.0
    probe_timeout_s: Seconds = 0.5
    indirect_probes: Count = 3
    watched: Count = 2
    """Successors on the ring each member probes every period, besides one at random: a node's
    silence is noticed after one period, however many fall silent at once."""

    suspicion_min_s: Seconds = 6.0
    suspicion_max_s: Seconds = 12.0
    """Without any witness, the last look included."""
    confirmations: Count = 3
    last_look_s: Seconds = 1.5
    last_look_pings: Annotated[int, Meta(ge=1, le=20)] = 6

    health_score_max: Count = 8
    """0 turns local health off."""
    nacks: bool = True
    tells_suspects: bool = True
    """Lifeguard's buddy system: who is suspected hears it with the next ping."""

    gossip_interval_s: Seconds = 0.2
    gossip_fanout: Annotated[int, Meta(ge=1, le=16)] = 3
    transmit_factor: Annotated[float, Meta(gt=0, le=10)] = 3.0
    news_bytes_max: Annotated[int, Meta(ge=100, le=1100)] = 900

    push_pull_s: Seconds = 30.0
    reprobe_silent_s: Seconds = 2.0
    """Between pings to one dead member or another; those who fell silent may be back any time."""
    reprobe_gone_s: Seconds = 30.0
    """The same for those whose process is known to be gone."""
    sync_dead_s: Seconds = 15.0

    stall_s: Seconds = 0.5
    """A wake-up this late means this node stood still, and judges nobody for it."""
    stall_extension_max_s: Seconds = 30.0

    greet_first_s: Seconds = 0.5
    greet_most_s: Seconds = 10.0
    tombstone_s: Annotated[float, Meta(gt=0, le=7 * 86400)] = 86400.0
    members_max: Annotated[int, Meta(ge=1, le=100_000)] = 10_000
    leave_s: Seconds = 1.0

    def __post_init__(self) -> None:
        if self.probe_timeout_s >= self.probe_interval_s:
            raise InputError(
                f"probe_timeout_s={self.probe_timeout_s} must be below "
                f"probe_interval_s={self.probe_interval_s}",
                hint="set it near the p99 round trip between members",
            )
        if self.suspicion_min_s + self.last_look_s > self.suspicion_max_s:
            raise InputError(
                f"suspicion_min_s={self.suspicion_min_s} and last_look_s={self.last_look_s} must "
                f"not be above suspicion_max_s={self.suspicion_max_s} together",
                hint="a suspicion starts at the maximum and shrinks to the minimum",
            )
