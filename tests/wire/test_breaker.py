"""The circuit breaker and the backoff, on a clock that is an argument."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from hyperscale.wire.retries import Backoff, BreakerState, CircuitBreaker


def test_three_failures_within_the_window_open_the_circuit() -> None:
    breaker = CircuitBreaker()
    for now_s in (0.0, 1.0):
        breaker.failed(now_s=now_s)
        assert breaker.try_begin(now_s=now_s) == 0.0
    breaker.failed(now_s=29.0)
    assert breaker.state(now_s=29.0) is BreakerState.OPEN
    assert breaker.try_begin(now_s=30.0) == 9.0


def test_failures_far_apart_do_not_open_the_circuit() -> None:
    breaker = CircuitBreaker()
    for now_s in (0.0, 20.0, 31.0, 55.0, 70.0):
        breaker.failed(now_s=now_s)
        assert breaker.state(now_s=now_s) is BreakerState.CLOSED


def test_a_success_forgets_earlier_failures() -> None:
    breaker = CircuitBreaker()
    breaker.failed(now_s=0.0)
    breaker.failed(now_s=0.0)
    breaker.succeeded()
    breaker.failed(now_s=0.0)
    assert breaker.state(now_s=0.0) is BreakerState.CLOSED


def opened() -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(3):
        breaker.failed(now_s=0.0)
    return breaker


def test_after_the_recovery_time_one_call_tries_and_its_outcome_decides() -> None:
    breaker = opened()
    assert breaker.state(now_s=10.0) is BreakerState.HALF_OPEN
    assert breaker.try_begin(now_s=10.0) == 0.0
    assert breaker.try_begin(now_s=10.0) > 0
    breaker.succeeded()
    assert breaker.try_begin(now_s=10.0) == 0.0
    assert breaker.state(now_s=10.0) is BreakerState.CLOSED


def test_a_failed_trial_opens_the_circuit_again() -> None:
    breaker = opened()
    breaker.try_begin(now_s=10.0)
    breaker.failed(now_s=11.0)
    assert breaker.try_begin(now_s=12.0) == 9.0


def test_an_abandoned_trial_lets_the_next_one_try() -> None:
    breaker = opened()
    breaker.try_begin(now_s=10.0)
    breaker.abandoned()
    assert breaker.try_begin(now_s=10.0) == 0.0


@given(st.lists(st.tuples(st.sampled_from(["begin", "ok", "bad", "drop"]), st.floats(0, 20))))
def test_the_circuit_is_never_open_longer_than_the_recovery_time(
    script: list[tuple[str, float]],
) -> None:
    breaker, now_s = CircuitBreaker(), 0.0
    for what, step_s in script:
        now_s += step_s
        match what:
            case "begin":
                assert 0.0 <= breaker.try_begin(now_s=now_s) <= 10.0 + 1e-9
            case "ok":
                breaker.succeeded()
            case "bad":
                breaker.failed(now_s=now_s)
            case "drop":
                breaker.abandoned()
    breaker.abandoned()
    assert breaker.try_begin(now_s=now_s + 10.0 + 1e-9) == 0.0


@given(st.integers())
def test_backoff_doubles_to_its_cap_with_jitter(seed: int) -> None:
    backoff = Backoff(Random(seed))
    for base_s in (0.5, 1, 2, 4, 8, 15, 15):
        assert base_s <= backoff.next_s() <= base_s * 1.25
    backoff.reset()
    assert backoff.next_s() <= 0.625
