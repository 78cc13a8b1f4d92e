"""Alternatives: of steps with a weight, an iteration runs one."""

from collections import Counter

import pytest

from hyperscale.plan import StepKind, StepPlan, WorkflowPlan
from hyperscale.plan.alternatives import choices_of, left_out


def plan(**steps: tuple[float | None, tuple[str, ...]]) -> WorkflowPlan:
    return WorkflowPlan(
        name="Shop",
        vus=1,
        duration_s=1.0,
        timeout_s=1.0,
        steps=tuple(
            StepPlan(name=name, kind=StepKind.TEST, weight=weight, after=after)
            for name, (weight, after) in steps.items()
        ),
    )


def test_steps_with_a_weight_after_the_same_steps_are_alternatives() -> None:
    choices = choices_of(
        plan(
            open=(None, ()),
            browse=(3, ("open",)),
            buy=(1, ("open",)),
            card=(1, ("buy",)),
            cash=(1, ("buy",)),
            close=(None, ("open",)),
        )
    )
    assert [choice.names for choice in choices] == [("browse", "buy"), ("card", "cash")]
    assert choices[0].bounds == (0.75,)


def test_what_waits_for_an_alternative_that_was_not_chosen_is_left_out() -> None:
    after: dict[str, tuple[str, ...]] = {
        "browse": (),
        "buy": (),
        "search": (),
        "pay": ("buy",),
        "receipt": ("pay",),
        "either": ("browse", "buy"),
        "all": ("browse", "buy", "search"),
        "other": (),
    }
    names = ("browse", "buy", "search")
    assert left_out(after, names, "buy") == {"browse", "search"}
    assert left_out(after, names, "browse") == {"buy", "search", "pay", "receipt"}
    assert left_out(after, names, "search") == {"browse", "buy", "pay", "receipt", "either"}


@pytest.mark.parametrize("weights", [(3.0, 1.0), (1.0, 1.0, 2.0), (0.5, 9.5)])
def test_shares_are_those_of_the_weights(weights: tuple[float, ...]) -> None:
    steps = {f"s{place}": (weight, ()) for place, weight in enumerate(weights)}
    (choice,) = choices_of(plan(**steps))
    drawn = Counter(choice.draw(number) for number in range(20_000))
    for place, weight in enumerate(weights):
        share = weight / sum(weights)
        # Five standard deviations of a binomial distribution.
        assert abs(drawn[place] - 20_000 * share) < 5 * (20_000 * share * (1 - share)) ** 0.5


def test_two_choices_of_an_iteration_are_independent() -> None:
    first, second = choices_of(plan(a=(1, ()), b=(1, ()), c=(1, ("a", "b")), d=(1, ("a", "b"))))
    pairs = Counter((first.draw(number), second.draw(number)) for number in range(8_000))
    assert all(1_800 < count < 2_200 for count in pairs.values()), pairs
