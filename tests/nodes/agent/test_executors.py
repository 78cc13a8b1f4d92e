"""Executors of a worker by place."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hyperscale._native import Target
from hyperscale.execution.protocol import SlotSetUp
from hyperscale.jobs.agent.events import (
    AgentEvent,
    AttemptPrepareFailed,
    AttemptSetUp,
    PrepareAttempt,
    StopAttempt,
)
from hyperscale.jobs.messages import PreparePart
from hyperscale.nodes.agent.executors import WorkerExecutors
from tests.lab.job_leader import Code, load, run_id
from tests.lab.loops import run
from tests.lab.waiting import until_async


def prepare_command(code: Code, *, cores: int = 1) -> PreparePart:
    return PreparePart(
        attempt_id=run_id(),
        group=1,
        term=1,
        leader="m1",
        first_slot=0,
        slots=cores,
        cores=cores,
        plan=code.plan,
        file=str(code.file),
        bundle=code.sha256,
    )


@asynccontextmanager
async def opened(
    cores: int, events: list[AgentEvent], bundle: Path | None
) -> AsyncGenerator[WorkerExecutors, None]:
    """Open executors that feed `events`; without a bundle they wait for it."""

    async def fetch(_sha256: str, _leader: str) -> Path:
        if bundle is None:
            await asyncio.sleep(60)
        assert bundle is not None
        return bundle

    async def no_secrets(_sha256: str, _leader: str) -> dict[str, str]:
        return {}

    executors = WorkerExecutors(
        cores,
        worker="w1",
        feed=events.append,
        fetch=fetch,
        fetch_secrets=no_secrets,
        spawn=lambda work, name: asyncio.create_task(work, name=name),
    )
    await executors.open()
    try:
        yield executors
    finally:
        await executors.close()


@pytest.mark.parametrize("is_here", [False, True])
def test_an_attempt_stopped_right_after_its_prepare_command_ends(
    tmp_path: Path, target: Target, is_here: bool
) -> None:
    """Both commands arrive at once if the worker was suspended; with and without a bundle."""
    code = load(tmp_path, target)
    path = tmp_path / "bundle.zip"
    path.write_bytes(code.bundle.payload)
    command = prepare_command(code)
    events: list[AgentEvent] = []

    async def work() -> None:
        async with opened(1, events, path if is_here else None) as executors:
            executors.prepare(PrepareAttempt(command, (0,)))
            executors.stop(StopAttempt(command.attempt_id, (0,), "cancelled", 1.0))
            await until_async(lambda: events)

    run(work)
    (failed,) = events
    assert isinstance(failed, AttemptPrepareFailed)


def test_what_setup_left_is_told_although_not_every_executor_was_prepared(
    tmp_path: Path, target: Target
) -> None:
    command = prepare_command(load(tmp_path, target), cores=2)
    events: list[AgentEvent] = []

    async def work() -> None:
        async with opened(2, events, None) as executors:
            executors.prepare(PrepareAttempt(command, (0, 1)))
            executors._on_event(0, SlotSetUp(context=b"left"))
            assert not events  # the other executor does not wait for it yet
            executors.stop(StopAttempt(command.attempt_id, (0, 1), "cancelled", 1.0))
            await until_async(lambda: len(events) > 1)

    run(work)
    set_up, failed = events
    assert set_up == AttemptSetUp(command.attempt_id, b"left")
    assert isinstance(failed, AttemptPrepareFailed)
