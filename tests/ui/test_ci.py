import io
import os
from dataclasses import replace

import pytest

from hyperscale.errors import InputError
from hyperscale.stats.view import RunView
from hyperscale.ui import open_ui
from hyperscale.ui.ci import CiLog, RunLog
from hyperscale.ui.theme import Theme
from tests.ui import scenes

PLAIN = Theme(colors=None)


def said(*views: RunView, interval_s: float = 5.0) -> list[str]:
    log = RunLog(PLAIN, interval_s=interval_s)
    return [line for view in views for line in log.lines(view)]


def test_the_log_of_a_run_has_its_starts_progress_and_ends() -> None:
    views = [scenes.shop(tenth / 10) for tenth in range(500)]
    lines = [line for line in said(*views) if "Checkout" in line]
    started = "00:02  Checkout         started with 1,000 vus on 2 cores for up to 30s, natively"
    assert lines[0] == started
    assert lines[-1].startswith(
        "00:32  Checkout         passed: 332,814 requests, 329,519 steps, "
        "109,839 iterations, 210 failed, 0 cut"
    )
    progress = lines[1:-1]
    assert [line[:5] for line in progress] == ["00:03", "00:07", "00:12", "00:17", "00:22", "00:27"]
    figures = ("/s now", "/s mean", " requests", " steps", " iterations", "210 failed", "p50 ")
    for expected in (*figures, "p99 ", "timeout=105"):
        assert expected in progress[-1]


def test_the_interval_between_lines_is_configurable() -> None:
    views = [scenes.run(scenes.running(elapsed_s=tenth / 10)) for tenth in range(50)]
    assert len(said(*views, interval_s=1.0)) == 1 + 4


def test_a_workflow_that_never_ran_says_why_once() -> None:
    view = scenes.run(scenes.idle("Cleanup", "cancelled", error="dependency failed: Reindex"))
    assert said(view, view, view) == ["00:00  Cleanup  cancelled: dependency failed: Reindex"]


def test_a_warning_of_saturation_is_written_once_though_its_figures_change() -> None:
    views = [
        replace(
            scenes.run(scenes.idle("Shop")), saturation={"Shop": f"Shop: saturated (CPU {cpu}%)"}
        )
        for cpu in (91, 95, 98)
    ]
    assert said(*views) == ["00:00  warning: Shop: saturated (CPU 91%)"]


def test_after_a_long_silence_the_log_says_what_the_run_waits_for() -> None:
    queued = "waiting for cores, number 1 in the queue"
    views = [
        replace(scenes.run(scenes.idle("Shop")), waiting=queued, elapsed_s=float(at_s))
        for at_s in range(70)
    ]
    assert said(*views) == [
        f"00:00  warning: {queued}",
        f"00:30  still {queued}",
        f"01:00  still {queued}",
    ]
    silent = [replace(view, waiting="") for view in views]
    assert said(*silent) == ["00:30  still waiting for Shop", "01:00  still waiting for Shop"]


def test_lines_hold_no_control_codes_even_if_names_do() -> None:
    for line in said(scenes.hostile(scenes.shop(20.0)), scenes.hostile(scenes.shop(33.0))):
        assert line.isprintable()


def ci_output(*texts: str, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    with open_ui("full", stream=stream, environ={"TERM": "xterm", "LANG": "C.UTF-8"}) as ui:
        assert ui.mode == "ci"
        ui.update(scenes.shop(20.0))
        for text in texts:
            ui.log(text, source="Checkout")
        ui.finish(scenes.result())
    return raw.getvalue().decode(encoding)


def test_full_falls_back_to_lines_where_there_is_no_terminal() -> None:
    text = ci_output("hello\n")
    assert "Checkout | hello\n" in text
    assert "✗ failed in 1m2s: Shop: errors <0.01%" in text
    assert "\x1b" not in text


def test_user_output_is_prefixed_line_by_line_and_made_harmless() -> None:
    text = ci_output("one\n::set-output name=x::y\n\x1b[31mred\x1b]0;owned\x07\r\n")
    assert "Checkout | one\nCheckout | ::set-output name=x::y\nCheckout | red\n" in text


def test_a_stream_that_is_not_utf8_gets_ascii() -> None:
    assert ci_output("日本\n", encoding="latin-1").isascii()


@pytest.mark.parametrize(("mode", "quiet"), [("none", False), ("full", True), ("ci", True)])
def test_none_and_quiet_write_nothing(mode: str, quiet: bool) -> None:
    stream = io.StringIO()
    with open_ui(mode, stream=stream, quiet=quiet, environ={}) as ui:
        ui.update(scenes.shop(20.0))
        ui.log("hello")
        ui.finish(scenes.result())
    assert ui.mode == "none"
    assert stream.getvalue() == ""


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(InputError, match="--ui: unknown mode 'fancy'"):
        open_ui("fancy", stream=io.StringIO(), environ={})


def test_a_slow_reader_loses_lines_and_does_not_delay_the_run() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as reading, os.fdopen(writer, "w") as stream:
        lines = CiLog(stream, lines_max=100)
        lines.start()
        # Far more than a pipe holds: the thread is stuck in its write, we are not.
        for i in range(20_000):
            lines.put([f"line {i} {'x' * 100}"])
        received = reading.read1(65536)
        while b"dropped" not in received:
            received += reading.read1(65536)
        lines.close(within_s=None)
    assert b"lines dropped: the output is read too slowly" in received
    assert b"line 0 " in received


def test_the_run_continues_when_the_reader_closes_the_pipe() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream, open_ui("ci", stream=stream, environ={}) as ui:
        ui.update(scenes.shop(20.0))
        ui.update(replace(scenes.shop(33.0)))
        ui.finish(scenes.result())


def _broken_run(stream: io.StringIO) -> None:
    with open_ui("ci", stream=stream, environ={}) as ui:
        ui.update(scenes.shop(20.0))
        raise ZeroDivisionError


def test_an_exception_leaves_the_lines_written_so_far() -> None:
    stream = io.StringIO()
    with pytest.raises(ZeroDivisionError):
        _broken_run(stream)
    assert "Checkout" in stream.getvalue()
