"""When an executor that sends no reports is killed, and whether its code is to blame."""

from hypothesis import given
from hypothesis import strategies as st

from hyperscale.execution.limits import SILENT_S, TEARDOWN_S
from hyperscale.execution.overdue import OverdueWatch

DUE_S = 100.0
LAST_S = DUE_S + TEARDOWN_S + 2 * SILENT_S


def first_verdict(
    *,
    cpu_share: float,
    is_held_up: bool,
    is_tearing_down: bool = False,
    reports_until_s: float = 0.0,
) -> tuple[float, str]:
    """Check every quarter of a second; return when the executor is killed, and why."""
    overdue = OverdueWatch(due_s=DUE_S)
    now_s = DUE_S
    while True:
        verdict = overdue.verdict(
            now_s=now_s,
            heard_s=min(now_s, max(DUE_S - 0.1, reports_until_s)),
            cpu_s=5.0 + (now_s - DUE_S) * cpu_share,
            is_held_up=is_held_up,
            is_tearing_down=is_tearing_down,
        )
        if verdict is not None:
            assert verdict.blames_code == ("no CPU" not in verdict.reason)
            return now_s, verdict.reason
        now_s += 0.25


def test_code_that_blocks_the_event_loop_is_killed_soon() -> None:
    when_s, reason = first_verdict(cpu_share=1.0, is_held_up=True)
    assert when_s == DUE_S + SILENT_S
    assert "blocked the event loop" in reason


def test_code_that_sleeps_without_awaiting_is_killed_soon() -> None:
    when_s, reason = first_verdict(cpu_share=0.0, is_held_up=False)
    assert when_s == DUE_S + SILENT_S
    assert "blocked the event loop" in reason


def test_an_executor_without_cpu_time_gets_longer_and_its_code_is_not_blamed() -> None:
    when_s, reason = first_verdict(cpu_share=0.001, is_held_up=True)
    assert when_s == LAST_S
    assert "no CPU" in reason


def test_the_code_of_an_executor_that_waits_for_a_disk_is_not_blamed() -> None:
    when_s, reason = first_verdict(cpu_share=0.0, is_held_up=True)
    assert when_s == LAST_S
    assert "the process was stopped" in reason


def test_teardown_hooks_may_block_longer() -> None:
    when_s, _ = first_verdict(cpu_share=0.0, is_held_up=False, is_tearing_down=True)
    assert when_s == DUE_S + SILENT_S + TEARDOWN_S


def test_silence_counts_from_the_last_message() -> None:
    when_s, _ = first_verdict(cpu_share=1.0, is_held_up=True, reports_until_s=DUE_S + 3.0)
    assert when_s == DUE_S + 3.0 + SILENT_S


@given(
    cpu_share=st.floats(0, 1),
    is_held_up=st.booleans(),
    is_tearing_down=st.booleans(),
    reports_until_s=st.floats(DUE_S, DUE_S + 100),
)
def test_no_executor_lives_longer_than_the_last_bound(
    cpu_share: float, is_held_up: bool, is_tearing_down: bool, reports_until_s: float
) -> None:
    when_s, _ = first_verdict(
        cpu_share=cpu_share,
        is_held_up=is_held_up,
        is_tearing_down=is_tearing_down,
        reports_until_s=reports_until_s,
    )
    assert DUE_S + SILENT_S <= when_s <= LAST_S
