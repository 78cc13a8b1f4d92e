"""What flows between workflows, and what does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.errors import RunError
from hyperscale.plan import StateKind, StatePlan, WorkflowPlan
from hyperscale.plan.context import (
    CONTEXT_BYTES_MAX,
    ContextValue,
    MissingContextError,
    Namespace,
    Provided,
    ReceivedContext,
    decode_provided,
    decode_received,
    encode_provided,
    encode_received,
    namespace_of,
    received_by,
)


def provide(name: str, *workflows: str, is_list: bool = False) -> StatePlan:
    return StatePlan(
        name=name, kind=StateKind.PROVIDE, workflows=workflows, keys=(name,), is_list=is_list
    )


def use(
    *workflows: str, keys: tuple[str, ...] = ("key",), required: tuple[str, ...] = ()
) -> StatePlan:
    return StatePlan(
        name="take", kind=StateKind.USE, workflows=workflows, keys=keys, required=required
    )


def plan(
    name: str, *states: StatePlan, depends: tuple[str, ...] = (), is_test: bool = True
) -> WorkflowPlan:
    return WorkflowPlan(
        name=name,
        vus=1,
        duration_s=1.0,
        timeout_s=1.0,
        states=states,
        depends=depends,
        is_test=is_test,
    )


def one(value: bytes) -> ContextValue:
    return ContextValue(chunks=(value,))


def flow(seed: WorkflowPlan, shop: WorkflowPlan, **states: bytes) -> ReceivedContext:
    given_ = namespace_of(seed, [Provided(states=dict(states))])
    return received_by(shop, [seed, shop], {seed.name: given_})


def test_a_value_is_passed_if_both_workflows_name_each_other() -> None:
    seed = plan("Seed", provide("key", "Shop"))
    shop = plan("Shop", use("Seed"), depends=("Seed",))
    got = flow(seed, shop, key=b"v")
    assert got.uses == {"take": {"key": one(b"v")}}
    assert got.context == {"key": one(b"v")}


@pytest.mark.parametrize(
    ("provides", "uses"),
    [
        (provide("key", "Other"), use("Seed")),  # the provider names another workflow
        (provide("key"), use("Seed")),  # the provider names no workflow
        (provide("key", "Shop"), use("Other")),  # the user names another workflow
        (provide("key", "Shop"), use()),  # the user names no workflow
        (provide("token", "Shop"), use("Seed")),  # another key
        (provide("key", "Shop"), use("Seed", keys=("other",))),  # another parameter
    ],
)
def test_nothing_is_passed_if_one_workflow_does_not_name_the_other(
    provides: StatePlan, uses: StatePlan
) -> None:
    seed, shop = plan("Seed", provides), plan("Shop", uses, depends=("Seed",))
    got = flow(seed, shop, **{provides.name: b"v"})
    assert got.uses == {"take": {}}
    assert got.context == {}


def test_a_workflow_receives_nothing_from_a_workflow_it_does_not_depend_on() -> None:
    seed, shop = plan("Seed", provide("key", "Shop")), plan("Shop", use("Seed"))
    assert flow(seed, shop, key=b"v").uses == {"take": {}}


def test_a_required_value_that_was_not_provided_is_an_error_naming_it() -> None:
    seed = plan("Seed", provide("key", "Shop"))
    shop = plan("Shop", use("Seed", required=("key",)), depends=("Seed",))
    with pytest.raises(MissingContextError, match=r"Shop\.take: needs 'key', and Seed finished"):
        flow(seed, shop)


def test_of_several_parts_the_lowest_slot_with_a_value_wins() -> None:
    seed = plan("Seed", provide("key", "Shop"))
    parts = [
        Provided(slot=2, states={"key": b"two"}),
        Provided(slot=0),
        Provided(slot=1, states={"key": b"one"}),
    ]
    assert namespace_of(seed, parts).states == {"key": one(b"one")}


def test_lists_of_all_parts_are_kept_in_order_of_slots() -> None:
    seed = plan("Seed", provide("key", "Shop", is_list=True))
    parts = [Provided(slot=slot, states={"key": b"%d" % slot}) for slot in (2, 0, 1)]
    assert namespace_of(seed, parts).states == {
        "key": ContextValue(chunks=(b"0", b"1", b"2"), is_list=True)
    }


def test_the_last_provider_named_wins() -> None:
    a, b = plan("A", provide("key", "Shop")), plan("B", provide("key", "Shop"))
    shop = plan("Shop", use("B", "A"), depends=("A", "B"))
    finished = {
        "A": namespace_of(a, [Provided(states={"key": b"a"})]),
        "B": namespace_of(b, [Provided(states={"key": b"b"})]),
    }
    assert received_by(shop, [a, b, shop], finished).uses["take"]["key"] == one(b"a")


def test_provided_values_override_the_context_of_non_test_dependencies() -> None:
    seed = plan("Seed", provide("key", "Shop"), is_test=False)
    load = plan("Load")
    other = plan("Other", is_test=False)
    shop = plan("Shop", use("Seed"), depends=("Seed", "Load"))
    left = {"key": b"plain", "more": b"m"}
    finished = {
        "Seed": namespace_of(seed, [Provided(states={"key": b"stated"}, context=left)]),
        "Load": namespace_of(load, [Provided(context={"load": b"l"})]),
        "Other": namespace_of(other, [Provided(context={"other": b"o"})]),
    }
    got = received_by(shop, [seed, load, other, shop], finished)
    assert got.context == {"key": one(b"stated"), "more": one(b"m")}


def test_too_much_context_is_refused_naming_the_largest() -> None:
    seed = plan("Seed", provide("key", "Shop"), provide("big", "Shop"))
    part = Provided(states={"key": b"k", "big": b"x" * (CONTEXT_BYTES_MAX + 1)})
    with pytest.raises(RunError, match=r"Seed: provides .* the largest is 'big'"):
        namespace_of(seed, [part])


def test_a_workflow_whose_dependencies_provide_nothing_starts_with_empty_context() -> None:
    shop = plan("Shop", use("Seed"), depends=("Seed",))
    assert received_by(shop, [shop], {}) == ReceivedContext(uses={"take": {}})
    assert namespace_of(shop, []) == Namespace()


values = st.dictionaries(st.text(max_size=8), st.binary(max_size=32), max_size=4)


@given(st.integers(0, 99), values, values)
def test_provided_values_survive_encoding(
    slot: int, states: dict[str, bytes], context: dict[str, bytes]
) -> None:
    provided = Provided(slot=slot, states=states, context=context)
    assert decode_provided(encode_provided(provided)) == provided
    received = ReceivedContext(
        context={key: one(value) for key, value in context.items()},
        uses={
            "take": {
                key: ContextValue(chunks=(value, value), is_list=True)
                for key, value in states.items()
            }
        },
    )
    assert decode_received(encode_received(received)) == received


def test_empty_bytes_decode_to_empty_context() -> None:
    assert decode_provided(b"") == Provided()
    assert decode_received(b"") == ReceivedContext()
