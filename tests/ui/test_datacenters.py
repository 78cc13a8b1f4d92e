"""Datacenters of a job on the screen, in logs and in the summary."""

from dataclasses import replace

from hyperscale.stats.view import DatacenterLoad, RunView
from hyperscale.ui.ci import RunLog
from hyperscale.ui.frame import render
from hyperscale.ui.summary import summary
from hyperscale.ui.theme import Theme
from tests.ui import scenes

PLAIN = Theme(colors=None)
EAST = DatacenterLoad("east", "running", 500, 12_345, 812.0, 0, 3.0, 12.0)
WEST = DatacenterLoad("west", "silent", 500, 9_876, 0.0, 7, 80.0, 95.0, "not heard for 21 s")


def view(*loads: DatacenterLoad, elapsed_s: float = 10.0) -> RunView:
    return RunView("shop.py", elapsed_s, (scenes.running(),), datacenters=loads)


def test_the_live_view_has_a_row_per_datacenter_above_the_merged_workflow() -> None:
    lines = render(view(EAST, WEST), 120, 40, PLAIN).lines
    east = next(line for line in lines if line.startswith("east"))
    assert east.split() == ["east", "running", "500", "12,345", "812", "0", "3.00ms", "12.0ms"]
    west = next(line for line in lines if line.startswith("west"))
    assert "silent" in west
    assert "not heard for 21 s" in west
    merged = next(i for i, line in enumerate(lines) if "Checkout" in line)
    assert lines.index(east) < lines.index(west) < merged


def test_many_datacenters_leave_room_and_those_with_news_come_first() -> None:
    quiet = [replace(EAST, datacenter=f"dc-{n}") for n in range(30)]
    lines = render(view(*quiet, WEST), 120, 24, PLAIN).lines
    rows = [line.split()[0] for line in lines[1:] if "running" in line or "silent" in line]
    assert rows[0] == "west"
    assert any("more datacenters" in line for line in lines)
    assert any("Checkout" in line for line in lines)


def test_the_log_writes_a_datacenter_when_its_state_changes_and_now_and_then() -> None:
    log = RunLog(PLAIN, interval_s=5.0)
    first = log.lines(view(EAST, elapsed_s=2.0))
    assert [line for line in first if "datacenter east  running  812/s now" in line]
    assert not [line for line in log.lines(view(EAST, elapsed_s=3.0)) if "datacenter" in line]
    silent = replace(WEST, datacenter="east")
    changed = [line for line in log.lines(view(silent, elapsed_s=4.0)) if "datacenter" in line]
    assert len(changed) == 1
    assert changed[0].endswith("not heard for 21 s")
    assert [line for line in log.lines(view(silent, elapsed_s=9.0)) if "datacenter" in line]


def test_the_summary_compares_datacenters_and_names_what_is_missing() -> None:
    lines = summary(scenes.global_result(), 160, PLAIN)
    east = next(line for line in lines if line.startswith("east"))
    assert "completed" in east
    west = next(line for line in lines if line.startswith("west"))
    assert "lost" in west
    assert "not heard; joined late after 4.5 s; up to 321 more requests" in west
    assert "datacenters started within 12.5ms" in lines
