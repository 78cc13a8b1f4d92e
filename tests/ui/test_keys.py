from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hyperscale.plan.changes import LoadChange
from hyperscale.stats.view import RunView, ViewStatus
from hyperscale.ui.frame import LiveFrame
from hyperscale.ui.full import Controls, read_keys
from tests.ui import scenes


def test_keys_arrive_one_by_one_whatever_a_read_holds() -> None:
    assert read_keys(b"qo\t") == ["q", "o", "\t"]
    assert read_keys(b"\x1b[A\x1b[B\x1bOA\x1b[Z") == ["up", "down", "up", "back-tab"]
    assert read_keys(b"\x1b") == ["escape"]
    assert read_keys(b"\x1bq") == ["escape", "q"]


def test_unknown_sequences_press_no_key() -> None:
    # A mouse report, a bracketed paste and a function key hold letters that are keys elsewhere.
    for sequence in (b"\x1b[<0;10;20M", b"\x1b[200~", b"\x1b[15~", b"\x1b[1;5Q"):
        assert read_keys(sequence) == [""]


@given(st.binary(max_size=40))
def test_any_bytes_can_be_read_as_keys(typed: bytes) -> None:
    read_keys(typed)


def test_keys_scroll_within_what_there_is_and_choose_workflows() -> None:
    controls = Controls(on_stop=lambda: None)
    view = RunView(
        "shop.py", 1.0, tuple(replace(scenes.running(), name=name) for name in ("A", "B"))
    )
    controls.frame = LiveFrame([], scroll_max=30, page=12)
    scrolled = []
    for key in read_keys(b"j\x1b[B\x1b[6~ k\x1b[5~bG\x1b[BgG\x1b[1~\x1b[4~"):
        controls.press(key, view)
        scrolled.append(controls.scroll)
    assert scrolled == [1, 2, 14, 26, 25, 13, 1, 30, 30, 0, 30, 0, 30]
    controls.press("\t", view)
    assert (controls.selected, controls.scroll) == ("A", 0)


def test_keys_pause_resume_and_scale_what_runs() -> None:
    asked: list[LoadChange] = []
    controls = Controls(on_stop=lambda: None, on_change=asked.append)
    workflow = replace(scenes.running(), name="Shop", target=20.0)
    for status in (ViewStatus.RUNNING, ViewStatus.PAUSED):
        view = RunView("shop.py", 1.0, (replace(workflow, status=status),))
        controls.press("p", view)
    controls.press("+", view)
    controls.press("-", view)
    assert [(each.kind.value, each.vus) for each in asked] == [
        ("pause", None),
        ("resume", None),
        ("scale", 22),
        ("scale", 18),
    ]
