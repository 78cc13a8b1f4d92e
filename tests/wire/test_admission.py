"""Admission: nested watermarks, limits per guest, fair share, and the caller who obeys."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.wire.admission import (
    CLIENTS_MAX,
    CRITICAL_MAX,
    Admission,
    AdmissionWatermarks,
    OverloadLevel,
    SlidingWindow,
)
from hyperscale.wire.registry import MessagePriority, MessageSpec, SizeClass
from hyperscale.wire.retries import RetryThrottle
from hyperscale.wire.roles import EVERYONE, Role
from tests.lab.peers import Question


def spec(priority: MessagePriority, rate_per_10s: int = 100, kind: int = 1) -> MessageSpec:
    return MessageSpec(
        type=Question,
        kind=kind,
        priority=priority,
        size=SizeClass.SMALL,
        senders=EVERYONE,
        rate_per_10s=rate_per_10s,
        decode=bytes,
    )


def admission_of(**marks: int) -> Admission:
    return Admission(AdmissionWatermarks(**marks), Random(1))


def admit(door: Admission, priority: MessagePriority, role: Role = Role.WORKER) -> bool:
    return door.admit(spec(priority), role, "someone", now_s=0.0) == 0.0


def fill(door: Admission, priority: MessagePriority, count: int) -> None:
    for _ in range(count):
        assert admit(door, priority)


LOW, NORMAL, HIGH, CRITICAL = (
    MessagePriority.LOW,
    MessagePriority.NORMAL,
    MessagePriority.HIGH,
    MessagePriority.CRITICAL,
)


class TestWatermarks:
    def test_each_lower_priority_has_its_own_cap(self) -> None:
        admission = admission_of()
        fill(admission, LOW, 200)
        assert not admit(admission, LOW)
        fill(admission, NORMAL, 300)
        assert not admit(admission, NORMAL)
        fill(admission, HIGH, 500)
        assert not admit(admission, HIGH)

    def test_high_priority_may_use_the_whole_total(self) -> None:
        admission = admission_of()
        fill(admission, HIGH, 1000)
        assert not admit(admission, HIGH)

    def test_low_is_refused_at_half_of_the_total_and_normal_at_four_fifths(self) -> None:
        admission = admission_of()
        fill(admission, HIGH, 499)
        assert admit(admission, LOW)
        assert not admit(admission, LOW)
        fill(admission, HIGH, 299)
        assert admit(admission, NORMAL)
        assert not admit(admission, NORMAL)
        assert admit(admission, HIGH)

    def test_critical_is_admitted_when_all_others_are_refused(self) -> None:
        admission = admission_of(total=10, normal=3, low=2)
        fill(admission, HIGH, 10)
        fill(admission, CRITICAL, 5000)
        assert admission.shed[CRITICAL] == 0
        fill(admission, CRITICAL, CRITICAL_MAX - 5000)
        assert not admit(admission, CRITICAL)

    def test_critical_in_flight_takes_no_room_from_the_others(self) -> None:
        admission = admission_of(total=10, normal=3, low=2)
        fill(admission, CRITICAL, 50)
        fill(admission, HIGH, 10)

    def test_a_release_makes_room(self) -> None:
        admission = admission_of(total=2, normal=1, low=1)
        fill(admission, HIGH, 2)
        admission.release(HIGH)
        assert admit(admission, HIGH)

    @given(st.lists(st.tuples(st.sampled_from(list(MessagePriority)), st.booleans()), max_size=200))
    def test_while_high_is_refused_normal_and_low_are_refused_too(
        self, script: list[tuple[MessagePriority, bool]]
    ) -> None:
        admission = admission_of(total=20, normal=6, low=4)
        held: list[MessagePriority] = []
        for priority, is_release in script:
            if is_release and held:
                admission.release(held.pop())
                continue
            is_high_refused = sum(admission.in_flight[1:]) >= 20
            if admit(admission, priority):
                held.append(priority)
                assert priority is CRITICAL or not is_high_refused
        for priority in held:
            admission.release(priority)
        assert admission.in_flight == [0, 0, 0, 0]

    def test_a_refusal_says_when_to_retry_and_low_waits_longest(self) -> None:
        admission = admission_of(total=1, normal=1, low=1)
        fill(admission, HIGH, 1)
        for priority, least_s, most_s in ((HIGH, 0.1, 0.5), (NORMAL, 0.25, 1), (LOW, 0.5, 2)):
            wait_s = admission.admit(spec(priority), Role.WORKER, "w", now_s=0.0)
            assert least_s <= wait_s <= most_s


class TestLoad:
    @pytest.mark.parametrize(
        ("load", "taken"),
        [
            (OverloadLevel.HEALTHY, {CRITICAL, HIGH, NORMAL, LOW}),
            (OverloadLevel.BUSY, {CRITICAL, HIGH, NORMAL}),
            (OverloadLevel.STRESSED, {CRITICAL, HIGH, NORMAL}),
            (OverloadLevel.OVERLOADED, {CRITICAL}),
        ],
    )
    def test_a_higher_overload_level_admits_fewer_priorities(
        self, load: OverloadLevel, taken: set[MessagePriority]
    ) -> None:
        admission = admission_of()
        admission.load = load
        assert {p for p in MessagePriority if admit(admission, p)} == taken


class TestGuests:
    def ask(self, admission: Admission, who: str, now_s: float, rate: int = 50) -> float:
        return admission.admit(spec(HIGH, rate), Role.CLIENT, who, now_s=now_s)

    def test_the_rate_of_a_client_does_not_limit_another(self) -> None:
        admission = admission_of(total=10_000)
        assert [self.ask(admission, "a", 0.0) for _ in range(50)] == [0.0] * 50
        assert self.ask(admission, "a", 0.0) > 0
        assert self.ask(admission, "b", 0.0) == 0.0

    def test_nodes_are_not_limited_by_rate(self) -> None:
        admission = admission_of(total=10_000)
        for _ in range(500):
            assert admission.admit(spec(HIGH, 1), Role.WORKER, "w", now_s=0.0) == 0.0

    def test_the_retry_time_of_a_refusal_is_sufficient_and_not_much_longer(self) -> None:
        admission = admission_of(total=10_000)
        now_s = 0.0
        for _ in range(300):
            wait_s = self.ask(admission, "a", now_s)
            if wait_s:
                assert self.ask(admission, "a", now_s + wait_s * 0.9) > 0
                now_s += wait_s + 1e-6
                assert self.ask(admission, "a", now_s) == 0.0

    def test_under_stress_each_active_client_has_an_equal_share(self) -> None:
        admission = admission_of(total=10_000)
        for number in range(5):
            self.ask(admission, f"g{number}", 0.0)
        admission.load = OverloadLevel.STRESSED
        taken = {
            f"g{number}": sum(self.ask(admission, f"g{number}", 1.0) == 0.0 for _ in range(60))
            for number in range(5)
        }
        assert set(taken.values()) == {9}  # a fifth of 50, less the one taken before

    def test_a_greedy_client_does_not_starve_a_modest_one_under_stress(self) -> None:
        admission = admission_of(total=10_000)
        admission.load = OverloadLevel.STRESSED
        modest = 0
        for step in range(1000):
            now_s = step / 100
            self.ask(admission, "greedy", now_s)
            if step % 100 == 0:
                modest += self.ask(admission, "modest", now_s) == 0.0
        assert modest == 10

    def test_the_client_that_was_idle_longest_is_forgotten_when_there_are_too_many(self) -> None:
        admission = admission_of(total=10**9)
        for _ in range(500):
            self.ask(admission, "first", 0.0)
        assert self.ask(admission, "first", 0.0) > 0.0
        for number in range(CLIENTS_MAX):
            self.ask(admission, f"g{number}", 0.0)
        assert self.ask(admission, "first", 0.0) == 0.0  # its requests were forgotten

    def test_a_refused_request_is_not_counted_as_in_flight(self) -> None:
        admission = admission_of(total=10_000)
        for _ in range(500):
            self.ask(admission, "a", 0.0)
        assert admission.in_flight[HIGH] == 50
        assert self.ask(admission, "a", 20.0) == 0.0


class TestSlidingWindow:
    def test_the_previous_window_counts_by_its_remaining_share(self) -> None:
        window = SlidingWindow(60.0, now_s=0.0)
        for _ in range(100):
            window.try_take(1000, now_s=0.0)
        for _ in range(30):
            window.try_take(1000, now_s=60.0)
        assert window.try_take(105, now_s=75.0) > 0.0  # 30 and three quarters of 100
        assert window.try_take(106, now_s=75.0) == 0.0

    @given(
        st.integers(1, 20),
        st.lists(st.floats(0, 8, allow_nan=False), min_size=1, max_size=120),
    )
    def test_no_window_of_its_length_holds_twice_the_limit_and_waiting_helps(
        self, limit: int, steps_s: list[float]
    ) -> None:
        window, now_s, taken = SlidingWindow(10.0, now_s=0.0), 0.0, list[float]()
        for step_s in steps_s:
            now_s += step_s
            wait_s = window.try_take(limit, now_s=now_s)
            if wait_s == 0.0:
                taken.append(now_s)
                assert sum(at > now_s - 10.0 for at in taken) < 2 * limit
            else:
                assert 0 < wait_s <= 20.0


class TestRetryThrottle:
    def test_repeated_refusals_lengthen_the_wait(self) -> None:
        throttle = RetryThrottle()
        assert throttle.wait_s("op", now_s=0.0) == 0.0
        assert throttle.refused("op", 1.0, now_s=0.0) == 1.0
        assert throttle.wait_s("op", now_s=0.4) == pytest.approx(0.6)
        assert throttle.wait_s("other", now_s=0.0) == 0.0
        assert throttle.refused("op", 1.0, now_s=1.0) == pytest.approx(1.5)
        throttle.accepted("op")
        assert throttle.refused("op", 1.0, now_s=5.0) == pytest.approx(1.0)

    @pytest.mark.parametrize("said_s", [float("inf"), float("nan"), -5.0, 1e300])
    def test_the_retry_time_of_a_broken_peer_is_bounded(self, said_s: float) -> None:
        throttle = RetryThrottle()
        assert 0.0 < throttle.refused("op", said_s, now_s=100.0) <= 60.0
