"""Encoded reports: reading, writing, refusing garbage, and making them smaller."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale._native import Report, shed_reports
from hyperscale.stats.workflow import WorkflowStats
from tests.lab.reports import encoded, read
from tests.stats.parts import Part, make_plan

MS = 1_000_000


def busy_part(seconds: int = 30) -> Part:
    part = Part(slot=3)
    for second in range(seconds):
        for step in ("login", "pay"):
            part.request(step, (second + 1) * MS, ok=second % 3 > 0, at_s=second + 0.5)
    part.judge(passed=False)
    part.measure("render", "timer", 0.25)
    part.hold("pay", 0.03, cpu_s=0.01)
    return part


def test_an_encoded_report_holds_what_was_decoded() -> None:
    made = busy_part().made()
    made.cpu_wait_s, made.series_s, made.rss_bytes = 1.5, 10, 2**40
    again = Report.decode(encoded(made))
    assert read(again.encode()) == made
    assert (again.workflow, again.slot, again.sequence) == ("Shop", 3, 1)
    assert (again.sent, again.finished, again.iterations) == (60, 120, 60)
    assert again.has_histograms


def test_numbers_of_any_size_are_read_as_they_were_written() -> None:
    made = Part().made()
    for number in (0, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63):
        made.iterations = made.vus = number
        assert read(Report.decode(encoded(made)).encode()) == made


def test_unknown_keys_stay_in_every_report_made_from_a_report() -> None:
    newer = msgspec.to_builtins(busy_part().made(), builtin_types=(bytes,))
    newer["weather"] = {"nested": [1, 2.5, None, b"x", {"deep": "y" * 300}]}
    newer["steps"][0]["retried"] = 7
    data = msgspec.msgpack.encode(newer)
    stats = WorkflowStats(make_plan())
    stats.apply(data, parts=1)
    merged = stats.merged(slot=3, sequence=1)
    assert merged is not None
    for again in (
        Report.decode(data).encode(),
        stats.checkpoint(3, 0),
        stats.last_report(3, 0),
        merged.encode(),
    ):
        found = msgspec.msgpack.decode(again)
        assert found["weather"] == newer["weather"]
        assert found["steps"][0]["retried"] == 7
        assert "retried" not in found["steps"][1]


@given(st.binary(max_size=300))
def test_bytes_that_are_not_a_report_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Report.decode(data)


@given(st.data())
def test_a_report_with_broken_bytes_is_refused_or_read_to_its_end(data: st.DataObject) -> None:
    broken = bytearray(encoded(busy_part(3).made()))
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    broken = broken[: data.draw(st.integers(len(broken) // 2, len(broken)))]
    try:
        report = Report.decode(bytes(broken))
    except ValueError:
        return
    assert Report.decode(report.encode()).encode() == report.encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"elapsed_s": -1.0},
        {"elapsed_s": float("nan")},
        {"elapsed_s": 1e12},
        {"slot": 2**32},
        {"iterations": -1},
        {"series_s": -1},
        {"steps": None},
    ],
)
def test_numbers_out_of_range_are_refused(changes: dict[str, object]) -> None:
    made = {**msgspec.to_builtins(Part().made()), **changes}
    with pytest.raises(ValueError, match=r"range|expected"):
        Report.decode(msgspec.msgpack.encode(made))


def test_a_second_that_is_far_ahead_of_its_report_is_left_out() -> None:
    part = Part()
    part.request("login", MS, at_s=1.0)
    part.request("login", MS, at_s=4_000_000.0)
    part.elapsed_s = 2.0
    stats = WorkflowStats(make_plan())
    stats.apply(encoded(part.made()))
    assert [value.total for value in stats.series("login")] == [0, 1]


def test_detail_is_shed_until_reports_fit() -> None:
    reports = [encoded(busy_part(400).made()), encoded(busy_part(10).made())]
    whole = sum(map(len, reports))
    assert [read(data) for data in shed_reports(reports, whole)] == [read(d) for d in reports]
    sizes = []
    for bytes_max in (whole // 2, whole // 4, 3_000, 0):
        shed = shed_reports(reports, bytes_max)
        sizes.append(sum(map(len, shed)))
        assert [read(data).steps[0].counts for data in shed] == [
            read(data).steps[0].counts for data in reports
        ]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] <= whole // 2
    assert sizes[-1] < 1_500
    with pytest.raises(ValueError, match=r"."):
        shed_reports([b"no report"], 10)


@pytest.mark.parametrize(("parts", "timed"), [(1, 600), (100, 320), (1_000, 32), (10_000, 3)])
def test_the_log_keeps_every_request_of_any_number_of_parts(parts: int, timed: int) -> None:
    part = Part()
    for second in range(600):
        part.request("login", MS, at_s=second + 0.5)
        part.request("pay", MS, at_s=second + 0.5)
    bounded = read(Report.decode(encoded(part.made())).bounded_for_log(parts).encode())
    for step in bounded.steps:
        assert sum(point.total for point in step.series) == step.counts.total == 600
        with_histogram = [point for point in step.series if point.latency]
        assert with_histogram == step.series[len(step.series) - len(with_histogram) :]
        assert len(with_histogram) <= timed
        assert sum(point.total for point in with_histogram) >= min(600, timed)
