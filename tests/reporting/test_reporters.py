import asyncio
import csv
import json
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest

import hyperscale.reporting
from hyperscale.errors import InputError, RunError
from hyperscale.reporting import (
    CSVConfig,
    CustomConfig,
    CustomReporter,
    JSONConfig,
    Reporter,
    ReporterFailure,
    ReporterTypes,
    RunResult,
    Sink,
    XMLConfig,
    as_reporters,
    result_set,
    submit_all,
)
from hyperscale.reporting.reporter import BACKENDS
from tests.reporting.runs import shop_result

RESULT = shop_result(("login.p99", "<250ms"))


class Recording(CustomReporter):
    """Records the calls; `submit` runs the given action."""

    def __init__(self, act: Callable[[], Awaitable[None]] | None = None) -> None:
        self.calls: list[str] = []
        self._act = act

    async def connect(self) -> None:
        self.calls.append("connect")

    async def submit(self, result: RunResult) -> None:
        self.calls.append(result.file)
        if self._act is not None:
            await self._act()

    async def close(self) -> None:
        self.calls.append("close")


def submit(*reporters: Sink, timeout_s: float = 30.0) -> list[ReporterFailure]:
    return asyncio.run(submit_all(reporters, RESULT, timeout_s=timeout_s))


def test_the_built_in_reporters_write_their_files(tmp_path: Path) -> None:
    failures = submit(
        Reporter[JSONConfig](
            reporter_type=ReporterTypes.JSON, config=JSONConfig(path=str(tmp_path / "r.json"))
        ),
        Reporter[CSVConfig](
            reporter_type=ReporterTypes.CSV,
            config=CSVConfig(path=str(tmp_path / "r.csv"), delimiter=";"),
        ),
        Reporter[XMLConfig](
            reporter_type=ReporterTypes.XML, config=XMLConfig(path=str(tmp_path / "r.xml"))
        ),
        Reporter[XMLConfig](
            reporter_type=ReporterTypes.XML,
            config=XMLConfig(path=str(tmp_path / "j.xml"), format="junit"),
        ),
    )
    assert failures == []
    assert json.loads((tmp_path / "r.json").read_bytes())["schema"] == 1
    rows = list(csv.reader((tmp_path / "r.csv").read_text().splitlines(), delimiter=";"))
    assert [row[2] for row in rows] == ["step", "login", "pay", "note"]
    assert ET.parse(tmp_path / "r.xml").getroot().tag == "hyperscale"
    assert ET.parse(tmp_path / "j.xml").getroot().tag == "testsuites"


def test_a_reporter_can_be_used_by_hand(tmp_path: Path) -> None:
    async def deliver() -> None:
        reporter = Reporter(ReporterTypes.JSON, JSONConfig(str(tmp_path / "r.json"), indent=2))
        await reporter.connect()
        await reporter.submit(RESULT)
        await reporter.close()

    asyncio.run(deliver())
    assert (tmp_path / "r.json").read_text().startswith('{\n  "schema": 1')


def test_submitting_without_a_connection_is_refused(tmp_path: Path) -> None:
    reporter = Reporter(ReporterTypes.JSON, JSONConfig(str(tmp_path / "r.json")))
    with pytest.raises(RunError, match=r"connect\(\) before submit\(\)"):
        asyncio.run(reporter.submit(RESULT))


def test_a_custom_reporter_is_connected_submitted_to_and_closed() -> None:
    direct, wrapped = Recording(), Recording()
    assert submit(direct, Reporter(ReporterTypes.Custom, CustomConfig(wrapped))) == []
    assert direct.calls == wrapped.calls == ["connect", "shop.py", "close"]


def test_a_failing_reporter_is_named_and_the_others_get_the_result(tmp_path: Path) -> None:
    async def fail() -> None:
        raise ConnectionError("no route to host")

    async def leave() -> None:
        sys.exit(7)

    good, failing, leaving = Recording(), Recording(fail), Recording(leave)
    (tmp_path / "file").write_text("")
    unwritable = Reporter(ReporterTypes.JSON, JSONConfig(str(tmp_path / "file" / "r.json")))
    failures = submit(failing, leaving, unwritable, good)
    assert [(f.reporter, f.stage) for f in failures] == [
        ("Recording", "submit"),
        ("Recording", "submit"),
        ("Reporter[JSONConfig]", "submit"),
    ]
    assert failures[0].error == "ConnectionError: no route to host"
    assert "cannot write" in failures[2].error
    assert failing.calls[-1] == good.calls[-1] == "close"


def test_a_reporter_that_cannot_connect_is_not_submitted_to() -> None:
    class Unreachable(Recording):
        async def connect(self) -> None:
            raise OSError("refused")

    reporter = Unreachable()
    (failure,) = submit(reporter)
    assert (failure.reporter, failure.stage) == ("Unreachable", "connect")
    assert reporter.calls == ["close"]


def test_a_reporter_that_waits_forever_times_out() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    reporter, good = Recording(forever), Recording()
    (failure,) = submit(reporter, good, timeout_s=0.05)
    assert (failure.stage, failure.error) == ("submit", "not done within 0.05 s")
    assert reporter.calls[-1] == good.calls[-1] == "close"


def test_a_reporter_that_blocks_does_not_keep_the_run_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hyperscale.reporting.reporter.CLOSE_TIMEOUT_S", 0.1)
    release = threading.Event()

    async def block() -> None:
        release.wait(timeout=60)  # blocks its event loop, as careless code does

    try:
        (failure,) = submit(Recording(block), Recording(), timeout_s=0.2)
    finally:
        release.set()
    assert failure.error == "not done within 0.2 s"


def test_a_result_reaches_a_reporter_unchanged_and_failures_do_not_change_it() -> None:
    before = msgspec.json.encode(RESULT)

    async def fail() -> None:
        raise ValueError

    (failure,) = submit(Recording(fail))
    assert failure.error == "ValueError"
    assert msgspec.json.encode(RESULT) == before
    assert RESULT.exit_code == shop_result(("login.p99", "<250ms")).exit_code


@pytest.mark.parametrize("kind", list(ReporterTypes))
def test_every_reporter_type_has_a_backend(kind: ReporterTypes) -> None:
    _, config_name = BACKENDS[kind]
    assert config_name in hyperscale.reporting.__all__


def test_an_unknown_reporter_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"unknown reporter 'Oracle'.*ReporterTypes\.JSON"):
        Reporter("Oracle", JSONConfig())


def test_a_foreign_configuration_is_refused() -> None:
    with pytest.raises(InputError, match=r"ReporterTypes\.CSV takes a CSVConfig, not a JSONConfig"):
        Reporter(ReporterTypes.CSV, JSONConfig())


def test_a_backend_whose_driver_is_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, ReporterTypes.CSV, ("not_installed", "CSVConfig"))
    with pytest.raises(InputError, match=r"ReporterTypes\.CSV is not available: .*install"):
        Reporter(ReporterTypes.CSV, CSVConfig())


@pytest.mark.parametrize(
    "make",
    [
        lambda: JSONConfig(indent=-1),
        lambda: CSVConfig(delimiter=""),
        lambda: CSVConfig(delimiter=", "),
        lambda: XMLConfig(format="yaml"),  # type: ignore[arg-type]  # what an unchecked caller may do
        lambda: CustomConfig(reporter=object()),  # type: ignore[arg-type]  # the same
    ],
)
def test_a_bad_configuration_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InputError, match="Config"):
        make()


def test_reporters_that_are_not_reporters_are_refused() -> None:
    reporter = Recording()
    assert as_reporters([reporter], where="shop.py: reporters") == (reporter,)
    assert as_reporters(None, where="x") == ()
    bad: list[Any] = [reporter, [Recording], ["json"], "json"]
    for value in bad:
        with pytest.raises(InputError, match=r"^shop\.py: reporters: .* is not a"):
            as_reporters(value, where="shop.py: reporters")


def test_every_public_name_can_be_imported() -> None:
    for name in hyperscale.reporting.__all__:
        assert getattr(hyperscale.reporting, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = hyperscale.reporting.nonsense


def test_a_result_can_be_walked_as_flat_metrics() -> None:
    results = result_set(RESULT)
    (workflow,) = results.workflows
    flat = {(m.step, m.group, m.name): (m.value, m.unit) for m in results.metrics()}
    assert flat[(None, "counts", "total")] == (800, "")
    assert flat[("login", "counts", "rate")] == (100, "/s")
    assert flat[("pay", "errors", "timeout")] == (16, "")
    assert flat[("login", "latency", "p99")][1] == "ms"
    assert flat[(None, "custom", "carts")] == (400, "")
    assert flat[(None, "custom", "render")][1] == "s"
    assert ("note", "latency", "p99") not in flat
    assert (workflow.checks.passed, workflow.checks.failed) == (3, 1)
