"""Order among names."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.plan.dag import ancestors, find_cycle, layers

graphs = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.lists(st.sampled_from("abcdefgh"), max_size=3).map(tuple),
    max_size=8,
).map(lambda after: {name: tuple(d for d in deps if d in after) for name, deps in after.items()})


@given(graphs)
def test_there_is_either_a_cycle_or_an_order(after: dict[str, tuple[str, ...]]) -> None:
    cycle = find_cycle(after)
    if cycle is None:
        order = layers(after)
        level = {name: index for index, layer in enumerate(order) for name in layer}
        assert sorted(level) == sorted(after)
        for name, deps in after.items():
            assert level[name] == max((level[dep] + 1 for dep in deps), default=0)
            assert name not in ancestors(after, name)
    else:
        assert cycle[0] == cycle[-1]
        for name, waits_for in pairwise(cycle):
            assert waits_for in after[name]
        with pytest.raises(ValueError, match="cycle"):
            layers(after)


def test_a_long_chain_needs_no_deep_stack() -> None:
    after: dict[str, tuple[str, ...]] = {"0": ()}
    after |= {str(n): (str(n - 1),) for n in range(1, 3000)}
    assert find_cycle(after) is None
    assert len(layers(after)) == 3000
    assert len(ancestors(after, "2999")) == 2999


def test_unknown_names_end_a_path() -> None:
    assert find_cycle({"a": ("nowhere",)}) is None
