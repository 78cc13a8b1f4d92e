"""Placement of workflows: what tests and clients may write, and which labels meet it."""

import pytest

from hyperscale.errors import InputError
from hyperscale.plan.placement import (
    CONSTRAINTS_MAX,
    Placement,
    parse_constraint_flags,
    parse_placement,
    why_unmet,
)


def test_constraints_are_the_same_however_they_are_written() -> None:
    one = parse_placement({"zone": ["b", "a"], "arch": "x86_64"}, "rack")
    other = parse_placement({"arch": ("amd64",), "zone": {"a", "b"}}, "rack")
    assert one == other
    assert one.describe() == "arch=amd64, zone=a|b, any rack"


@pytest.mark.parametrize(
    ("labels", "is_met"),
    [
        ({"zone": "a", "rack": "7"}, True),
        ({"zone": "c", "rack": "7"}, False),
        ({"rack": "7"}, False),
        ({"zone": "a"}, False),  # not spread over a label that it lacks
    ],
)
def test_a_worker_needs_a_value_of_every_constraint_and_the_label_of_the_spread(
    labels: dict[str, str], is_met: bool
) -> None:
    assert parse_placement({"zone": ["a", "b"]}, "rack").is_met_by(labels) is is_met


def test_a_submission_replaces_the_constraints_on_the_same_label() -> None:
    of_class = parse_placement({"zone": "a", "arch": "arm64"}, "zone")
    given = parse_placement(
        parse_constraint_flags(["zone=b", "zone=c"], where="--constraint"), None
    )
    merged = of_class.overridden_by(given)
    assert merged.constraints == (("arch", ("arm64",)), ("zone", ("b", "c")))
    assert merged.spread == "zone"


@pytest.mark.parametrize(
    ("constraints", "spread", "part"),
    [
        ("zone=a", None, "constraints: 'zone=a' is not a table of labels"),
        ({"zone": 1}, None, "constraints: 1 is no name and no value of a label"),
        ({"zone": []}, None, "constraints: 'zone' has no value"),
        ({"zo ne": "a"}, None, "'zo ne' is no name"),
        ({f"l{n}": "a" for n in range(CONSTRAINTS_MAX + 1)}, None, "17 constraints, more than 16"),
        ({}, ["zone"], "spread: ['zone'] is no name"),
    ],
)
def test_a_wrong_placement_is_refused_by_name(
    constraints: object, spread: object, part: str
) -> None:
    with pytest.raises(InputError) as refused:
        parse_placement(constraints, spread)
    assert part in refused.value.message


def test_an_unmet_placement_is_explained_by_what_workers_have() -> None:
    placement = parse_placement({"zone": "c", "gpu": "yes"}, None)
    workers = [{"zone": "a"}, {"zone": "a"}, {"zone": "b"}]
    assert why_unmet(placement, workers) == (
        "no worker has gpu=yes, zone=c (of 3 workers, none has a label gpu; zone is a on 2, b on 1)"
    )
    assert Placement().is_met_by({})
