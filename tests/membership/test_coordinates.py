"""Vivaldi coordinates: they converge, fit into 80 bytes, and ignore impossible input."""

import math
from itertools import product
from random import Random
from statistics import median

import pytest

from hyperscale.membership.coordinates import (
    PACKED_BYTES,
    Coordinate,
    CoordinateSystem,
    estimate_rtt,
    unpack,
)

_BETWEEN_S = {("a", "b"): 0.080, ("a", "c"): 0.150, ("b", "c"): 0.100}


def _rtt_s(one: str, other: str, rng: Random) -> float:
    exact_s = 0.001 if one[0] == other[0] else _exact_s(one, other)
    outlier = 5.0 if rng.random() < 0.02 else 1.0
    return exact_s * (1 + 0.1 * (2 * rng.random() - 1)) * outlier


def _exact_s(one: str, other: str) -> float:
    return _BETWEEN_S[min(one[0], other[0]), max(one[0], other[0])]


def _errors(datacenters: str, seed: int, rounds: int) -> list[float]:
    """Return the relative errors between datacenters after every node has pinged `rounds` times."""
    rng = Random(seed)
    names = [f"{each}{n}" for each, n in product(datacenters, range(4))]
    systems = {name: CoordinateSystem(Random(f"{seed}/{name}")) for name in names}
    for _ in range(rounds):
        for name, system in systems.items():
            peer = rng.choice([other for other in names if other != name])
            packed = unpack(systems[peer].local.pack())
            assert packed is not None
            system.measured(peer, packed, _rtt_s(name, peer, rng))
    return [
        abs(systems[one].local.distance_s(systems[other].local) - _exact_s(one, other))
        / _exact_s(one, other)
        for one, other in product(names, names)
        if one[0] < other[0]
    ]


@pytest.mark.parametrize("datacenters", ["ab", "abc"])
def test_the_median_error_between_datacenters_is_below_20_percent_after_20_rounds(
    datacenters: str,
) -> None:
    medians = [median(_errors(datacenters, seed, rounds=20)) for seed in range(20)]
    assert median(medians) < 0.20


def test_a_coordinate_takes_at_most_80_bytes() -> None:
    assert PACKED_BYTES <= 80


@pytest.mark.parametrize("rtt_s", [0.0, -0.1, math.nan, math.inf, 11.0])
def test_an_impossible_round_trip_changes_nothing(rtt_s: float) -> None:
    system = CoordinateSystem(Random(1))
    system.measured("peer", Coordinate(), rtt_s)
    assert system.local == Coordinate()


@pytest.mark.parametrize(
    "remote",
    [
        Coordinate((0.0, 0.0, 0.0)),
        Coordinate((0.0, 0.0, 0.0, math.nan)),
        Coordinate(height_s=-1.0),
        Coordinate(error=math.inf),
    ],
)
def test_an_impossible_coordinate_changes_nothing(remote: Coordinate) -> None:
    system = CoordinateSystem(Random(1))
    system.measured("peer", remote, 0.05)
    assert system.local == Coordinate()


@pytest.mark.parametrize("data", [b"", b"x" * 3, b"x" * (PACKED_BYTES + 1), b"\xff" * PACKED_BYTES])
def test_bytes_that_are_no_coordinate_are_ignored(data: bytes) -> None:
    assert unpack(data) is None


def test_a_missing_coordinate_has_the_default_round_trip_and_no_quality() -> None:
    estimate = estimate_rtt(Coordinate(), None, age_s=0.0)
    assert (estimate.ucb_ms, estimate.quality) == (250.0, 0.0)


@pytest.mark.parametrize("error_ms", [0.0, 1.0, 1e9])
@pytest.mark.parametrize("away_s", [0.0, 0.1, 1e6])
def test_an_estimate_stays_within_its_bounds(error_ms: float, away_s: float) -> None:
    remote = Coordinate((away_s, 0.0, 0.0, 0.0), error_ms=error_ms, samples=20)
    estimate = estimate_rtt(Coordinate(), remote, age_s=120.0)
    assert 1.0 <= estimate.ucb_ms <= 1000.0
    assert 0.0 <= estimate.quality <= 0.5


def test_a_coordinate_is_usable_after_ten_samples_with_a_small_error() -> None:
    assert Coordinate(samples=10, error_ms=50.0).is_usable
    assert not Coordinate(samples=9, error_ms=10.0).is_usable
    assert not Coordinate(samples=10, error_ms=51.0).is_usable
