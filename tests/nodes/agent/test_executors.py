"""Executors of a worker by place."""

import asyncio
from pathlib import Path

import pytest

from hyperscale._native import Target
from hyperscale.jobs.agent.events import (
    AgentEvent,
    AttemptPrepareFailed,
    PrepareAttempt,
    StopAttempt,
)
from hyperscale.jobs.messages import PreparePart
from hyperscale.nodes.agent.executors import WorkerExecutors
from tests.lab.job_leader import load, run_id
from tests.lab.loops import run
from tests.lab.waiting import until_async


@pytest.mark.parametrize("is_here", [False, True])
def test_an_attempt_stopped_right_after_its_prepare_command_ends(
    tmp_path: Path, target: Target, is_here: bool
) -> None:
    """Both commands arrive at once if the worker was suspended; with and without a bundle."""
    code = load(tmp_path, target)
    path = tmp_path / "bundle.zip"
    path.write_bytes(code.bundle.payload)
    command = PreparePart(
        attempt_id=run_id(),
        group=1,
        term=1,
        leader="m1",
        first_slot=0,
        slots=1,
        cores=1,
        plan=code.plan,
        file=str(code.file),
        bundle=code.sha256,
    )
    events: list[AgentEvent] = []

    async def fetch(_sha256: str, _leader: str) -> Path:
        if not is_here:
            await asyncio.sleep(60)
        return path

    async def work() -> None:
        executors = WorkerExecutors(
            1,
            feed=events.append,
            fetch=fetch,
            spawn=lambda work, name: asyncio.create_task(work, name=name),
        )
        await executors.open()
        try:
            executors.prepare(PrepareAttempt(command, (0,)))
            executors.stop(StopAttempt(command.attempt_id, (0,), "cancelled", 1.0))
            await until_async(lambda: events)
        finally:
            await executors.close()

    run(work)
    (failed,) = events
    assert isinstance(failed, AttemptPrepareFailed)
