"""Events that bring about events."""

import pytest

from hyperscale.nodes.turns import Turns


def test_what_an_event_brings_about_is_handled_after_it_and_by_whoever_was_at_it() -> None:
    handled: list[str] = []
    last: list[bool] = []

    def handle(event: str) -> None:
        if event == "first":
            last.append(turns.take("second"))
        handled.append(event)

    turns: Turns[str] = Turns(handle)
    assert turns.take("first")
    assert handled == ["first", "second"]
    assert last == [False]


def test_an_event_that_fails_holds_up_no_later_one() -> None:
    handled: list[int] = []

    def handle(event: int) -> None:
        handled.append(1 // event)

    turns = Turns(handle)
    with pytest.raises(ZeroDivisionError):
        turns.take(0)
    assert turns.take(1)
    assert handled == [1]
