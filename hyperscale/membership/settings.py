"""The settings of membership, with units and bounds."""

from typing import Annotated

from msgspec import Meta, Struct

from hyperscale.errors import InputError

Seconds = Annotated[float, Meta(gt=0, le=3600)]
Count = Annotated[int, Meta(ge=0, le=64)]


class MembershipConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The defaults keep these bounds: a refused process is dead after 3 s, a silent one after
    15 s, and a stall of 5 s kills no member.

    Silence is noticed after one probe period and a failed probe (2 s). The suspicion lasts 6 s
    with enough confirmations and 10.5 s without any; final probes take the last 1.5 s.
    """

    probe_interval_s: Seconds = 1.0
    probe_timeout_s: Seconds = 0.5
    indirect_probes: Count = 3
    ring_successors: Count = 2
    """Successors on the ring that a member probes every period, besides one random member: every
    silent node is noticed after one period, however many fall silent at once."""

    suspicion_min_s: Seconds = 6.0
    suspicion_max_s: Seconds = 12.0
    """Without any confirmation, final probes included."""
    confirmations: Count = 3
    final_probe_s: Seconds = 1.5
    final_probe_pings: Annotated[int, Meta(ge=1, le=20)] = 6

    health_score_max: Count = 8
    """0 turns local health off."""
    nacks: bool = True
    buddy_system: bool = True
    """Lifeguard's buddy system: a ping to a suspect carries the suspicion."""

    gossip_interval_s: Seconds = 0.2
    gossip_fanout: Annotated[int, Meta(ge=1, le=16)] = 3
    transmit_factor: Annotated[float, Meta(gt=0, le=10)] = 3.0
    updates_bytes_max: Annotated[int, Meta(ge=100, le=1100)] = 900

    push_pull_s: Seconds = 30.0
    reprobe_silent_s: Seconds = 2.0
    """Between pings to silent members, one member per ping; a partition may heal any time."""
    reprobe_refused_s: Seconds = 30.0
    """Between pings to members whose process has certainly ended."""
    push_pull_silent_s: Seconds = 15.0

    stall_s: Seconds = 0.5
    """A wake-up this late means that this node stalled; no member is blamed for that time."""
    stall_extension_max_s: Seconds = 30.0

    contact_first_s: Seconds = 0.5
    """Between pings to an unconfirmed member at first; the wait doubles up to the maximum."""
    contact_max_s: Seconds = 10.0
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
        if self.suspicion_min_s + self.final_probe_s > self.suspicion_max_s:
            raise InputError(
                f"suspicion_min_s={self.suspicion_min_s} plus final_probe_s={self.final_probe_s} "
                f"must not exceed suspicion_max_s={self.suspicion_max_s}",
                hint="a suspicion starts at the maximum and shrinks to the minimum",
            )
