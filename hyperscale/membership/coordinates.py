"""Vivaldi network coordinates: round trips that were never measured, from those that were.

Each node has a point in four dimensions plus a height (its access link). The distance of two
points estimates their round trip. A node that measures a round trip moves its own point, more if
it is unsure of itself and less if its peer is (Dabek et al., SIGCOMM 2004; constants as in Serf).
Coordinates travel in messages that are sent anyway, packed into `PACKED_BYTES`.
"""

import math
import struct
from collections import deque
from random import Random
from typing import Self

from msgspec import Struct

DIMENSIONS = 4
SAMPLES_WANTED = 10
"""With fewer samples a coordinate is not used for routing."""
ERROR_MS_MAX = 50.0
"""With a larger error a coordinate is not used for routing."""

_ERROR_MAX = 1.5
_CE = 0.25
_CC = 0.25
_HEIGHT_MIN_S = 1e-5
# Without a floor, noise of fractions of a millisecond within a datacenter keeps the error high.
_DIVISOR_MIN_S = 0.010
_RTT_MAX_S = 10.0
_FILTER = 3
_EWMA = 0.2
_PACKING = struct.Struct(f"<{DIMENSIONS + 3}fH")
PACKED_BYTES = _PACKING.size

_ERROR_GOOD_MS = 10.0
_TTL_S = 60.0
_K_SIGMA = 2.0
_RTT_DEFAULT_MS, _SIGMA_DEFAULT_MS = 150.0, 50.0
_SIGMA_MIN_MS, _SIGMA_MAX_MS = 1.0, 200.0
_RTT_MIN_MS, _RTT_MAX_MS = 1.0, 1000.0


class Coordinate(Struct, frozen=True):
    """Where a node is. `error` is relative (1.5: no idea), `error_ms` absolute."""

    position: tuple[float, ...] = (0.0,) * DIMENSIONS
    height_s: float = _HEIGHT_MIN_S
    error: float = _ERROR_MAX
    error_ms: float = 1000.0
    samples: int = 0

    def distance_s(self, other: Self) -> float:
        """Return the estimated round trip."""
        return math.dist(self.position, other.position) + self.height_s + other.height_s

    def pack(self) -> bytes:
        samples = min(self.samples, 0xFFFF)
        return _PACKING.pack(*self.position, self.height_s, self.error, self.error_ms, samples)

    @property
    def is_usable(self) -> bool:
        """True if routing may rely on the coordinate."""
        return self.samples >= SAMPLES_WANTED and self.error_ms <= ERROR_MS_MAX


def unpack(data: bytes) -> Coordinate | None:
    """Return a packed coordinate; None if it has another size or is not made of numbers."""
    if len(data) != PACKED_BYTES:
        return None
    *position, height_s, error, error_ms, samples = _PACKING.unpack(data)
    found = Coordinate(tuple(position), height_s, error, error_ms, samples)
    return found if _is_sound(found) else None


def _is_sound(coordinate: Coordinate) -> bool:
    numbers = (
        *coordinate.position,
        coordinate.height_s,
        coordinate.error,
        coordinate.error_ms,
    )
    return (
        len(coordinate.position) == DIMENSIONS
        and all(map(math.isfinite, numbers))
        and coordinate.height_s >= 0
        and coordinate.error >= 0
        and coordinate.error_ms >= 0
    )


class RttEstimate(Struct, frozen=True):
    """A cautious estimate of a round trip, and how good it is (0 to 1)."""

    ucb_ms: float
    quality: float


def estimate_rtt(local: Coordinate, remote: Coordinate | None, *, age_s: float) -> RttEstimate:
    """Return an upper bound of a round trip, from coordinates of which the remote one is old."""
    if remote is None:
        return RttEstimate(_RTT_DEFAULT_MS + _K_SIGMA * _SIGMA_DEFAULT_MS, 0.0)
    error_ms = local.error_ms + remote.error_ms
    sigma_ms = min(max(error_ms, _SIGMA_MIN_MS), _SIGMA_MAX_MS)
    ucb_ms = local.distance_s(remote) * 1000 + _K_SIGMA * sigma_ms
    quality = (
        min(1.0, remote.samples / SAMPLES_WANTED)
        * min(1.0, _ERROR_GOOD_MS / max(remote.error_ms, 1.0))
        * (1.0 if age_s <= _TTL_S else _TTL_S / age_s)
    )
    return RttEstimate(min(max(ucb_ms, _RTT_MIN_MS), _RTT_MAX_MS), quality)


class CoordinateSystem:
    """The coordinate of this node, moved by every round trip that it measures."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._recent: dict[str, deque[float]] = {}
        self.local = Coordinate()

    def measured(self, peer: str, remote: Coordinate, rtt_s: float) -> None:
        """Move towards or away from a peer. Impossible measurements change nothing."""
        if not (math.isfinite(rtt_s) and 0 < rtt_s <= _RTT_MAX_S and _is_sound(remote)):
            return
        recent = self._recent.setdefault(peer, deque(maxlen=_FILTER))
        recent.append(rtt_s)
        rtt_s = sorted(recent)[len(recent) // 2]  # one outlier does not move the node
        local = self.local
        predicted_s = local.distance_s(remote)
        weight = local.error / max(local.error + remote.error, 1e-9)
        relative = abs(predicted_s - rtt_s) / max(rtt_s, _DIVISOR_MIN_S)
        error = relative * _CE * weight + local.error * (1 - _CE * weight)
        force_s = _CC * weight * (rtt_s - predicted_s)
        direction, apart_s = self._direction(local, remote)
        position = tuple(
            at + force_s * towards for at, towards in zip(local.position, direction, strict=True)
        )
        height_s = local.height_s
        if apart_s > 0:
            height_s += (local.height_s + remote.height_s) * force_s / apart_s
        absolute_ms = abs(predicted_s - rtt_s) * 1000
        moved = Coordinate(
            position,
            max(height_s, _HEIGHT_MIN_S),
            min(error, _ERROR_MAX),
            absolute_ms
            if not local.samples
            else (1 - _EWMA) * local.error_ms + _EWMA * absolute_ms,
            local.samples + 1,
        )
        if _is_sound(moved):
            self.local = moved

    def forget(self, peer: str) -> None:
        self._recent.pop(peer, None)

    def _direction(self, local: Coordinate, remote: Coordinate) -> tuple[tuple[float, ...], float]:
        """Return the unit vector from the peer to this node, and how far apart they are."""
        between = [a - b for a, b in zip(local.position, remote.position, strict=True)]
        apart_s = math.hypot(*between)
        if apart_s > 1e-9:
            return tuple(each / apart_s for each in between), apart_s
        # Two nodes at one point: any direction separates them.
        drawn = [self._rng.gauss(0, 1) for _ in range(DIMENSIONS)]
        length = math.hypot(*drawn) or 1.0
        return tuple(each / length for each in drawn), 0.0
