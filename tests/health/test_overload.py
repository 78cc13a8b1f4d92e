"""Overload: what raises a level, what keeps it, what cannot raise it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.health.overload import (
    FALL_S,
    LoadSample,
    OverloadDetector,
    OverloadSignal,
)
from hyperscale.wire.admission import OverloadLevel

STEP_S = 0.25


def feed(
    detector: OverloadDetector,
    sample: LoadSample,
    *,
    seconds: float,
    from_s: float = 0.0,
    latency_s: float | None = None,
) -> float:
    """The same sample (and latency) again and again; returns when it ended."""
    now_s = from_s
    while now_s < from_s + seconds:
        if latency_s is not None:
            for _ in range(5):
                detector.record_latency(latency_s, now_s=now_s)
        detector.observe(sample, now_s=now_s)
        now_s += STEP_S
    return now_s


@pytest.mark.parametrize(
    ("sample", "level"),
    [
        (LoadSample(), OverloadLevel.HEALTHY),
        (LoadSample(memory=0.70), OverloadLevel.HEALTHY),
        (LoadSample(memory=0.71), OverloadLevel.BUSY),
        (LoadSample(memory=0.86), OverloadLevel.STRESSED),
        (LoadSample(memory=0.96), OverloadLevel.OVERLOADED),
        (LoadSample(cpu=0.71), OverloadLevel.BUSY),
        (LoadSample(cpu=0.86), OverloadLevel.STRESSED),
        (LoadSample(cpu=0.96), OverloadLevel.OVERLOADED),
        (LoadSample(in_flight=0.86), OverloadLevel.STRESSED),
        (LoadSample(queue=0.96), OverloadLevel.OVERLOADED),
        (LoadSample(lag_s=0.11), OverloadLevel.BUSY),
        (LoadSample(lag_s=0.26), OverloadLevel.STRESSED),
        (LoadSample(lag_s=1.1), OverloadLevel.OVERLOADED),
        (LoadSample(cpu=0.71, memory=0.86), OverloadLevel.STRESSED),
    ],
)
def test_the_worst_signal_decides(sample: LoadSample, level: OverloadLevel) -> None:
    detector = OverloadDetector(counts_cpu=True)
    feed(detector, sample, seconds=3)
    assert detector.level is level


@pytest.mark.parametrize(
    ("latency_s", "level"),
    [
        (0.199, OverloadLevel.HEALTHY),
        (0.201, OverloadLevel.BUSY),
        (0.501, OverloadLevel.STRESSED),
        (2.001, OverloadLevel.OVERLOADED),
    ],
)
def test_latency_counts_even_if_it_was_never_lower(latency_s: float, level: OverloadLevel) -> None:
    detector = OverloadDetector(counts_cpu=False)
    feed(detector, LoadSample(), seconds=5, latency_s=latency_s)
    assert detector.level is level


def test_a_busy_cpu_is_no_backlog() -> None:
    detector = OverloadDetector(counts_cpu=True)
    detector.observe(LoadSample(cpu=0.99, memory=0.99), now_s=0.0)
    assert detector.backlog is OverloadLevel.HEALTHY
    detector.observe(LoadSample(queue=0.86), now_s=1.0)
    assert detector.backlog is OverloadLevel.STRESSED


def test_a_load_generator_may_use_all_of_its_cpu() -> None:
    detector = OverloadDetector(counts_cpu=False)
    feed(detector, LoadSample(cpu=1.0), seconds=60)
    assert detector.level is OverloadLevel.HEALTHY


def test_three_times_the_usual_latency_is_stressed_and_stays_so() -> None:
    detector = OverloadDetector(counts_cpu=False)
    now_s = feed(detector, LoadSample(), seconds=60, latency_s=0.060)
    assert detector.level is OverloadLevel.HEALTHY
    levels = []
    for _ in range(100):
        now_s = feed(detector, LoadSample(), seconds=1, from_s=now_s, latency_s=0.180)
        levels.append(detector.level)
    assert levels[-1] is OverloadLevel.STRESSED
    first = levels.index(OverloadLevel.STRESSED)
    assert set(levels[first:]) == {OverloadLevel.STRESSED}


def test_a_lasting_change_of_latency_becomes_the_baseline() -> None:
    detector = OverloadDetector(counts_cpu=False)
    now_s = feed(detector, LoadSample(), seconds=60, latency_s=0.060)
    now_s = feed(detector, LoadSample(), seconds=60, from_s=now_s, latency_s=0.120)
    assert detector.level is OverloadLevel.STRESSED
    feed(detector, LoadSample(), seconds=600, from_s=now_s, latency_s=0.120)
    assert detector.level is OverloadLevel.HEALTHY


def test_growth_of_latency_below_the_floor_is_ignored() -> None:
    detector = OverloadDetector(counts_cpu=False)
    now_s = feed(detector, LoadSample(), seconds=60, latency_s=0.001)
    feed(detector, LoadSample(), seconds=60, from_s=now_s, latency_s=0.030)
    assert detector.level is OverloadLevel.HEALTHY


@given(
    usual_s=st.floats(0.001, 0.15),
    spike_s=st.floats(0.2, 100.0),
    lag_s=st.floats(0.1, 60.0),
)
def test_one_spike_of_latency_and_one_of_lag_change_nothing(
    usual_s: float, spike_s: float, lag_s: float
) -> None:
    detector = OverloadDetector(counts_cpu=False)
    now_s = feed(detector, LoadSample(), seconds=20, latency_s=usual_s)
    detector.record_latency(spike_s, now_s=now_s)
    detector.observe(LoadSample(lag_s=lag_s), now_s=now_s)
    for _ in range(60):
        now_s = feed(detector, LoadSample(), seconds=STEP_S, from_s=now_s, latency_s=usual_s)
        assert detector.level is OverloadLevel.HEALTHY


@given(st.lists(st.floats(0.0, 100.0), max_size=9))
def test_the_first_few_latencies_are_ignored(latencies_s: list[float]) -> None:
    detector = OverloadDetector(counts_cpu=False)
    for latency_s in latencies_s:
        detector.record_latency(latency_s, now_s=0.0)
    feed(detector, LoadSample(), seconds=5)
    assert detector.level is OverloadLevel.HEALTHY


def test_repeated_lag_counts() -> None:
    detector = OverloadDetector(counts_cpu=False)
    now_s = 0.0
    for n in range(80):
        detector.observe(LoadSample(lag_s=1.5 if n % 3 else 0.0), now_s=now_s)
        now_s += STEP_S
    assert detector.level >= OverloadLevel.STRESSED


def test_a_level_rises_after_a_while_and_falls_step_by_step() -> None:
    detector = OverloadDetector(counts_cpu=False)
    assert detector.observe(LoadSample(memory=0.99), now_s=0.0) is OverloadLevel.HEALTHY
    assert detector.observe(LoadSample(memory=0.99), now_s=0.9) is OverloadLevel.HEALTHY
    assert detector.observe(LoadSample(memory=0.99), now_s=1.0) is OverloadLevel.OVERLOADED
    # Just below its mark is not clearly below it.
    assert detector.observe(LoadSample(memory=0.90), now_s=2.0) is OverloadLevel.OVERLOADED
    assert detector.observe(LoadSample(memory=0.90), now_s=60.0) is OverloadLevel.OVERLOADED
    levels = [detector.observe(LoadSample(), now_s=60.0 + n) for n in range(1, 18)]
    assert levels[:5] == [OverloadLevel.OVERLOADED] * 5
    assert levels[5] is OverloadLevel.STRESSED
    assert levels[10] is OverloadLevel.BUSY
    assert levels[15] is OverloadLevel.HEALTHY


def test_a_dip_restarts_the_time_until_a_level_rises() -> None:
    detector = OverloadDetector(counts_cpu=False)
    for n in range(50):  # above its mark for less than a second at a time
        sample = LoadSample(queue=0.0 if n % 4 == 0 else 0.99)
        assert detector.observe(sample, now_s=n * STEP_S) is OverloadLevel.HEALTHY


def test_a_node_without_samples_is_healthy() -> None:
    assert OverloadDetector(counts_cpu=True).level is OverloadLevel.HEALTHY


def test_latency_is_forgotten_when_no_request_is_served() -> None:
    detector = OverloadDetector(counts_cpu=False)
    now_s = feed(detector, LoadSample(), seconds=5, latency_s=3.0)
    assert detector.level is OverloadLevel.OVERLOADED  # everything is shed: no sample will come
    feed(detector, LoadSample(), seconds=60, from_s=now_s)
    assert detector.level is OverloadLevel.HEALTHY


def test_the_worst_signals_are_the_reasons() -> None:
    detector = OverloadDetector(counts_cpu=False)
    assert detector.reasons() == ()
    feed(detector, LoadSample(memory=0.97, queue=0.8), seconds=2)
    assert detector.reasons() == (OverloadSignal.MEMORY,)


shares = st.floats(0.0, 1.0)
samples = st.builds(
    LoadSample, lag_s=st.floats(0.0, 5.0), in_flight=shares, queue=shares, memory=shares, cpu=shares
)


@given(st.lists(samples, max_size=200))
def test_a_level_falls_one_step_at_a_time_and_only_after_the_fall_time(
    script: list[LoadSample],
) -> None:
    detector = OverloadDetector(counts_cpu=True)
    before, lowered_s = detector.level, 0.0
    for n, sample in enumerate(script):
        now_s = n * STEP_S
        level = detector.observe(sample, now_s=now_s)
        if level < before:
            assert before - level == 1
            assert now_s - lowered_s >= FALL_S
            lowered_s = now_s
        elif level > before:
            lowered_s = now_s
            assert max(detector.readings.values()) >= level
        before = level
