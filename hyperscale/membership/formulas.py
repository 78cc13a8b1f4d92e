"""The numbers of membership, as pure functions. References are to Lifeguard (arXiv 1707.00788)."""

import math

from hyperscale.wire.roles import Role

HEALTH_SCORE_MAX = 8
_HEALTH_STEP = 0.25

UNCONFIRMED_S = {Role.MANAGER: 105.0, Role.GATE: 145.0, Role.WORKER: 180.0}
"""How long a member may stay unconfirmed before it is removed, by role."""


def confirmations_wanted(members: int, most: int) -> int:
    """Return how many confirmations shorten a suspicion to its minimum: at most n - 2 exist."""
    return max(0, min(most, members - 2))


def suspicion_s(min_s: float, max_s: float, confirmations: int, wanted: int) -> float:
    """Return how long a suspicion lasts (§IV-B): it shrinks with the logarithm of confirmations."""
    if wanted <= 0:
        return min_s
    share = math.log(confirmations + 1) / math.log(wanted + 1)
    return max(min_s, max_s - (max_s - min_s) * share)


def health_multiplier(score: int) -> float:
    """Return the factor for this node's timeouts: 1 at score 0, 3 at score 8."""
    return 1.0 + _HEALTH_STEP * score


def probe_timeout_s(base_s: float, rtt_s: float) -> float:
    """Return the timeout of a probe: the round trip is added to the base, not multiplied."""
    return base_s + 3.0 * rtt_s


TRANSMISSIONS_MIN = 10
"""In a small cluster few members repeat an update: ten copies survive a loss of 20 %."""


def transmissions(members: int, factor: float) -> int:
    """Return how often one member sends an update. With factor 3 and a loss of 20 %, one update
    in 15,000 does not reach all of 50 members."""
    return max(TRANSMISSIONS_MIN, math.ceil(factor * math.log2(members + 1)))


def verify_chance(members: int, wanted: int) -> float:
    """Return the probability that a member probes at once when it hears of a suspicion.

    Enough members do so to find the wanted confirmations within one probe, while a thousand
    members do not all ping the suspect."""
    others = max(1, members - 2)
    return min(1.0, 2.0 * (wanted + 1) / others)


def push_pull_s(base_s: float, members: int) -> float:
    """Return the time between push-pulls: beyond 32 members it grows, because the tables do."""
    if members <= 32:
        return base_s
    return base_s * (math.ceil(math.log2(members) - 5.0) + 1.0)


def catch_up_within_s(members: int) -> float:
    """Return how soon a member that was unreachable starts a push-pull, spread over the members."""
    return min(5.0, 0.5 + 0.005 * members)


def backoff_s(first_s: float, most_s: float, attempt: int, chance: float) -> float:
    """Return the wait before `attempt` (from 1), plus up to a quarter for `chance` in 0..1."""
    wait_s = min(most_s, first_s * 2.0 ** min(attempt - 1, 62))
    return wait_s * (1.0 + 0.25 * chance)


def contact_within_s(members: int) -> float:
    """Return over how long members spread their first pings to a new member."""
    return min(30.0, 0.02 * members)
