"""The checker itself: what it accepts, what it does not, and what it says then."""

from random import Random

import pytest

from tests.ledger.linearizability import History, JobRegister, Operation, check


def history(*rows: tuple[str, object, float, float | None, object]) -> list[Operation]:
    """(name, argument, invoked, returned, result) of one key."""
    made = History()
    for at, (name, argument, invoked_s, returned_s, result) in enumerate(rows):
        operation = made.invoke(f"c{at}", "k", name, argument, invoked_s)
        if returned_s is not None:
            made.returned(operation, result, returned_s)
    return made.operations


def test_an_empty_history_is_linearizable() -> None:
    assert check([]) is None


def test_a_sequential_history_of_the_model_is_linearizable() -> None:
    assert (
        check(
            history(
                ("submit", "a", 0, 1, "new"),
                ("submit", "a", 2, 3, "duplicate"),
                ("submit", "b", 4, 5, "conflict"),
                ("read", None, 6, 7, "submitted"),
                ("cancel", None, 8, 9, "ok"),
                ("cancel", None, 10, 11, "duplicate"),
                ("read", None, 12, 13, "cancelling"),
                ("finish", "completed", 14, 15, "ok"),
                ("finish", "failed", 16, 17, "terminal"),
                ("cancel", None, 18, 19, "terminal"),
                ("read", None, 20, 21, "completed"),
            )
        )
        is None
    )


def test_of_two_concurrent_operations_either_may_be_first() -> None:
    for first, second in (("new", "duplicate"), ("duplicate", "new")):
        both = history(("submit", "a", 0, 5, first), ("submit", "a", 1, 4, second))
        assert check(both) is None


@pytest.mark.parametrize(
    "rows",
    [
        # two jobs of one key
        (("submit", "a", 0, 1, "new"), ("submit", "a", 2, 3, "new")),
        # told it was there before, when nobody had submitted
        (("submit", "a", 0, 1, "duplicate"),),
        # a read that goes back in time
        (
            ("submit", "a", 0, 1, "new"),
            ("cancel", None, 2, 3, "ok"),
            ("read", None, 4, 5, "submitted"),
        ),
        # an acknowledged job that is not there
        (("submit", "a", 0, 1, "new"), ("read", None, 2, 3, "none")),
        # two ends
        (
            ("submit", "a", 0, 1, "new"),
            ("finish", "completed", 2, 3, "ok"),
            ("finish", "failed", 2, 4, "ok"),
        ),
        # reads that see a change and then do not, while it is under way
        (
            ("submit", "a", 0, 1, "new"),
            ("cancel", None, 2, 9, "ok"),
            ("read", None, 3, 4, "cancelling"),
            ("read", None, 5, 6, "submitted"),
        ),
    ],
)
def test_a_history_that_is_not_linearizable_is_found(
    rows: tuple[tuple[str, object, float, float | None, object], ...],
) -> None:
    found = check(history(*rows))
    assert found is not None
    assert "no order explains" in str(found)
    assert "k" in str(found)


def test_an_operation_of_unknown_outcome_may_take_effect_late_or_never() -> None:
    never = history(("submit", "a", 0, None, None), ("submit", "a", 5, 6, "new"))
    late = history(
        ("submit", "a", 0, 1, "new"),
        ("cancel", None, 2, None, None),
        ("read", None, 3, 4, "submitted"),
        ("read", None, 50, 51, "cancelling"),
    )
    assert check(never) is None
    assert check(late) is None


def test_an_operation_of_unknown_outcome_takes_no_effect_before_it_was_invoked() -> None:
    early = history(
        ("submit", "a", 0, 1, "new"),
        ("read", None, 2, 3, "cancelling"),
        ("cancel", None, 4, None, None),
    )
    assert check(early) is not None


def test_a_dropped_operation_is_as_if_never_invoked() -> None:
    made = History()
    refused = made.invoke("c", "k", "submit", "a", 0.0)
    made.dropped(refused)
    made.returned(made.invoke("c", "k", "submit", "a", 1.0), "new", 2.0)
    assert check(made.operations) is None


def test_keys_are_checked_independently() -> None:
    made = History()
    made.returned(made.invoke("c", "good", "submit", "a", 0.0), "new", 1.0)
    made.returned(made.invoke("c", "bad", "submit", "a", 0.0), "duplicate", 1.0)
    found = check(made.operations)
    assert found is not None
    assert found.key == "bad"


@pytest.mark.parametrize("seed", range(10))
def test_histories_of_a_real_register_pass_and_a_changed_result_does_not(seed: int) -> None:
    rng, model, made = Random(seed), JobRegister(), History()
    state: tuple[str, str] = ("", "none")
    now_s = 0.0
    for at in range(300):
        name = rng.choice(("submit", "cancel", "finish", "read"))
        argument = {"submit": "ab"[at % 2], "finish": rng.choice(("completed", "failed"))}.get(name)
        # Each takes effect somewhere within its time, and these times overlap.
        now_s += rng.random()
        operation = made.invoke("c", "k", name, argument, now_s - rng.random())
        state, result = model.step(state, name, argument)
        if rng.random() < 0.9:
            made.returned(operation, result, now_s + rng.random())
    assert check(made.operations) is None
    spoilt = next(o for o in reversed(made.operations) if o.name == "read" and o.result)
    spoilt.result = "submitted"
    assert check(made.operations) is not None
