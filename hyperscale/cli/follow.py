"""Following a job on the terminal: the live view of `run`, until the job ends or the person goes.

Leaving leaves the job alone.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hyperscale.cli.signals import EXIT_INTERRUPTED, uninterrupted, unless_interrupted
from hyperscale.ui.stream import write_through

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from hyperscale.cli.output import Destination
    from hyperscale.client.client import HyperscaleClient
    from hyperscale.client.messages import OutputLine, WatchJobUpdate
    from hyperscale.reporting.reporter import Sink
    from hyperscale.reporting.results import RunResult
    from hyperscale.runner.drive import OutputLog
    from hyperscale.stats.view import RunView
    from hyperscale.ui.api import Ui


async def follow_to_end(
    client: "HyperscaleClient",
    job: str,
    args: "argparse.Namespace",
    destination: "Destination",
    *,
    is_known: bool = False,
    reporters: "Sequence[Sink]" = (),
    log_dir: "Path | None" = None,
) -> int:
    """Shows the job until it has ended, then its results; returns the exit code."""
    from hyperscale.cli.client_flags import where
    from hyperscale.client.job_display import with_results
    from hyperscale.runner.drive import OutputLog
    from hyperscale.ui import open_ui

    result: RunResult | None = None
    with (
        uninterrupted(),
        open_ui(args.ui, stream=destination.stream, quiet=args.quiet, only_watches=True) as ui,
    ):
        with OutputLog(
            destination.output_file, lambda text: ui.log(text, source="hyperscale")
        ) as output:
            following = _show(client, job, ui, _Logs(output, log_dir, ui), is_known=is_known)
            last = await unless_interrupted(following, name="follow")
        if last is not None:
            result = await unless_interrupted(client.get_results(job), name="results")
        if last is not None and result is not None:
            ui.update(with_results(last[1], result))
            problems = await destination.publish(result, ui, reporters)
    if last is None:
        _say(
            f"job {job} goes on; see it again with 'hyperscale watch {job}{where(args)}', end it "
            f"with 'hyperscale cancel {job}{where(args)}'"
        )
        return EXIT_INTERRUPTED
    if result is None:
        _say(f"job {job} has ended; see it with 'hyperscale results {job}{where(args)}'")
        return EXIT_INTERRUPTED
    destination.complain(problems)
    if destination.is_incomplete:
        _say(
            f"the results are still there: 'hyperscale results {job}{where(args)} --out DIR' "
            "writes them"
        )
    return result.exit_code


def _say(text: str) -> None:
    write_through(sys.stderr, f"hyperscale: {text}\n")  # the terminal may be gone


async def _show(
    client: "HyperscaleClient", job: str, ui: "Ui", logs: "_Logs", *, is_known: bool
) -> "tuple[WatchJobUpdate, RunView]":
    from hyperscale.cli.client_flags import Troubles
    from hyperscale.client.job_display import display_of

    last: WatchJobUpdate | None = None
    view: RunView | None = None  # without what was waited, which the clock forgets at the start
    timed: RunView | None = None
    began_s = time.monotonic()
    log_trouble = Troubles(lambda text: ui.log(f"{text}\n", source="hyperscale"))

    def on_trouble(text: str) -> None:
        log_trouble(text)
        if timed is not None and ui.mode == "full":  # there the log is out of sight
            ui.update(stale(timed, text))

    client.on_trouble = on_trouble
    async for news in client.follow_job(job, is_known=is_known):
        last = news
        view = display_of(news, view)
        waited_s = 0.0 if news.job.started_ms else time.monotonic() - began_s
        timed = replace(view, elapsed_s=max(waited_s, view.elapsed_s))
        if not news.job.ended_ms:
            ui.update(timed)
        for line in news.output:
            logs.write(line)
            ui.log(line.text, source=f"{line.workflow} {line.worker}")
    assert last is not None  # it ends with the news that it has ended
    assert timed is not None
    return last, timed


def stale(view: "RunView", trouble: str) -> "RunView":
    """What was seen last, not to be taken for what is."""
    from hyperscale.ui.text import format_clock

    note = f"nothing new since {format_clock(view.elapsed_s)}: {trouble}"
    return replace(view, warnings=(note, *view.warnings))


class _Logs:
    """What user code printed, in one file; with `log_dir` also in one for each executor."""

    def __init__(self, output: "OutputLog", log_dir: "Path | None", ui: "Ui") -> None:
        self._output = output
        self._log_dir = log_dir
        self._ui = ui

    def write(self, line: "OutputLine") -> None:
        self._output.write(f"{line.workflow} {line.worker}", line.slot, line.text)
        if self._log_dir is None:
            return
        name = f"{line.worker}-executor-{line.slot}.log".replace("/", "_")
        try:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            with (self._log_dir / name).open("a", encoding="utf-8", errors="replace") as log:
                log.write(line.text.rstrip("\n") + "\n")
        except OSError as error:  # the job goes on without it
            self._ui.log(
                f"{self._log_dir}: not written any more: {error.strerror}\n", source="hyperscale"
            )
            self._log_dir = None
