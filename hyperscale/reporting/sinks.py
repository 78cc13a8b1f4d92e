"""Where results can go: files, and what a user writes.

A backend is a configuration with a method `open_sink`, which returns a `Sink`. It imports what it
needs beyond the standard library in `connect`: naming a backend costs nothing, and a missing driver
is reported only to those who use it. `reporter.BACKENDS` lists every backend.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal, Self

from msgspec import Struct

from hyperscale.errors import InputError
from hyperscale.reporting.csv_report import encode_csv
from hyperscale.reporting.files import write_file
from hyperscale.reporting.json_report import encode_json
from hyperscale.reporting.junit_report import encode_junit
from hyperscale.reporting.metrics import StepMetricSet, WorkflowMetricSet, result_set
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.xml_report import encode_xml


class CustomReporter:
    """A sink of the user's own. Each method is called once per run, in order, in one event loop.

    Define `submit`, which gets the whole result, or `submit_workflow_results` and
    `submit_step_results`, which get its numbers workflow by workflow and step by step.
    """

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        """Refuse a class that would deliver nothing."""
        if all(getattr(cls, name) is getattr(CustomReporter, name) for name in _DELIVERIES):
            raise InputError(
                f"{cls.__name__} delivers nothing",
                hint=f"define one of {', '.join(_DELIVERIES)}",
            )
        return super().__new__(cls)

    async def connect(self) -> None:
        """Open what the other methods use. Does nothing by default."""

    async def submit(self, result: RunResult) -> None:
        """Deliver the result. An exception marks the reporter as failed, not the run."""
        for workflow in result_set(result).workflows:
            await self.submit_workflow_results(workflow)
            for step in workflow.steps:
                await self.submit_step_results(step)

    async def submit_workflow_results(self, results: WorkflowMetricSet) -> None:
        """Deliver the numbers of one workflow. Does nothing by default."""

    async def submit_step_results(self, results: StepMetricSet) -> None:
        """Deliver the numbers of one step. Does nothing by default."""

    async def close(self) -> None:
        """Close what `connect` opened; called even if `submit` raised. Does nothing by default."""


_DELIVERIES = ("submit", "submit_workflow_results", "submit_step_results")


class FileSink(CustomReporter):
    def __init__(self, path: str, encode: Callable[[RunResult], bytes]) -> None:
        self._path = path
        self._encode = encode

    async def submit(self, result: RunResult) -> None:
        await asyncio.to_thread(write_file, self._path, self._encode(result))

    def preview(self, result: RunResult) -> Iterator[str]:
        """Yield the file that would be written."""
        yield f"write {self._path}:\n{self._encode(result).decode('utf-8', 'replace')}"


class JSONConfig(Struct, frozen=True):
    path: str = "results.json"
    indent: int = 0  # 0: all on one line

    def __post_init__(self) -> None:
        if self.indent < 0:
            raise InputError(f"JSONConfig: indent={self.indent} must be 0 or more")

    def open_sink(self) -> FileSink:
        return FileSink(self.path, partial(encode_json, indent=self.indent))


class CSVConfig(Struct, frozen=True):
    """One row per step."""

    path: str = "steps.csv"
    delimiter: str = ","

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or self.delimiter in '\r\n"':
            raise InputError(
                f"CSVConfig: delimiter={self.delimiter!r} must be one character",
                hint='use ",", ";" or "\\t"',
            )

    def open_sink(self) -> FileSink:
        return FileSink(self.path, partial(encode_csv, delimiter=self.delimiter))


class XMLConfig(Struct, frozen=True):
    """The whole result, or its thresholds and checks as JUnit."""

    path: str = "results.xml"
    format: Literal["results", "junit"] = "results"

    def __post_init__(self) -> None:
        if self.format not in ("results", "junit"):
            raise InputError(
                f"XMLConfig: format={self.format!r} is unknown", hint='use "results" or "junit"'
            )

    def open_sink(self) -> FileSink:
        return FileSink(self.path, encode_junit if self.format == "junit" else encode_xml)


class CustomConfig(Struct, frozen=True):
    reporter: CustomReporter

    def __post_init__(self) -> None:
        if not isinstance(self.reporter, CustomReporter):
            raise InputError(
                f"CustomConfig: {self.reporter!r} is not a CustomReporter",
                hint="pass an instance of your subclass of CustomReporter",
            )

    def open_sink(self) -> CustomReporter:
        return self.reporter
