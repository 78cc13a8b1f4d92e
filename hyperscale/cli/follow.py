"""Show a job of a cluster live until it ends, then its results. Ctrl-C never ends the job."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from hyperscale.cli.cluster_flags import RepeatedWarnings, cluster_words
from hyperscale.cli.output import Destination
from hyperscale.cli.printing import print_warning
from hyperscale.cli.signals import uninterrupted, unless_interrupted
from hyperscale.client.client import HyperscaleClient
from hyperscale.client.manager_connections import NotAllowedError
from hyperscale.client.messages import OutputLine
from hyperscale.client.updates import display_of, with_results
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.reporting.exit_codes import ExitCode, exit_code_of_run
from hyperscale.reporting.reporter import Sink
from hyperscale.reporting.results import RunResult
from hyperscale.runner.control import RunControl
from hyperscale.runner.drive import OutputLog
from hyperscale.stats.view import RunView
from hyperscale.ui import open_ui
from hyperscale.ui.api import Ui
from hyperscale.ui.text import format_clock


async def follow_to_end(
    client: HyperscaleClient,
    job: str,
    args: argparse.Namespace,
    destination: Destination,
    reporters: Sequence[Sink] = (),
) -> int:
    """Show a job that exists until it ends, publish its results and return the exit code."""
    cluster = cluster_words(args)
    log_dir = Path(args.log_dir) if vars(args).get("log_dir") else None
    result: RunResult | None = None
    is_of_others = False
    control = RunControl()
    control.attach(partial(client.change_load, job))
    with (
        uninterrupted(),
        open_ui(
            args.ui,
            stream=destination.stream,
            quiet=args.quiet,
            on_change=control.press,
            only_watches=True,
        ) as ui,
    ):
        control.on_refusal = partial(ui.log, source="hyperscale")
        with OutputLog(
            destination.output_file, lambda text: ui.log(text, source="hyperscale")
        ) as output:
            following = _show(client, job, ui, _TestOutput(output, log_dir, ui))
            last = await unless_interrupted(following, name="follow")
        if last is not None:
            try:
                result = await unless_interrupted(client.get_results(job), name="results")
            except NotAllowedError:
                is_of_others = True
        if last is not None and result is not None:
            ui.update(with_results(last, result))
            problems = await destination.publish(result, ui, reporters)
    if last is None:
        print_warning(
            f"job {job} continues; watch it with 'hyperscale watch {job}{cluster}', end it with "
            f"'hyperscale cancel {job}{cluster}'"
        )
        return ExitCode.INTERRUPTED
    if is_of_others:
        return await _end_of_others(client, job)
    if result is None:
        print_warning(f"job {job} has ended; see it with 'hyperscale results {job}{cluster}'")
        return ExitCode.INTERRUPTED
    destination.print_problems(problems)
    if destination.is_incomplete:
        print_warning(
            f"the cluster still has the results: 'hyperscale results {job}{cluster} --out DIR' "
            "writes them again"
        )
    return result.exit_code


async def _end_of_others(client: HyperscaleClient, job: str) -> int:
    """Say how a job has ended whose results are not for this client."""
    view = (await client.get_job(job)).job
    print_warning(
        f"job {job} has ended: {view.status.value}; its results are for its owner and for operators"
    )
    is_completed = view.status is JobStatus.COMPLETED
    return exit_code_of_run(
        is_completed=is_completed, passed=is_completed, was_aborted=bool(view.aborted_by)
    )


async def _show(client: HyperscaleClient, job: str, ui: Ui, logs: "_TestOutput") -> RunView:
    """Show every update of the job; return the last view."""
    view: RunView | None = None
    timed: RunView | None = None  # the view, its clock running also while the job is queued
    began_s = time.monotonic()
    log_trouble = RepeatedWarnings(lambda text: ui.log(f"{text}\n", source="hyperscale"))

    def on_trouble(text: str) -> None:
        log_trouble(text)
        if timed is not None and ui.mode == "full":  # where the log is out of sight
            ui.update(stale(timed, text))

    client.on_trouble = on_trouble
    async for news in client.follow_job(job, is_known=True):
        view = display_of(news, view)
        waited_s = 0.0 if news.job.started_ms else time.monotonic() - began_s
        timed = replace(view, elapsed_s=max(waited_s, view.elapsed_s))
        if not news.job.ended_ms:
            ui.update(timed)
        for line in news.output:
            logs.write(line)
    assert timed is not None  # there is at least one update: that the job has ended
    return timed


def stale(view: RunView, trouble: str) -> RunView:
    """Mark a view as out of date, with the time of the last update and the reason."""
    note = f"no update since {format_clock(view.elapsed_s)}: {trouble}"
    return replace(view, warnings=(note, *view.warnings))


class _TestOutput:
    """Shows what the test prints; writes it to one file and, with `log_dir`, one per executor."""

    def __init__(self, output: OutputLog, log_dir: Path | None, ui: Ui) -> None:
        self._output = output
        self._log_dir = log_dir
        self._ui = ui

    def write(self, line: OutputLine) -> None:
        source = f"{line.workflow} {line.worker}"
        self._ui.log(line.text, source=source)
        self._output.write(source, line.slot, line.text)
        if self._log_dir is None:
            return
        name = f"{line.worker}-executor-{line.slot}.log".replace("/", "_")
        try:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            with (self._log_dir / name).open("a", encoding="utf-8", errors="replace") as log:
                log.write(line.text.rstrip("\n") + "\n")
        except OSError as error:  # the job continues without these files
            self._ui.log(
                f"{self._log_dir}: cannot be written: {error.strerror}\n", source="hyperscale"
            )
            self._log_dir = None
