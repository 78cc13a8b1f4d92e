"""What `run`, `submit`, `watch` and `results` do alike with results: flags, files, reporters."""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hyperscale.cli.signals import uninterrupted, unless_interrupted
from hyperscale.errors import InputError, RunError
from hyperscale.ui.stream import write_through

if TYPE_CHECKING:
    from hyperscale.reporting.reporter import ReporterFailure, Sink
    from hyperscale.reporting.results import RunResult
    from hyperscale.ui.api import Ui


def add_output_flags(
    parser: argparse.ArgumentParser, *, ui: str = "full", out: str = ""
) -> "argparse._ArgumentGroup":
    group = parser.add_argument_group("the output")
    group.add_argument(
        "--ui",
        choices=("full", "ci", "none"),
        default=ui,
        help="live view, plain lines (also without a terminal) or nothing; default: %(default)s",
    )
    group.add_argument("--quiet", "-q", action="store_true", help="show errors only")
    group.add_argument(
        "--out",
        metavar="DIR",
        help=f"directory of the results; default: {out or 'hyperscale-results/<file>-<time>'}",
    )
    group.add_argument("--json", metavar="FILE", help="also write the results here; - for stdout")
    return group


class Destination:
    """Where the results of this command line go, checked before anything runs. Directories made
    for what never came are gone when it is left."""

    def __init__(self, args: argparse.Namespace, out_dir: Path | None, file: str = "") -> None:
        from hyperscale.reporting.files import ensure_writable
        from hyperscale.reporting.outputs import planned_outputs

        for flag in ("out", "json", "log_dir"):
            if vars(args).get(flag) == "":  # a variable nobody set: nothing would be written
                raise InputError(f"--{flag.replace('_', '-')}: is empty", hint="leave it out")
        self.out_dir = out_dir
        self.is_piped = args.json == "-"
        self._is_quiet = args.quiet
        self.json_path = Path(args.json) if args.json and not self.is_piped else None
        path = self.json_path
        if path is not None and file and path.exists() and path.samefile(file):
            raise InputError(f"--json: {path} is the test file itself", hint="name another file")
        wanted = [] if out_dir is None else [out_dir, *out_dir.parents]
        self._made = [each for each in wanted if not each.exists()]
        for kind, planned in planned_outputs(out_dir, path):
            where = "--json" if kind == "json" and planned == path else "--out"
            ensure_writable(planned, where=where)
        # With the results on stdout, everything for people goes to stderr.
        self.stream = sys.stderr if self.is_piped else sys.stdout
        self.output_file = None if out_dir is None else out_dir / "output.log"
        self.is_incomplete = False  # a file could not be written
        self._piped = b""

    def __enter__(self) -> "Destination":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # something is in it, and so it stays
            for directory in self._made:
                directory.rmdir()

    async def publish(
        self, result: "RunResult", ui: "Ui", reporters: "Sequence[Sink]" = ()
    ) -> list[str]:
        """Writes the files, tells the reporters, shows the summary. What went wrong on the way
        is for `complain`, once the terminal is given back."""
        from hyperscale.reporting.json_report import encode_json
        from hyperscale.reporting.outputs import write_outputs
        from hyperscale.reporting.reporter import submit_all

        with uninterrupted():
            outputs = write_outputs(
                result,
                out_dir=self.out_dir,
                json_path=self.json_path,
                output_file=self.output_file,
            )
        self.is_incomplete = bool(outputs.failures)
        lost = await unless_interrupted(
            submit_all(tuple(reporters), outputs.result), name="reporters"
        )
        ui.finish(outputs.result)
        if self.is_piped:
            self._piped = encode_json(outputs.result)
        return [
            *(_shortcomings(result) if self._is_quiet else ()),  # else the summary has said it
            *(failure.error for failure in outputs.failures),
            *(["interrupted while reporters were told"] if lost is None else map(_loss, lost)),
        ]

    def complain(self, problems: Sequence[str]) -> None:
        """After the live view: what could not be written, then the results on stdout."""
        for problem in problems:
            write_through(sys.stderr, f"hyperscale: {problem}\n")
        if self.is_piped:
            _write_stdout(self._piped)


def _loss(failure: "ReporterFailure") -> str:
    return f"{failure.reporter} failed to {failure.stage}: {failure.error}"


def _shortcomings(result: "RunResult") -> list[str]:
    """Why the run did not pass, in one line; nothing if it did."""
    from hyperscale.cli.node_queries import printable
    from hyperscale.reporting.results import RunStatus, failed_checks, is_fruitless

    reasons = []
    for workflow in result.workflows:
        if workflow.status is not RunStatus.COMPLETED:
            reasons.append(f"{workflow.name}: {workflow.error or workflow.status.value}")
        elif is_fruitless(workflow):
            reasons.append(f"{workflow.name}: no request succeeded")
        checks = failed_checks(workflow, result.thresholds)
        reasons += [f"{workflow.name}: check {check.name} failed" for check in checks]
    broken = [each for each in result.thresholds if not each.passed]
    reasons += [f"{each.workflow}: {each.name} is not {each.limit}" for each in broken]
    if result.passed and not reasons:
        return []
    verdict = "failed" if result.exit_code == 1 else result.status.value
    return [printable("; ".join([f"{result.file}: {verdict}", *reasons]))]


def _write_stdout(payload: bytes) -> None:
    """Past the stream's buffer, which would try again at exit what failed here."""
    sys.stdout.flush()
    left = memoryview(payload)
    try:
        while left:
            left = left[os.write(sys.stdout.fileno(), left) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RunError(f"--json -: cannot write the results: {error.strerror}") from error


def default_out_dir(file: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path("hyperscale-results") / f"{Path(file).stem}-{stamp}"
    path, count = base, 1
    while path.exists():
        count += 1
        path = base.with_name(f"{base.name}-{count}")
    return path
