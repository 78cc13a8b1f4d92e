"""Writing a run's files: the JSON, the HTML report, the CSV and the JUnit XML.

Each file is encoded and written on its own: a file that fails is reported and costs none of the
others. The JSON, which holds everything, comes first.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import msgspec

from hyperscale.reporting.build import clean
from hyperscale.reporting.files import OutputError, write_file
from hyperscale.reporting.results import RunResult

_FORMS = {  # kind -> file name, module and function that encodes it (most runs need one form)
    "json": ("results.json", "json_report", "encode_json"),
    "html": ("report.html", "html.page", "encode_html"),
    "csv": ("steps.csv", "csv_report", "encode_csv"),
    "junit": ("junit.xml", "junit_report", "encode_junit"),
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
    """Return the kind and path of every file a run will write, the JSON first."""
    planned = [] if json_path is None else [("json", json_path)]
    if out_dir is not None:
        planned += [(kind, out_dir / name) for kind, (name, *_) in _FORMS.items()]
    return planned


def write_outputs(
    result: RunResult,
    *,
    out_dir: Path | None = None,
    json_path: Path | None = None,
    output_file: Path | None = None,
) -> WrittenReports:
    """Write all files into `out_dir`, and the JSON to `json_path` too.

    `output_file` holds what user code printed; the result names it if it exists.
    """
    planned = planned_outputs(out_dir, json_path)
    there = [("output", output_file)] if output_file is not None and output_file.exists() else []
    # Files are named before they are written: the JSON comes first and still names them all.
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
    """Return the first path of each kind: of two JSON files, the one asked for by name."""
    return dict(reversed(paths))


def _naming(result: RunResult, paths: list[tuple[str, Path]]) -> RunResult:
    shown = {kind: clean(str(path)) for kind, path in _by_kind(paths).items()}
    return msgspec.structs.replace(result, outputs=shown)


def _write(kind: str, path: Path, result: RunResult) -> OutputFailure | None:
    _, module, function = _FORMS[kind]
    try:
        encode = getattr(import_module(f"hyperscale.reporting.{module}"), function)
        write_file(path, encode(result))
    except OutputError as error:
        return OutputFailure(kind, path, str(error))
    except Exception as error:  # noqa: BLE001  a fault in one form must not cost the others
        return OutputFailure(kind, path, f"cannot make {path}: {type(error).__name__}: {error}")
    return None
