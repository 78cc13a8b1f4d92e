"""Messages with statistics, made small enough to be sent: histograms of old seconds go first, then
phases, and those of the whole only where nothing else is left to go. Counts always arrive."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec
from msgspec import Struct

from hyperscale.jobs.messages import DeliverResult, ListAttemptsReply, ReportProgress
from hyperscale.stats.report import PartReport
from hyperscale.stats.series import counted
from hyperscale.wire.registry import REGISTRY

_S = TypeVar("_S", bound=Struct)
_encode = msgspec.msgpack.Encoder().encode


def fit(message: _S) -> _S:
    """The message; with less detail if it would be over its size class."""
    reports = _reports(message)
    if not reports:
        return message
    limit = int(REGISTRY.spec_of(message).size)
    for shed in _SHEDDING:
        if len(_encode(message)) <= limit:
            break
        for report in reports:
            shed(report)
    return message


def _keep_histograms(count: int, report: PartReport) -> None:
    report.steps = counted(report, timed_max=count).steps


def _drop_seconds(report: PartReport) -> None:
    for step in report.steps:
        step.series = []


def _drop_phases(report: PartReport) -> None:
    for step in report.steps:
        step.phases = None


def _drop_histograms(report: PartReport) -> None:
    for step in report.steps:
        step.latency = None
    for metric in report.metrics:
        metric.distribution = None


_SHEDDING: tuple[Callable[[PartReport], None], ...] = (
    *(partial(_keep_histograms, count) for count in (300, 60, 15, 0)),
    _drop_phases,
    _drop_histograms,
    _drop_seconds,
)


def _reports(message: Struct) -> list[PartReport]:
    match message:
        case DeliverResult(report=PartReport() as report):
            return [report]
        case ReportProgress() | ListAttemptsReply():
            return [part.report for part in message.parts if part.report is not None]
    return []
