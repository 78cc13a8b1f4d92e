"""The live view on a real terminal, from taking it over to giving it back."""

import os
import re
import signal
import subprocess
import sys
import termios

import pytest

from tests.ui.console import DEMO, Console

SHOWING = ("--seconds", "60", "--start", "20")


def has_echo(console: Console) -> bool:
    return bool(console.modes()[3] & termios.ECHO)


def test_a_run_is_shown_live_then_summed_up_on_the_normal_screen() -> None:
    with Console(*SHOWING, rows=60) as console:
        console.wait_for("SearchAndBrowse")
        assert console.is_alternate
        assert not has_echo(console)
        assert "requests per second" in console.text()
        console.signal(signal.SIGUSR1)
        assert console.wait_for_end() == 0
        console.assert_restored()
        assert "Shop: errors <0.01%" in console.text()
        assert "requests per second" not in console.text()


def test_the_live_view_leaves_nothing_in_the_scrollback() -> None:
    with Console("--seconds", "1.5", "--start", "20", "--speed", "5") as console:
        assert console.wait_for_end() == 0
        assert not console.alternate.history.top
        scrolled = [
            "".join(line[x].data for x in range(console.normal.columns))
            for line in console.normal.history.top
        ]
        assert not any("requests per second" in line for line in scrolled)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_that_ends_the_process_restores_the_terminal(number: signal.Signals) -> None:
    with Console(*SHOWING) as console:
        console.wait_for("Checkout")
        console.signal(number)
        assert console.wait_for_end() != 0
        console.assert_restored()


def test_a_killed_process_leaves_a_sane_terminal_and_no_process() -> None:
    with Console(*SHOWING) as console:
        console.wait_for("Checkout")
        console.signal(signal.SIGKILL)
        assert console.wait_for_end() == -signal.SIGKILL
        console.assert_restored()


@pytest.mark.parametrize("end", ["raise", "return", "exit"])
def test_every_other_exit_restores_the_terminal(end: str) -> None:
    with Console("--seconds", "0.5", "--end", end) as console:
        console.wait_for_end()
        console.assert_restored()
        if end == "raise":
            assert "RuntimeError: the run broke" in console.errors()


def test_a_window_of_any_size_is_filled_and_never_overrun() -> None:
    with Console(*SHOWING) as console:
        console.wait_for("Checkout")
        for columns, rows in ((40, 10), (132, 43), (20, 5), (80, 24), (200, 60)):
            console.resize(columns, rows)
            # The header's clock ends one column short of the right edge.
            header = re.compile(rf"^hyperscale.{{{max(0, columns - 16)}}}\d\d:\d\d|^hypers")
            console.wait_until(lambda seen=header: bool(seen.match(console.text())))
            assert not console.alternate.history.top
        console.wait_for("requests per second")


def test_keys_show_output_choose_a_workflow_and_stop_the_run() -> None:
    with Console(*SHOWING, columns=120, rows=40) as console:
        console.wait_for("o output")
        console.press("o")
        console.wait_for("of user code")
        console.press("o")
        console.wait_until(lambda: "of user code" not in console.text())
        console.wait_until(lambda: console.text().count("requests per second") == 2)
        console.press("\t\t")
        console.wait_until(lambda: console.text().count("requests per second") == 1)
        console.press("\x1b")
        console.wait_until(lambda: console.text().count("requests per second") == 2)
        console.press("q")
        console.wait_for_end()
        console.assert_restored()
        assert "KeyboardInterrupt" in console.errors()


def test_a_suspended_run_takes_the_terminal_again_when_it_continues() -> None:
    with Console(*SHOWING) as console:
        console.wait_for("Checkout")
        console.signal(signal.SIGSTOP)
        termios.tcsetattr(console.master, termios.TCSANOW, console.before)  # as a shell does
        console.signal(signal.SIGCONT)
        console.wait_until(lambda: console.raw.count(b"\x1b[?1049h") == 2)
        console.wait_until(lambda: not has_echo(console))
        console.signal(signal.SIGUSR1)
        assert console.wait_for_end() == 0
        console.assert_restored()


def test_hostile_names_and_output_cannot_touch_the_terminal() -> None:
    with Console(*SHOWING, "--hostile", rows=50) as console:
        console.wait_for("requests per second")
        console.press("o")
        console.wait_for("of user code")
        console.signal(signal.SIGUSR1)
        console.wait_for_end()
        console.assert_restored()
        assert b"owned" not in console.raw
        assert b"\x1b]" not in console.raw


def test_a_terminal_that_accepts_no_output_does_not_delay_the_run() -> None:
    with Console("--seconds", "1.5", "--start", "20", "--report-updates") as console:
        assert console.process.stderr is not None
        # Nothing is read from the terminal until the run says that it is done.
        assert console.process.stderr.readline().startswith(b"updates ")
        assert console.wait_for_end() == 0
        console.assert_restored()
        assert "Shop: errors <0.01%" in console.text()


def test_no_color_sends_no_colour() -> None:
    with Console("--seconds", "0.5", environ={"NO_COLOR": "1"}) as console:
        assert console.wait_for_end() == 0
        looks = set(re.findall(rb"\x1b\[([0-9;]*)m", console.raw))
        assert looks <= {b"0", b"1", b"2", b"1;7"}  # plain, bold, dim, reversed


def test_an_ascii_locale_gets_ascii() -> None:
    with Console("--seconds", "0.7", "--start", "20", environ={"LC_ALL": "C"}) as console:
        assert console.wait_for_end() == 0
        console.assert_restored()
        assert console.raw.isascii()


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {"TERM": ""}])
def test_a_dumb_terminal_gets_lines(environ: dict[str, str]) -> None:
    with Console("--seconds", "0.3", "--start", "20", environ=environ) as console:
        assert console.wait_for_end() == 0
        assert not console.was_alternate
        assert b"\x1b" not in console.raw
        assert b"Checkout" in console.raw


def test_a_terminal_that_is_not_the_controlling_one_is_restored_too() -> None:
    with Console("--seconds", "0.5", own_terminal=False) as console:
        assert console.wait_for_end() == 0
        console.assert_restored()


def test_a_job_in_the_background_gets_lines() -> None:
    # Its own process group, while the terminal's foreground group is the starter's.
    start = (
        "import subprocess, sys; "
        f"sys.exit(subprocess.call([sys.executable, {str(DEMO)!r}, '--seconds', '0.3'], "
        "process_group=0))"
    )
    with Console("--then", start) as console:
        assert console.wait_for_end() == 0
        assert not console.was_alternate
        assert b"Warmup" in console.raw


def test_output_to_a_pipe_has_no_control_codes() -> None:
    command = [sys.executable, str(DEMO), "--seconds", "0.3", "--start", "20"]
    environ = {**os.environ, "TERM": "xterm-256color"}
    done = subprocess.run(command, capture_output=True, check=True, env=environ)
    assert b"Checkout" in done.stdout
    assert b"\x1b" not in done.stdout
