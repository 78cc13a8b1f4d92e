"""The supervisor of tasks: whose failure ends what."""

import asyncio

import pytest

from hyperscale.sansio.tasks import TaskSupervisor


async def _fail() -> None:
    raise ZeroDivisionError("a bug in the task")


def test_a_failed_request_is_logged_and_ends_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        tasks = TaskSupervisor()
        await asyncio.wait([tasks.spawn_request(_fail(), "request")])
        assert not tasks.failed.done()
        await tasks.close()

    asyncio.run(scenario())
    assert "request.failed: a bug in the task" in caplog.text


def test_any_other_task_that_fails_ends_the_node() -> None:
    async def scenario() -> None:
        tasks = TaskSupervisor()
        tasks.spawn(_fail(), "vital")
        with pytest.raises(ZeroDivisionError):
            await tasks.failed
        await tasks.close()

    asyncio.run(scenario())


def test_close_waits_until_every_task_has_ended() -> None:
    async def scenario() -> None:
        tasks, ended = TaskSupervisor(), []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append(True)

        tasks.spawn(work(), "work")
        await asyncio.sleep(0)
        await tasks.close()
        assert ended == [True]

    asyncio.run(scenario())
