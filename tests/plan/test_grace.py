"""How long steps in flight at the deadline may take."""

import pytest

from hyperscale.plan import WorkflowPlan


@pytest.mark.parametrize(
    ("grace_s", "longest_s", "waits_s"),
    [
        (1.0, None, 1.0),
        (0.0, 9.0, 0.0),
        (60.0, 1.0, 30.0),  # a request takes no longer than its timeout
        (None, 2.5, 2.5),
        (None, 90.0, 30.0),
        (None, None, 30.0),  # nothing has ended yet, so nothing is known
    ],
)
def test_grace_is_a_time_or_that_of_the_longest_request_and_at_most_the_timeout(
    grace_s: float | None, longest_s: float | None, waits_s: float
) -> None:
    plan = WorkflowPlan(name="Load", vus=1, duration_s=1.0, timeout_s=30.0, grace_s=grace_s)
    assert plan.grace_s_after(longest_s) == waits_s
