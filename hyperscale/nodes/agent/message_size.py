"""Messages with statistics, made small enough to be sent: reports lose detail, never counts."""

from typing import TypeVar

import msgspec
from msgspec import Struct

from hyperscale.jobs.messages import DeliverResult, ListAttemptsReply, ReportProgress
from hyperscale.stats.report import shed_reports
from hyperscale.wire.registry import REGISTRY

_S = TypeVar("_S", bound=Struct)
_encode = msgspec.msgpack.Encoder().encode


def fit(message: _S) -> _S:
    """Return the message, with less detail in its reports if it would be over its size class."""
    reports = _reports(message)
    if not reports:
        return message
    excess = len(_encode(message)) - int(REGISTRY.spec_of(message).size)
    if excess <= 0:
        return message
    shed = iter(shed_reports(reports, max(0, sum(map(len, reports)) - excess)))
    if isinstance(message, DeliverResult):
        return msgspec.structs.replace(message, report=next(shed))
    if isinstance(message, ReportProgress | ListAttemptsReply):
        parts = [
            part if part.report is None else msgspec.structs.replace(part, report=next(shed))
            for part in message.parts
        ]
        return msgspec.structs.replace(message, parts=parts)
    return message


def _reports(message: Struct) -> list[bytes]:
    match message:
        case DeliverResult(report=bytes() as report):
            return [report]
        case ReportProgress() | ListAttemptsReply():
            return [part.report for part in message.parts if part.report is not None]
    return []
