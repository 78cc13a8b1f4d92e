"""The numbers of membership, as pure functions. References are to Lifeguard (arXiv 1707.00788)."""

import math

from hyperscale.wire.roles import Role

HEALTH_SCORE_MAX = 8
_HEALTH_STEP = 0.25

UNCONFIRMED_S = {Role.MANAGER: 105.0, Role.GATE: 145.0, Role.WORKER: 180.0}
"""How long a member may stay unconfirmed before it is forgotten, by its role."""


def confirmations_wanted(members: int, most: int) -> int:
    """How many independent witnesses bring a suspicion to its shortest: at most n - 2 exist."""
    return max(0, min(most, members - 2))


def suspicion_s(min_s: float, max_s: float, confirmations: int, wanted: int) -> float:
    """How long a suspicion lasts (§IV-B): it shrinks logarithmically with each confirmation."""
    if wanted <= 0:
        return min_s
    share = math.log(confirmations + 1) / math.log(wanted + 1)
    return max(min_s, max_s - (max_s - min_s) * share)


def health_multiplier(score: int) -> float:
    """By how much this node's own patience grows: 1 at score 0, 3 at score 8."""
    return 1.0 + _HEALTH_STEP * score


def probe_timeout_s(base_s: float, rtt_s: float) -> float:
    """Distance is added to patience, never multiplied with it."""
    return base_s + 3.0 * rtt_s


TRANSMISSIONS_MIN = 10
"""With few members there are few to hear it from: ten copies get through a loss of a fifth."""


def transmissions(members: int, factor: float) -> int:
    """How often one member passes a piece of news on. With factor 3 a fifth of the datagrams
    may be lost and still everyone of 50 hears it but once in 15,000 times."""
    return max(TRANSMISSIONS_MIN, math.ceil(factor * math.log2(members + 1)))


def verify_chance(members: int, wanted: int) -> float:
    """With which chance a member that hears of a suspicion looks for itself at once.

    Enough do so that the witnesses wanted are found within one probe, and a thousand members
    do not all ask the one that is in trouble."""
    others = max(1, members - 2)
    return min(1.0, 2.0 * (wanted + 1) / others)


def push_pull_s(base_s: float, members: int) -> float:
    """Between exchanges of whole views: beyond 32 members they grow rarer as they grow larger."""
    if members <= 32:
        return base_s
    return base_s * (math.ceil(math.log2(members) - 5.0) + 1.0)


def catch_up_within_s(members: int) -> float:
    """How soon a member that was away exchanges views: where many were, not all at once."""
    return min(5.0, 0.5 + 0.005 * members)


def backoff_s(first_s: float, most_s: float, attempt: int, chance: float) -> float:
    """The wait before try `attempt` (from 1), with up to a quarter added by `chance` in 0..1."""
    wait_s = min(most_s, first_s * 2.0 ** min(attempt - 1, 62))
    return wait_s * (1.0 + 0.25 * chance)


def greeting_within_s(members: int) -> float:
    """Over how long the first pings to a newcomer are spread, so that it is not flooded."""
    return min(30.0, 0.02 * members)
