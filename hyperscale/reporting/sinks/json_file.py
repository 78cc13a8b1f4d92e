"""Results into a JSON file: docs/results.md describes it."""

import asyncio

from msgspec import Struct

from hyperscale.errors import InputError
from hyperscale.reporting.files import write_file
from hyperscale.reporting.json_report import encode_json
from hyperscale.reporting.results import RunResult


class JSONConfig(Struct, frozen=True):
    path: str = "results.json"
    indent: int = 0  # 0: all on one line

    def __post_init__(self) -> None:
        if self.indent < 0:
            raise InputError(f"JSONConfig: indent={self.indent} must be 0 or more")


class JSONSink:
    def __init__(self, config: JSONConfig) -> None:
        self._config = config

    async def connect(self) -> None:
        """A file needs no connection."""

    async def submit(self, result: RunResult) -> None:
        content = encode_json(result, indent=self._config.indent)
        await asyncio.to_thread(write_file, self._config.path, content)

    async def close(self) -> None:
        """The file was closed when it was written."""


def open_sink(config: JSONConfig) -> JSONSink:
    return JSONSink(config)
