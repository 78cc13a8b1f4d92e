"""Messages with statistics, made small enough to be sent: old seconds go first."""

from typing import TypeVar

import msgspec
from msgspec import Struct

from hyperscale.jobs.commands import PartFinished, Progress, RunsHere
from hyperscale.stats.report import PartReport
from hyperscale.wire.registry import REGISTRY

_S = TypeVar("_S", bound=Struct)
_POINTS = (300, 60, 15, 0)
_encode = msgspec.msgpack.Encoder().encode


def fit(message: _S) -> _S:
    """The message; with fewer seconds of its series if it would be over its size class."""
    reports = _reports(message)
    if not reports:
        return message
    limit = int(REGISTRY.spec_of(message).size)
    for points in _POINTS:
        if len(_encode(message)) <= limit:
            break
        for report in reports:
            for step in report.steps:
                step.series = step.series[-points:] if points else []
    return message


def _reports(message: Struct) -> list[PartReport]:
    match message:
        case PartFinished(report=PartReport() as report):
            return [report]
        case Progress() | RunsHere():
            return [part.report for part in message.parts if part.report is not None]
    return []
