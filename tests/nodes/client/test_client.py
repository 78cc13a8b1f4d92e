"""The parts of a client that need no cluster."""

import asyncio
import zipfile
from collections.abc import AsyncGenerator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale import HyperscaleClient, Workflow
from hyperscale.client.cluster_connection import ask_node
from hyperscale.client.manager_connections import NoManagerError
from hyperscale.client.messages import GetJob, GetJobReply, OutputLine, WatchJob, WatchJobUpdate
from hyperscale.client.package import package_classes, package_file
from hyperscale.client.submission import JobSubmission
from hyperscale.client.updates import display_of, with_results
from hyperscale.client.watch import (
    ATTEMPTS_REMEMBERED_MAX,
    SPANS_REMEMBERED_MAX,
    SeenOutput,
    follow_job,
)
from hyperscale.config.loading import node_config
from hyperscale.errors import InputError, InvariantError, RunError
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.state import JobView, WorkflowRow, WorkflowStatus
from hyperscale.reporting.results import RunResult, RunStatus, WorkflowResult
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import OverloadedError, RemoteError, RemoteErrorCode
from tests.lab.loops import on_loop
from tests.lab.managers import StandInManagers, asking, client, failing, good

LOAD = """
from hyperscale import Workflow, step
from hyperscale.testing import HTTPResponse, URL

class {name}(Workflow):
    vus = 2
    duration = "1s"

    @step()
    async def get(self, url: URL = "http://127.0.0.1:9/") -> HTTPResponse:
        return await self.client.http.get(url)
"""


@pytest.mark.parametrize(
    "error",
    [
        RemoteError("not now", code=RemoteErrorCode.UNAVAILABLE),
        RemoteError("its leader has changed", code=RemoteErrorCode.MOVED),
        OverloadedError("busy", retry_after_s=0.05),
    ],
)
def test_a_question_is_repeated_after_a_transient_error(error: Exception) -> None:
    async def main() -> None:
        async with StandInManagers() as lab, client() as server:
            await lab.manager(failing(error, error))
            managers = asking(server, lab)
            reply = await managers.ask(GetJob(job="x"), GetJobReply, within_s=10.0)
            assert reply.job is not None
            assert managers.datacenters == ["dc1"]

    asyncio.run(main())


@on_loop
async def test_a_definite_refusal_is_raised_at_once() -> None:
    async with StandInManagers() as lab, client() as server:
        await lab.manager(failing(RemoteError("no such job", code=RemoteErrorCode.UNKNOWN_JOB)))
        with pytest.raises(RemoteError, match="no such job"):
            await asking(server, lab).ask(GetJob(job="x"), GetJobReply, within_s=10.0)


@on_loop
async def test_one_reachable_manager_is_enough() -> None:
    async with StandInManagers() as lab, client() as server:
        lab.addresses.append(("127.0.0.1", 1))
        await lab.manager(failing(RemoteError("not now", code=RemoteErrorCode.UNAVAILABLE)))
        lab.addresses.append(("127.0.0.1", 2))
        managers = asking(server, lab)
        assert (await managers.ask(GetJob(job="x"), GetJobReply, within_s=10.0)).job is not None


@on_loop
async def test_the_error_names_every_manager_that_was_tried() -> None:
    async with StandInManagers() as lab, client() as server:
        lab.addresses += [("127.0.0.1", 1), ("127.0.0.1", 2)]
        managers = asking(server, lab)
        with pytest.raises(NoManagerError) as caught:
            await managers.ask(GetJob(job="x"), GetJobReply, within_s=10.0, patience_s=0.2)
        assert "127.0.0.1:1 (connection refused)" in caught.value.message
        assert "127.0.0.1:2 (connection refused)" in caught.value.message


@pytest.mark.parametrize("how", ["says so", "is silent"])
def test_a_long_question_reports_what_it_waits_for_and_why_it_failed(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperscale.client.manager_connections.REPORT_AFTER_S", 0.05)
    troubles: list[str] = []

    async def silent(call: InboundCall, asked: GetJob) -> GetJobReply:
        await asyncio.sleep(60)
        return await good(call, asked)

    unavailable = [
        RemoteError("no leader", code=RemoteErrorCode.UNAVAILABLE, hint="wait") for _ in range(99)
    ]
    reason = "no leader" if how == "says so" else "silent so far"

    async def main() -> None:
        async with StandInManagers() as lab, client() as server:
            lab.addresses.append(("127.0.0.1", 1))
            await lab.manager(failing(*unavailable) if how == "says so" else silent)
            managers = asking(server, lab)
            managers.on_trouble = troubles.append
            with pytest.raises(RunError, match="no answer within") as caught:
                await managers.ask(GetJob(job="x"), GetJobReply, within_s=0.5)
            assert troubles[-1].startswith("no answer yet; ")
            assert troubles[-1].endswith(reason)
            states = f"127.0.0.1:1: connection refused; 127.0.0.1:{lab.addresses[1][1]}: {reason}"
            assert caught.value.message == f"no answer within 0.5 s; {states}"
            assert "more than half of the managers" in caught.value.hint

    asyncio.run(main())


def test_a_question_to_unreachable_managers_reports_that_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hyperscale.client.manager_connections.REPORT_AFTER_S", 0.05)
    troubles: list[str] = []

    async def main() -> None:
        async with StandInManagers() as lab, client() as server:
            lab.addresses.append(("127.0.0.1", 1))
            managers = asking(server, lab)
            managers.on_trouble = troubles.append
            with pytest.raises(NoManagerError):
                await managers.ask(GetJob(job="x"), GetJobReply, within_s=10.0, patience_s=0.5)

    asyncio.run(main())
    assert troubles
    assert set(troubles) == {"no manager can be reached yet"}


@pytest.mark.parametrize("is_lasting", [False, True])
def test_a_change_of_leader_is_reported_only_if_it_takes_long(
    is_lasting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_s = 0.0 if is_lasting else 60.0
    monkeypatch.setattr("hyperscale.client.watch.REPORT_AFTER_S", tell_s)
    left = [
        RemoteError(
            "WatchJob to m2: moved: it leads no more",
            code=RemoteErrorCode.MOVED,
            detail="it leads no more",
            hint="wait",
        )
    ]
    ended = JobView(job="x", status=JobStatus.COMPLETED, file="shop.py", ended_ms=1)
    troubles: list[str] = []

    async def watch(_call: InboundCall, _asked: WatchJob) -> AsyncGenerator[WatchJobUpdate, None]:
        if left:
            raise left.pop()
        yield WatchJobUpdate(job=ended)

    async def main() -> None:
        async with StandInManagers() as lab, client() as server:
            await lab.manager(good, watch)
            managers = asking(server, lab)
            managers.on_trouble = troubles.append
            news = [each async for each in follow_job(managers, "x", is_known=True)]
            assert [each.job.status for each in news] == [JobStatus.COMPLETED]

    asyncio.run(main())
    assert troubles == (["it leads no more"] if is_lasting else [])


@on_loop
async def test_a_wrong_secret_is_an_input_error() -> None:
    async with (
        StandInManagers("the secret of the cluster") as lab,
        client("some other secret here") as server,
    ):
        await lab.manager(good)
        with pytest.raises(InputError, match="secret"):
            await asking(server, lab).ask(GetJob(job="x"), GetJobReply, within_s=10.0)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no node of a cluster answers there: "),
        (b"", "no node of a cluster answers there, or it requires a certificate: "),
    ],
)
@on_loop
async def test_a_server_that_is_no_node_is_named_as_such(sent: bytes, why: str) -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        writer.close()

    web = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with StandInManagers() as lab, client() as server, web:
        lab.addresses.append(web.sockets[0].getsockname())
        with pytest.raises(NoManagerError, match=why):
            await asking(server, lab).ask(
                GetJob(job="x"), GetJobReply, within_s=9.0, patience_s=0.0
            )
        host, port = web.sockets[0].getsockname()
        with pytest.raises(RunError, match=f"{host}:{port} cannot be reached: {why}") as caught:
            await ask_node(
                node_config("manager", {}), host, port, GetJob(job="x"), GetJobReply, timeout_s=9.0
            )
        assert "HTTP port" in caught.value.hint


def line(number: int, *, attempt: int = 1) -> OutputLine:
    return OutputLine(
        worker="worker-1",
        workflow="Load",
        slot=0,
        stream="stdout",
        text="tick\n",
        attempt=attempt,
        number=number,
    )


@given(st.lists(st.integers(1, 3), max_size=40), st.data())
def test_each_output_line_is_passed_on_once_across_streams(attempts: list[int], data: Any) -> None:
    """All lines have the same text. A stream begins with the lines that its leader still keeps,
    which may be older than all lines seen, in one piece or several, and goes on line by line."""
    lines = [
        line(1000 + attempts[:at].count(attempt), attempt=attempt)
        for at, attempt in enumerate(attempts)
    ]
    got: list[OutputLine] = []
    given_before: set[int] = set()
    memory = SeenOutput()
    position = data.draw(st.integers(0, len(lines)))  # the watch may begin late
    while position < len(lines):
        kept_from = data.draw(st.integers(0, position))
        ends = data.draw(st.integers(position + 1, len(lines)))
        first = data.draw(st.integers(kept_from, ends))
        between = data.draw(st.integers(kept_from, first))
        passed_on = memory.new_lines(lines[kept_from:between])
        passed_on += memory.new_lines(lines[between:first])
        passed_on += [each for one in lines[first:ends] for each in memory.new_lines([one])]
        assert passed_on == [lines[at] for at in range(kept_from, ends) if at not in given_before]
        given_before.update(range(kept_from, ends))
        got += passed_on
        position = ends
    assert len(got) == len(given_before)


@on_loop
async def test_equal_lines_are_all_passed_on_when_the_leader_changes() -> None:
    going_on = JobView(job="x", status=JobStatus.RUNNING, file="shop.py")
    ended = JobView(job="x", status=JobStatus.COMPLETED, file="shop.py", ended_ms=1)
    kept = [range(1, 4), range(2, 8)]  # the next leader has some of the same lines

    async def watch(_call: InboundCall, _asked: WatchJob) -> AsyncGenerator[WatchJobUpdate, None]:
        lines = [line(number) for number in kept.pop(0)]
        yield WatchJobUpdate(job=going_on if kept else ended, output=lines)

    async with StandInManagers() as lab, client() as server:
        await lab.manager(good, watch)
        news = [each async for each in follow_job(asking(server, lab), "x")]
    assert [len(each.output) for each in news] == [3, 4]


def test_unnumbered_lines_are_all_passed_on() -> None:
    memory = SeenOutput()
    assert [len(memory.new_lines([line(0)] * 3)) for _ in range(2)] == [3, 3]


def test_remembered_lines_are_bounded_and_no_new_line_is_lost() -> None:
    memory = SeenOutput()
    with_gaps = [line(number) for number in range(1, 2_000, 2)]
    assert memory.new_lines(with_gaps) == with_gaps
    assert memory.new_lines(with_gaps) == []
    in_gaps = [line(number) for number in range(2, 1_999, 2)]
    kept = SPANS_REMEMBERED_MAX - 1  # gaps between the remembered spans; earlier ones are closed
    assert memory.new_lines(in_gaps) == in_gaps[-kept:]
    others = [line(1, attempt=attempt) for attempt in range(2, ATTEMPTS_REMEMBERED_MAX + 10)]
    assert memory.new_lines(others) == others
    assert memory.new_lines(others[-ATTEMPTS_REMEMBERED_MAX:]) == []
    assert memory.new_lines(others[:1]) == others[:1]  # the earliest attempts are forgotten


def test_a_queued_job_shows_its_position_and_reason() -> None:
    job = JobView(
        job="dc1.1-abc",
        status=JobStatus.QUEUED,
        file="shop.py",
        reason="Shop needs 2 cores, and 3 of 4 are busy",
        position=2,
        workflows=[WorkflowRow(name="Shop", status=WorkflowStatus.PENDING)],
    )
    note = "waiting for cores, number 2 in the queue: Shop needs 2 cores, and 3 of 4 are busy"
    view = display_of(WatchJobUpdate(job=job))
    assert (view.waiting, view.warnings) == (note, ())
    assert display_of(WatchJobUpdate(job=job), view).waiting == note
    assert [(w.name, w.status) for w in view.workflows] == [("Shop", "waiting")]


def test_numbers_stay_displayed_when_a_new_leader_has_none() -> None:
    row = WorkflowRow(name="Shop", status=WorkflowStatus.COMPLETED)
    job = JobView(job="dc1.1-abc", status=JobStatus.COMPLETED, file="shop.py", workflows=[row])
    empty = display_of(WatchJobUpdate(job=job))
    full = replace(
        empty, elapsed_s=6.0, workflows=(replace(empty.workflows[0], total=7, status="running"),)
    )
    for live in (None, empty):
        view = display_of(WatchJobUpdate(job=job, live=live), full)
        assert (view.elapsed_s, view.workflows[0].total) == (6.0, 7)
        assert view.workflows[0].status == "completed"


def test_the_last_view_shows_the_numbers_of_the_results() -> None:
    row = WorkflowRow(
        name="Shop", status=WorkflowStatus.CANCELLED, ended_as=JobStatus.TIMEOUT, error="late"
    )
    job = JobView(job="dc1.1-abc", status=JobStatus.TIMEOUT, file="shop.py", workflows=[row])
    shop = WorkflowResult(
        name="Shop",
        status=RunStatus.TIMEOUT,
        vus=1,
        cores=1,
        elapsed_seconds=2.5,
        total=9,
        ok=9,
        iterations=8,
    )
    result = RunResult(
        status=RunStatus.TIMEOUT, file="shop.py", started_at="", elapsed_seconds=3, workflows=[shop]
    )
    view = with_results(display_of(WatchJobUpdate(job=job)), result)
    (end,) = view.workflows
    assert (end.status, end.total, end.elapsed_s, end.error) == ("timeout", 9, 2.5, "late")
    assert end.iterations == 8
    assert view.elapsed_s == 2.5


def test_a_file_is_packaged_with_the_modules_it_imports(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("X = 1\n")
    file = tmp_path / "shop.py"
    file.write_text("import helper\n" + LOAD.format(name="Shop"))
    package = package_file(file)
    assert [workflow.name for workflow in package.plan.workflows] == ["Shop"]
    names = zipfile.ZipFile(BytesIO(package.payload)).namelist()
    assert {"src/shop.py", "src/helper.py"} <= set(names)
    assert package == package_file(file)  # packaging is deterministic


def test_classes_without_a_file_cannot_be_mixed_with_others(tmp_path: Path) -> None:
    file = tmp_path / "shop_of_two.py"
    file.write_text(LOAD.format(name="Shop"))
    package_file(file)  # imports it
    space: dict[str, Any] = {"__name__": "notebook"}
    exec(LOAD.format(name="Cell"), space)
    module: dict[str, Any] = {}
    exec(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport shop_of_two", module)
    with pytest.raises(InputError, match="put them in one file"):
        package_classes([module["shop_of_two"].Shop, space["Cell"]], test_name="mixed")


@pytest.mark.parametrize(
    ("submission", "message"),
    [
        (JobSubmission(), "no workflows were given"),
        (JobSubmission(file="none.py"), "none.py"),
        (JobSubmission(file="none.py", key="k" * 200), "idempotency key"),
        (JobSubmission(file="none.py", on_isolation="perhaps"), "on_isolation"),
        (JobSubmission(file="none.py", timeout="soon"), "timeout"),
    ],
)
def test_a_submission_that_cannot_be_packaged_is_an_input_error(
    submission: JobSubmission, message: str
) -> None:
    async def main() -> None:
        async with HyperscaleClient(["127.0.0.1:1"]) as one:
            with pytest.raises(InputError, match=message):
                await one.submit_job(submission)

    asyncio.run(main())


WRONG_WORK = {
    "no list": (None, {}, "no test file and no list of workflows"),
    "a class alone": (Workflow, {}, r"no test file and no list of workflows.*\[Shop\]"),
    "a file in a list": (["shop.py"], {}, "'shop.py' is not a workflow"),
    "a key of another type": ("none.py", {"key": 5}, "key: 5 is not valid text"),
    "a level there is none of": ("none.py", {"log_level": "loud"}, "log_level: 'loud'"),
    "a name of another type": (
        [Workflow],
        {"test_name": 5},
        "test_name: 5 is not valid text",
    ),
    "a submitter of another type": ("none.py", {"by": 5}, "by: 5 is not valid text"),
    "no truth": ("none.py", {"static": "no"}, "static: 'no' is not True or False"),
    "no datacenter": (
        "none.py",
        {"target_datacenters": 5},
        "target_datacenters: 5 is not valid text",
    ),
    "no function": ("none.py", {"on_status_update": 5}, "on_status_update: 5 cannot be called"),
}


@pytest.mark.parametrize("what", WRONG_WORK)
def test_wrong_arguments_of_submit_job_are_named(what: str) -> None:
    work, options, message = WRONG_WORK[what]

    async def main() -> None:
        async with HyperscaleClient(["127.0.0.1:1"]) as one:
            with pytest.raises(InputError, match=message):
                await one.submit_job(work, **options)

    asyncio.run(main())


@on_loop
async def test_wrong_arguments_are_refused_before_a_manager_is_asked() -> None:
    async with HyperscaleClient("127.0.0.1:1") as one:
        for question in (one.get_job_status, one.cancel_job, one.wait_for_completion):
            with pytest.raises(InputError, match="None is no job id"):
                await question(None)
            for nowhere in ("\udcff", "x" * 100_000):
                with pytest.raises(InputError, match="there is no job"):
                    await question(nowhere)
        for reason in ("\udcff", "x" * 100_000, None):
            with pytest.raises(InputError, match="reason: "):
                await one.cancel_job("default.1-x", reason)
        for limit in (0, -1, 10**30, "5"):
            with pytest.raises(InputError, match="limit"):
                await one.get_jobs(limit=limit)
        with pytest.raises(InputError, match="node: 5 is not valid text"):
            await one.drain_node(5)
    with pytest.raises(InvariantError, match="stopped"):
        await one.get_jobs()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"manager_tcp_addrs": 5}, "no list of addresses"),
        ({"manager_tcp_addrs": [5]}, "5 is not an address"),
        ({"manager_tcp_addrs": [("127.0.0.1", "x")]}, "is not an address"),
        ({"manager_tcp_addrs": [("127.0.0.1", 99999)]}, "99999"),
        ({"settings": 5}, "5 is no configuration"),
    ],
)
def test_wrong_arguments_of_a_client_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        HyperscaleClient(**options)


def test_gate_and_manager_addresses_together_are_refused() -> None:
    with pytest.raises(InputError, match="gate_tcp_addrs and manager_tcp_addrs"):
        HyperscaleClient(gate_tcp_addrs=["127.0.0.1:9000"], manager_tcp_addrs=["127.0.0.1:9001"])
