"""Results of `run`, `submit`, `watch` and `results`: output flags, files, reporters."""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from hyperscale.cli.printing import print_warning, printable
from hyperscale.cli.signals import uninterrupted, unless_interrupted
from hyperscale.errors import InputError, RunError
from hyperscale.reporting.files import ensure_writable
from hyperscale.reporting.json_report import encode_json
from hyperscale.reporting.outputs import planned_outputs, write_outputs
from hyperscale.reporting.reporter import ReporterFailure, Sink, submit_all
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.verdict import reasons_of, run_standing
from hyperscale.stats.standing import Standing
from hyperscale.ui.api import Ui


def add_output_flags(
    parser: argparse.ArgumentParser, *, ui: str = "full", out: str = ""
) -> argparse._ArgumentGroup:
    """Add the output flags; `out` describes the default of --out."""
    group = parser.add_argument_group("output")
    add = group.add_argument
    add(
        "--ui",
        choices=("full", "ci", "none"),
        default=ui,
        help="live view, plain lines (used whenever there is no terminal) or nothing "
        "(default: %(default)s)",
    )
    add("--quiet", "-q", action="store_true", help="print errors only")
    about = f"directory for the results (default: {out or 'hyperscale-results/<file>-<time>'})"
    add("--out", metavar="DIR", help=about)
    add("--json", metavar="FILE", help="also write the results as JSON to FILE; - for stdout")
    return group


class Destination:
    """Where this command writes its results.

    The constructor refuses paths that cannot be written, before anything runs. Leaving the context
    removes the directories it created if they are still empty.
    """

    def __init__(self, args: argparse.Namespace, out_dir: Path | None, file: str = "") -> None:
        for flag in ("out", "json", "log_dir"):
            if vars(args).get(flag) == "":  # as from an unset shell variable
                raise InputError(
                    f"--{flag.replace('_', '-')}: is empty", hint="omit the flag or give it a value"
                )
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
        # With the results on stdout, everything else goes to stderr.
        self.stream = sys.stderr if self.is_piped else sys.stdout
        self.output_file = None if out_dir is None else out_dir / "output.log"
        self.is_incomplete = False  # True once a file could not be written
        self._piped = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # a directory that is not empty stays
            for directory in self._made:
                directory.rmdir()

    async def publish(self, result: RunResult, ui: Ui, reporters: Sequence[Sink] = ()) -> list[str]:
        """Write the files, submit to the reporters, show the summary.

        Return what went wrong, for `print_problems` once the live view has closed.
        """
        with uninterrupted():
            outputs = write_outputs(
                result,
                out_dir=self.out_dir,
                json_path=self.json_path,
                output_file=self.output_file,
            )
        self.is_incomplete = bool(outputs.failures)
        submitting = submit_all(tuple(reporters), outputs.result)
        lost = await unless_interrupted(submitting, name="reporters")
        ui.finish(outputs.result)
        if self.is_piped:
            self._piped = encode_json(outputs.result)
        return [
            *(_failure_line(result) if self._is_quiet else ()),  # otherwise in the summary
            *(failure.error for failure in outputs.failures),
            *(["interrupted while reporters ran"] if lost is None else map(reporter_line, lost)),
        ]

    def print_problems(self, problems: Sequence[str]) -> None:
        """Print what went wrong, then (with `--json -`) the results on stdout."""
        for problem in problems:
            print_warning(problem)
        if self.is_piped:
            _write_stdout(self._piped)


def reporter_line(failure: ReporterFailure) -> str:
    """Return one line that says which reporter failed, and what was lost."""
    return f"{failure.reporter} failed to {failure.stage}: {failure.error}"


def _failure_line(result: RunResult) -> list[str]:
    """Return one line that says why the run did not pass; nothing if it passed."""
    standing = run_standing(result)
    if standing is Standing.PASSED:
        return []
    return [printable("; ".join([f"{result.file}: {standing}", *reasons_of(result)]))]


def _write_stdout(payload: bytes) -> None:
    """Write past the stream's buffer, which would retry a failed write at exit."""
    sys.stdout.flush()
    left = memoryview(payload)
    try:
        while left:
            left = left[os.write(sys.stdout.fileno(), left) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RunError(f"--json -: cannot write the results: {error.strerror}") from error


def out_dir_for(args: argparse.Namespace) -> Path:
    """Return the directory of `--out`, or a new one named after the test file and the time."""
    if args.out:
        return Path(args.out)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path("hyperscale-results") / f"{Path(args.file).stem}-{stamp}"
    path, count = base, 1
    while path.exists():
        count += 1
        path = base.with_name(f"{base.name}-{count}")
    return path
