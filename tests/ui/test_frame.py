import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wcwidth import wcswidth

from hyperscale.stats.view import RunView, WorkerUsage
from hyperscale.ui.frame import Pane, allot, preparing, render
from hyperscale.ui.theme import Theme
from tests.ui import scenes

PLAIN = Theme(colors=None)
SGR = re.compile(r"\x1b\[[0-9;]*m")
THEMES = [Theme(), Theme(colors=16), Theme(colors=0), PLAIN, Theme(unicode=False, colors=None)]

USAGE = tuple(
    WorkerUsage(f"worker-{n}", cpu=1 - n / 10, memory=0.25, is_saturated=n == 1)
    for n in range(1, 6)
)

moments = st.floats(0, 60)
sizes = st.tuples(st.integers(1, 220), st.integers(1, 70))


def screen(view: RunView, width: int, height: int, pane: Pane | None = None) -> str:
    return "\n".join(render(view, width, height, PLAIN, pane).lines)


@given(moments, sizes, st.sampled_from(THEMES), st.booleans(), st.booleans())
def test_every_frame_fits_its_window(
    now_s: float, size: tuple[int, int], theme: Theme, saturated: bool, shows_output: bool
) -> None:
    width, height = size
    pane = Pane(output=["日本語 output", "x" * 500], output_total=2, shows_output=shows_output)
    view = replace(scenes.shop(now_s, saturated=saturated), usage=USAGE)
    lines = render(view, width, height, theme, pane).lines
    assert len(lines) <= height
    assert all(wcswidth(SGR.sub("", line)) <= width for line in lines)


@given(sizes, st.sampled_from(THEMES))
def test_hostile_names_reach_the_terminal_as_harmless_text(
    size: tuple[int, int], theme: Theme
) -> None:
    width, height = size
    usage = (WorkerUsage(scenes.HOSTILE, cpu=0.5, memory=0.5),)
    view = replace(scenes.hostile(scenes.shop(20.0)), usage=usage)
    pane = Pane(output=[scenes.HOSTILE] * 30, output_total=30, shows_output=True)
    for line in render(view, width, height, theme, pane).lines:
        text = SGR.sub("", line)
        assert text.isprintable()
        assert "owned" not in text
        assert wcswidth(text) <= width


def test_an_ascii_terminal_gets_only_ascii() -> None:
    view = scenes.run(scenes.running("日本語"), scenes.idle("Ünicode"))
    for line in render(view, 120, 40, Theme(unicode=False, colors=None)).lines:
        assert line.isascii()


def test_a_running_workflow_shows_all_that_matters_in_a_usual_window() -> None:
    text = screen(scenes.run(scenes.running(elapsed_s=37.4, duration_s=60.0)), 119, 40)
    for expected in (
        "examples/checkout.py",
        "Checkout",
        "62%",
        "00:37 / 01:00",
        "00:23 left",
        "/s now",
        "/s mean",
        "1,000 vus",
        "2 cores",
        "210 failed",
        "requests per second",
        "latency",
        "login",
        "browse",
        "pay",
        "timeout 105",
        "200 ",
        "503 105",
        "1 passing",
    ):
        assert expected in text
    header = next(line for line in text.splitlines() if line.lstrip().startswith("step"))
    assert " ".join(header.split()) == "step ok failed cut sent steps/s p50 p90 p95 p99 max"


def test_calls_without_a_result_have_a_column_of_their_own() -> None:
    view = scenes.running()
    steps = (replace(view.steps[0], none=1_234), *view.steps[1:])
    text = screen(scenes.run(replace(view, none=1_234, steps=steps)), 140, 40)
    header = next(line for line in text.splitlines() if line.lstrip().startswith("step"))
    assert " ".join(header.split()).startswith("step ok failed none cut sent steps/s")
    assert "1,234 none" in text


def test_a_workflow_that_sends_no_requests_shows_its_steps() -> None:
    view = replace(scenes.running(), sent=0, requests_now=0.0, requests_series=(0.0,) * 37)
    text = screen(scenes.run(view), 119, 40)
    assert "steps per second" in text
    assert f"{view.total:,} steps" in text
    assert "requests" not in text


def test_the_smallest_supported_window_shows_every_workflow_and_its_state() -> None:
    text = screen(scenes.shop(20.0, saturated=True), 40, 10)
    assert "Checkout" in text
    assert "60%" in text
    assert "saturated" in text
    assert "Reindex" in text


def test_columns_are_dropped_before_names_and_failures() -> None:
    text = screen(scenes.run(scenes.running()), 60, 24)
    header = next(line for line in text.splitlines() if line.lstrip().startswith("step"))
    assert {"ok", "failed", "p50", "p99"} <= set(header.split())
    assert "p95" not in header


def test_waiting_ended_and_cancelled_workflows_take_one_line_each() -> None:
    lines = screen(scenes.shop(20.0), 119, 60).splitlines()
    assert sum("Warmup" in line for line in lines) == 1
    assert any("Warmup" in line and "passed" in line and "2,764 requests" in line for line in lines)
    assert any("Report" in line and "waiting" in line for line in lines)
    assert any("Reindex" in line and "failed" in line and "SIGKILL" in line for line in lines)
    assert any("Cleanup" in line and "dependency failed: Reindex" in line for line in lines)


def test_latencies_of_a_held_loop_are_marked() -> None:
    view = scenes.shop(20.0)
    held = replace(view, workflows=tuple(replace(w, is_loop_held=True) for w in view.workflows))
    assert "loop held" in screen(held, 100, 30)
    assert "loop held" not in screen(view, 100, 30)


def test_saturation_is_announced_until_it_ends() -> None:
    assert "saturated" in screen(scenes.shop(20.0, saturated=True), 100, 30)
    assert "saturated" not in screen(scenes.shop(20.0), 100, 30)
    warned = replace(scenes.shop(20.0), warnings=("Shop: " + "much to say " * 40,))
    lines = screen(warned, 100, 30).splitlines()
    assert sum("much to say" in line for line in lines) == 2  # not more of the window than that


def test_the_busiest_workers_are_shown_and_the_others_counted() -> None:
    view = replace(scenes.shop(20.0), usage=USAGE)
    assert "worker-5 cpu 50% memory 25%" in screen(view, 200, 24)
    (line,) = [line for line in screen(view, 80, 24).splitlines() if "worker-1" in line]
    assert "worker-2 cpu 80% memory 25%" in line
    assert line.rstrip().endswith("3 more")
    turned = replace(view, usage=(*reversed(USAGE[:2]), *USAGE[2:]))
    assert screen(turned, 80, 24) == screen(view, 80, 24)  # no worker changes its place


def test_user_output_is_shown_on_demand_newest_last() -> None:
    pane = Pane(output=[f"line {i}" for i in range(100)], output_total=4321, shows_output=True)
    lines = screen(scenes.shop(20.0), 100, 30, pane).splitlines()
    assert any("output · 4,321 lines" in line for line in lines)
    assert "line 99" in lines[-2]
    hidden = screen(scenes.shop(20.0), 100, 30, replace(pane, shows_output=False))
    assert "line 99" not in hidden
    empty = screen(scenes.shop(20.0), 100, 30, Pane(shows_output=True))
    assert "nothing printed yet" in empty


def test_a_selected_workflow_gets_all_rows() -> None:
    view = scenes.shop(20.0)
    text = screen(view, 119, 24, Pane(selected="SearchAndBrowse"))
    assert text.count("requests per second") == 1
    lines = text.splitlines()
    checkout = next(i for i, line in enumerate(lines) if "Checkout" in line)
    assert "SearchAndBrowse" in lines[checkout + 1]


def test_more_workflows_than_rows_are_counted_not_dropped_silently() -> None:
    view = scenes.run(*(scenes.idle(f"W{i}") for i in range(30)), scenes.running("Busy"))
    text = screen(view, 80, 12)
    assert "Busy" in text
    shown = len(re.findall(r"\bW\d+", text))
    assert f"{30 - shown} more workflows" in text


def test_a_hundred_steps_keep_the_plots_and_say_how_many_are_hidden() -> None:
    busy = scenes.running(step_names=tuple(f"step_{i}" for i in range(100)))
    text = screen(scenes.run(busy), 119, 40)
    assert "requests per second" in text
    shown = len(re.findall(r"\bstep_\d+", text))
    assert f"{100 - shown} more" in text


@given(
    st.lists(st.sampled_from(["running", "waiting", "completed", "failed"]), max_size=20),
    st.integers(1, 60),
)
def test_rows_are_never_given_out_twice(statuses: list[str], rows: int) -> None:
    workflows = [
        scenes.running(f"W{i}", status=status)
        if status == "running"
        else scenes.idle(f"W{i}", status)
        for i, status in enumerate(statuses)
    ]
    given_rows = allot(workflows, rows, None)
    hidden = given_rows.count(0)
    assert sum(given_rows) + (1 if hidden and rows > 1 else 0) <= rows


def test_the_layout_does_not_shift_when_the_first_figures_arrive() -> None:
    before = screen(scenes.run(scenes.running(elapsed_s=0.3, failed=0)), 100, 30).splitlines()
    after = screen(scenes.run(scenes.running(elapsed_s=3.0, failed=0)), 100, 30).splitlines()
    for title in ("requests per second", "step "):
        rows = [[title in line for line in lines].index(True) for lines in (before, after)]
        assert rows[0] == rows[1]


def test_the_time_left_is_that_until_duration_or_iterations_end_the_workflow() -> None:
    counted = replace(scenes.running(elapsed_s=20.0, duration_s=600.0), progress=0.5)
    assert "00:20 left" in screen(scenes.run(counted), 119, 40)


def test_a_workflow_without_measurements_is_shown() -> None:
    assert screen(scenes.run(), 100, 30)
    assert "preparing" in preparing(40, PLAIN)[0]


@pytest.mark.parametrize("elapsed_s", [3.0, 601.0, 86_000.0])
def test_short_and_long_runs_are_plotted(elapsed_s: float) -> None:
    view = scenes.run(scenes.running(elapsed_s=elapsed_s, duration_s=86_400.0))
    assert "█" in screen(view, 119, 40)


def test_the_footer_says_that_leaving_a_watched_job_does_not_stop_it() -> None:
    view = scenes.shop(20.0)
    assert screen(view, 100, 30).splitlines()[-1].startswith("q stop ")
    assert screen(view, 100, 30, Pane(only_watches=True)).splitlines()[-1].startswith("q leave ")
    left = screen(view, 100, 30, Pane(only_watches=True, is_stopping=True)).splitlines()[-1]
    assert left.strip() == "leaving: the job goes on"


def test_two_hundred_steps_can_be_scrolled_through_and_failing_ones_come_first() -> None:
    view = scenes.run(scenes.many_steps())
    first = render(view, 79, 24, PLAIN)
    rows = [line.split()[0] for line in first.lines if line.startswith("  step_")]
    assert rows[:3] == ["step_100", "step_199", "step_0"]
    assert f"{200 - len(rows)} more steps · 1-{len(rows)} of 200" in "\n".join(first.lines)
    assert "↑↓ scroll" in first.lines[-1]
    assert (first.page, first.scroll_max) == (len(rows), 200 - len(rows))
    seen: list[str] = []
    for offset in (*range(0, first.scroll_max, first.page), first.scroll_max, 10_000):
        frame = render(view, 79, 24, PLAIN, Pane(scroll=offset))
        seen += [line.split()[0] for line in frame.lines if line.startswith("  step_")]
    assert set(seen) == {f"step_{number}" for number in range(200)}
    assert seen[-1] == "step_198"


def test_thirty_workflows_can_be_scrolled_through_and_a_failing_one_comes_first() -> None:
    view = scenes.many_workflows(20.0)
    first = render(view, 79, 24, PLAIN)
    assert "✗ Workflow29" in first.lines[2]
    seen: set[str] = set()
    for offset in range(first.scroll_max + 1):
        text = "\n".join(render(view, 79, 24, PLAIN, Pane(scroll=offset)).lines)
        seen |= set(re.findall(r"Workflow\d+", text))
    assert len(seen) == 30
    chosen = screen(view, 79, 24, Pane(selected="Workflow17"))
    assert "● Workflow17" in chosen
    assert "login" in chosen
    assert "more workflows" in chosen


def test_what_fits_cannot_be_scrolled() -> None:
    frame = render(scenes.run(scenes.running()), 79, 24, PLAIN, Pane(scroll=5))
    assert frame.scroll_max == 0
    assert "scroll" not in frame.lines[-1]
    assert "login" in "\n".join(frame.lines)


@given(sizes, st.integers(-5, 300), st.sampled_from(["steps", "workflows"]))
def test_a_scrolled_frame_fits_its_window_whatever_its_size(
    size: tuple[int, int], scroll: int, what: str
) -> None:
    view = scenes.run(scenes.many_steps(60)) if what == "steps" else scenes.many_workflows(5.0)
    width, height = size
    frame = render(view, width, height, PLAIN, Pane(scroll=scroll))
    assert len(frame.lines) <= height
    assert all(wcswidth(line) <= width for line in frame.lines)


FRAMES = {
    "running": scenes.run(scenes.running()),
    "failing": scenes.run(
        replace(scenes.running(), faults=("login.p99 <10ms, was 13.4ms",)), scenes.idle("Cleanup")
    ),
    "ended": replace(scenes.shop(50.0, saturated=True), elapsed_s=50.0),
    "many_steps": scenes.run(scenes.many_steps()),
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_of_80_columns_and_24_rows_looks_as_recorded(name: str) -> None:
    """Look at the difference; if it is meant, record it with RECORD_FRAMES=1."""
    path = Path(__file__).with_name("frames") / f"{name}.txt"
    lines = [line.rstrip() for line in render(FRAMES[name], 79, 24, PLAIN).lines]
    text = "\n".join(lines) + "\n"
    if os.environ.get("RECORD_FRAMES"):
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8")
