"""Results into a CSV file, one row per step."""

import asyncio

from msgspec import Struct

from hyperscale.errors import InputError
from hyperscale.reporting.csv_report import CSVDialect, encode_csv
from hyperscale.reporting.files import write_file
from hyperscale.reporting.results import RunResult


class CSVConfig(Struct, frozen=True):
    path: str = "steps.csv"
    delimiter: str = ","

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or self.delimiter in '\r\n"':
            raise InputError(
                f"CSVConfig: delimiter={self.delimiter!r} must be one character",
                hint='use ",", ";" or "\\t"',
            )


class CSVSink:
    def __init__(self, config: CSVConfig) -> None:
        self._config = config

    async def connect(self) -> None:
        """A file needs no connection."""

    async def submit(self, result: RunResult) -> None:
        content = encode_csv(result, CSVDialect(self._config.delimiter))
        await asyncio.to_thread(write_file, self._config.path, content)

    async def close(self) -> None:
        """The file was closed when it was written."""


def open_sink(config: CSVConfig) -> CSVSink:
    return CSVSink(config)
