"""Results into an XML file: all of them, or thresholds and checks as JUnit."""

import asyncio
from typing import Literal

from msgspec import Struct

from hyperscale.errors import InputError
from hyperscale.reporting.files import write_file
from hyperscale.reporting.junit_report import encode_junit
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.xml_report import encode_xml


class XMLConfig(Struct, frozen=True):
    path: str = "results.xml"
    format: Literal["results", "junit"] = "results"

    def __post_init__(self) -> None:
        if self.format not in ("results", "junit"):
            raise InputError(
                f"XMLConfig: format={self.format!r} is unknown", hint='use "results" or "junit"'
            )


class XMLSink:
    def __init__(self, config: XMLConfig) -> None:
        self._config = config

    async def connect(self) -> None:
        """A file needs no connection."""

    async def submit(self, result: RunResult) -> None:
        encode = encode_junit if self._config.format == "junit" else encode_xml
        await asyncio.to_thread(write_file, self._config.path, encode(result))

    async def close(self) -> None:
        """The file was closed when it was written."""


def open_sink(config: XMLConfig) -> XMLSink:
    return XMLSink(config)
