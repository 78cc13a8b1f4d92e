"""Results on disk are complete or absent."""

import asyncio
import threading
from pathlib import Path

from hyperscale.jobs.messages import AttemptId, DeliverResult
from hyperscale.nodes.agent.storage import ResultStore, WorkerStorage
from hyperscale.plan.status import PartStatus
from tests.lab.loops import on_loop


def finished(job: str = "dc.1-a", attempt: int = 1) -> DeliverResult:
    return DeliverResult(
        worker="w1",
        group=1,
        attempt_id=AttemptId(job, "Load", 0, attempt),
        status=PartStatus.COMPLETED,
        report=None,
        provided=[b"\x00\xff"],
    )


def test_stored_results_are_restored_until_they_are_erased(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results")
    assert store.open() == ([], [])
    one, two = finished(), finished(attempt=2)
    store.store(one)
    store.store(two)
    store.store(one)
    results, broken = ResultStore(tmp_path / "results").open()
    assert sorted(each.attempt_id.attempt for each in results) == [1, 2]
    assert one in results
    assert broken == []
    store.erase(one.attempt_id)
    store.erase(one.attempt_id)
    assert ResultStore(tmp_path / "results").open() == ([two], [])


def test_a_damaged_result_is_listed_and_not_deleted(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    store.store(finished())
    (damaged,) = tmp_path.glob("*.result")
    damaged.write_bytes(damaged.read_bytes()[:-3])
    store.store(finished("dc.1-b"))
    (tmp_path / "half.part").write_bytes(b"half")
    results, broken = store.open()
    assert [each.attempt_id.job for each in results] == ["dc.1-b"]
    assert broken == [damaged]
    assert not (tmp_path / "half.part").exists()


def test_a_job_name_cannot_write_outside_the_directory(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results")
    store.store(finished("../../outside"))
    assert len(list((tmp_path / "results").iterdir())) == 1


@on_loop
async def test_a_result_that_waits_for_the_disk_is_written_although_its_task_is_cancelled(
    tmp_path: Path,
) -> None:
    storage = WorkerStorage(tmp_path)
    disk_is_free = threading.Event()
    earlier = storage.run(disk_is_free.wait)
    waiting = storage.run(storage.results.store, finished())
    waiting.cancel()
    await asyncio.sleep(0)
    disk_is_free.set()
    await earlier
    await storage.close()
    assert len(list(tmp_path.rglob("*.result"))) == 1
