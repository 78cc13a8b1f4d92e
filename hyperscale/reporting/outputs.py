"""Writing a run's files: the JSON, the HTML report, the CSV and the JUnit XML.

Each is made and written on its own: one that fails is reported and costs none of the
others. The JSON, which holds everything, comes first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hyperscale.reporting.build import clean
from hyperscale.reporting.files import OutputError, write_file
from hyperscale.reporting.json_report import encode_json
from hyperscale.reporting.results import RunResult

FILE_NAMES = {
    "json": "results.json",
    "html": "report.html",
    "csv": "steps.csv",
    "junit": "junit.xml",
}


@dataclass(frozen=True, slots=True)
class OutputFailure:
    kind: str
    path: Path
    error: str


@dataclass(frozen=True, slots=True)
class WrittenReports:
    result: RunResult  # with `outputs` naming what was written
    written: dict[str, Path]
    failures: list[OutputFailure]


def planned_outputs(out_dir: Path | None, json_path: Path | None) -> list[tuple[str, Path]]:
    """Kind and path of every file a run will write, the JSON first."""
    planned = (
        [] if out_dir is None else [(kind, out_dir / name) for kind, name in FILE_NAMES.items()]
    )
    if json_path is not None:
        planned.insert(0, ("json", json_path))
    return planned


def write_outputs(
    result: RunResult,
    *,
    out_dir: Path | None = None,
    json_path: Path | None = None,
    output_file: Path | None = None,
) -> WrittenReports:
    """Writes what was asked for: all files into `out_dir`, and the JSON to `json_path` too.

    `output_file` holds what user code printed; it is named with the others if it is there.
    """
    planned = planned_outputs(out_dir, json_path)
    there = [("output", output_file)] if output_file is not None and output_file.exists() else []
    # Named before they are written, so that the JSON can come first and still name them.
    result = _naming(result, planned + there)
    failures = [
        failure for kind, path in planned if (failure := _write(kind, path, result)) is not None
    ]
    failed = {failure.path for failure in failures}
    written = [(kind, path) for kind, path in planned if path not in failed]
    if failures:
        result = _naming(result, written + there)
        for kind, path in written:
            if kind == "json":
                _write(kind, path, result)
    return WrittenReports(result=result, written=_by_kind(written + there), failures=failures)


def _by_kind(paths: list[tuple[str, Path]]) -> dict[str, Path]:
    """The first of each kind: of two JSON files, the one asked for by name."""
    return dict(reversed(paths))


def _naming(result: RunResult, paths: list[tuple[str, Path]]) -> RunResult:
    shown = {kind: clean(str(path)) for kind, path in _by_kind(paths).items()}
    return msgspec.structs.replace(result, outputs=shown)


def _write(kind: str, path: Path, result: RunResult) -> OutputFailure | None:
    try:
        write_file(path, _encoder(kind)(result))
    except OutputError as error:
        return OutputFailure(kind, path, str(error))
    except Exception as error:  # noqa: BLE001  a fault in one form must not cost the others
        return OutputFailure(kind, path, f"cannot make {path}: {type(error).__name__}: {error}")
    return None


def _encoder(kind: str) -> Callable[[RunResult], bytes]:
    match kind:
        case "json":
            return encode_json
        case "csv":
            from hyperscale.reporting.csv_report import encode_csv  # noqa: PLC0415 - most runs need one form

            return encode_csv
        case "junit":
            from hyperscale.reporting.junit_report import encode_junit  # noqa: PLC0415 - most runs need one form

            return encode_junit
        case _:
            from hyperscale.reporting.html import encode_html  # noqa: PLC0415 - most runs need one form

            return encode_html
