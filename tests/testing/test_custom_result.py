"""`CustomResult`: its fields, its verdict, its time."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from hyperscale.plugin import CustomResult
from hyperscale.testing.results import outcome_of


class Transfer(CustomResult):
    unit: ClassVar[str] = "bytes"
    moved: int
    parts: list[int] = []  # noqa: RUF012 - what is tested


@dataclass
class Pair(CustomResult):
    left: int
    right: int


class Old(CustomResult):
    def __init__(self, total: int) -> None:
        self.total = total


def test_annotations_are_fields_given_by_keyword() -> None:
    one, other = Transfer(moved=5), Transfer(6, parts=[1])
    one.parts.append(2)
    assert (one.moved, one.parts, other.moved, other.parts) == (5, [2], 6, [1])
    assert Transfer(moved=1).parts == []
    assert repr(other) == "Transfer(moved=6, parts=[1])"
    assert (Pair(1, 2).right, Old(3).total) == (2, 3)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, r"Transfer\(\) needs a value for 'moved'"),
        ({"moved": 1, "mvoed": 2}, r"Transfer\(\) has no field 'mvoed'"),
    ],
)
def test_a_wrong_field_is_refused(fields: dict[str, int], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        Transfer(**fields)  # type: ignore[arg-type]  # wrong on purpose


class ByProperty(CustomResult):
    status: int

    @property
    def successful(self) -> bool:  # type: ignore[override]  # as published tests do
        return self.status < 400

    def context(self) -> str:
        return f"status {self.status}"


class ByMethod(CustomResult):
    def successful(self) -> bool:  # type: ignore[override]  # as published tests do
        return False


@pytest.mark.parametrize(
    ("result", "ok", "error"),
    [
        (Transfer(moved=1), True, None),
        (Transfer(moved=1, ok=False), False, "result"),  # type: ignore[call-arg]  # not a declared field
        (Transfer(moved=1, successful=False, error="lost"), False, "lost"),  # type: ignore[call-arg]  # as above
        (ByProperty(status=200), True, None),
        (ByProperty(status=500), False, "status 500"),
        (ByMethod(), False, "result"),
    ],
)
def test_a_result_is_failed_by_ok_or_by_successful(
    result: CustomResult, ok: bool, error: str | None
) -> None:
    assert outcome_of(result, 7) == (ok, error, 7)


@pytest.mark.parametrize(
    ("timings", "took_ns"),
    [
        ({"request_start": 10.0, "request_end": 10.25}, 250_000_000),
        ({"request_start": 10.0, "request_end": 9.0}, 0),
        ({"request_start": 10.0}, 7),
        ({"request_start": 10.0, "request_end": None}, 7),
        ({"connect": 0.1}, 7),
        (None, 7),
    ],
)
def test_timings_replace_the_time_of_the_call(
    timings: dict[str, float | None], took_ns: int
) -> None:
    result = Transfer(moved=1)
    result.timings = timings
    assert outcome_of(result, 7)[2] == took_ns
