"""The class of a datacenter: the table of AD-16, and hysteresis."""

import pytest

from hyperscale.gates.datacenters.health import (
    DatacenterFigures,
    DatacenterHealth,
    HealthFilter,
    classify,
)

H = DatacenterHealth


def figures(
    managers: int = 3,
    healthy_managers: int = 3,
    workers: int = 4,
    healthy_workers: int = 4,
    available_cores: int = 8,
    ready_managers: int | None = None,
) -> DatacenterFigures:
    return DatacenterFigures(
        managers=managers,
        healthy_managers=healthy_managers,
        workers=workers,
        healthy_workers=healthy_workers,
        total_cores=16,
        available_cores=available_cores,
        ready_managers=ready_managers,
    )


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (figures(healthy_managers=0), H.UNHEALTHY),
        (figures(workers=0, healthy_workers=0), H.UNHEALTHY),
        (figures(workers=3, healthy_workers=1), H.DEGRADED),
        (figures(healthy_managers=1), H.DEGRADED),
        (figures(workers=3, healthy_workers=2), H.HEALTHY),
        (figures(healthy_managers=2), H.HEALTHY),
        (figures(workers=4, healthy_workers=2), H.DEGRADED),
        (figures(ready_managers=1), H.DEGRADED),
        (figures(available_cores=0), H.BUSY),
        (figures(available_cores=1), H.HEALTHY),
    ],
)
def test_the_class_follows_from_the_figures(
    said: DatacenterFigures, expected: DatacenterHealth
) -> None:
    assert classify(said) is expected


def _after(*reported: DatacenterHealth) -> DatacenterHealth | None:
    health = HealthFilter()
    for each in reported:
        health.reported(each)
    return health.current


def test_the_first_ack_decides_at_once() -> None:
    assert _after(H.DEGRADED) is H.DEGRADED


def test_one_bad_ack_changes_nothing_and_two_in_a_row_do() -> None:
    assert _after(H.HEALTHY, H.DEGRADED, H.HEALTHY, H.DEGRADED, H.HEALTHY) is H.HEALTHY
    assert _after(H.HEALTHY, H.DEGRADED, H.DEGRADED) is H.DEGRADED


def test_three_better_acks_in_a_row_are_believed() -> None:
    assert _after(H.DEGRADED, H.HEALTHY, H.HEALTHY) is H.DEGRADED
    assert _after(H.DEGRADED, H.HEALTHY, H.HEALTHY, H.HEALTHY) is H.HEALTHY


def test_of_different_classes_in_a_row_the_nearest_counts() -> None:
    assert _after(H.HEALTHY, H.UNHEALTHY, H.BUSY) is H.BUSY
    assert _after(H.UNHEALTHY, H.HEALTHY, H.DEGRADED, H.HEALTHY) is H.DEGRADED
