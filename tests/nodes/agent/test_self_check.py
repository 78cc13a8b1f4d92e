"""A worker that cannot do its work says so, gets no part, and recovers by itself."""

import os
import resource
import signal
import sys
from pathlib import Path

import pytest

from hyperscale._native import Target
from hyperscale.jobs.messages import AnnounceCores, DeliverResult, Refusal
from hyperscale.nodes.agent import self_check
from hyperscale.nodes.agent.self_check import open_descriptors, write_error
from tests.lab.disks import mounted, remount
from tests.lab.job_leader import load, stand_in_leader, worker
from tests.lab.loops import run
from tests.lab.processes import executors_of
from tests.lab.waiting import until_async


def test_writing_needs_room_and_permission(tmp_path: Path) -> None:
    assert write_error(tmp_path) == ""
    assert not list(tmp_path.iterdir())
    assert write_error(tmp_path / "missing") == "No such file or directory"
    with mounted(disk := tmp_path / "disk", "size=64k"):
        (disk / "filling").write_bytes(bytes(64 * 1024))
        assert write_error(disk) == "No space left on device"
        (disk / "filling").unlink()
        assert write_error(disk) == ""
        remount(disk, "ro")
        assert write_error(disk) == "Read-only file system"


def test_descriptors_are_counted_also_if_none_is_left() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 0 < open_descriptors() < soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        assert open_descriptors() == 3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def checks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "CHECK_EVERY_S", 0.05)
    monkeypatch.setattr(self_check, "CHECK_UNFIT_EVERY_S", 0.05)


@pytest.mark.usefixtures("checks_often")
def test_a_worker_without_its_data_directory_refuses_parts_until_it_is_back(
    tmp_path: Path, target: Target
) -> None:
    code = load(tmp_path, target, duration="1s", pause_s=0.02)
    data = tmp_path / "data"
    unfit = f"the data directory {data} cannot be written: No such file or directory"

    async def work() -> None:
        async with worker(data) as node, stand_in_leader() as leader:
            await leader.meet(node.address)
            boxed = b'hyperscale_executors_sandbox{limits="capabilities"} 1'
            await until_async(lambda: boxed in node.member.metrics())  # an executor has started
            data.rename(tmp_path / "away")
            told = await leader.hears(AnnounceCores, lambda cores: cores.unfit)
            assert told.unfit == (unfit,)
            assert unfit in node.member.why_not_ready()
            reply = await leader.prepare(code)
            assert (reply.refusal, reply.reason) == (Refusal.UNFIT, unfit)
            unfit_metric = b'hyperscale_worker_unfit{fault="data_directory"} '
            assert unfit_metric + b"1" in node.member.metrics()
            (tmp_path / "away").rename(data)
            await until_async(lambda: not leader.said(AnnounceCores)[-1].unfit)
            assert unfit_metric + b"0" in node.member.metrics()
            await leader.run(code)
            await leader.hears(DeliverResult)

    run(work)


@pytest.mark.usefixtures("checks_often")
def test_a_worker_on_a_full_or_read_only_disk_is_unfit_until_it_is_repaired(tmp_path: Path) -> None:
    async def work() -> None:
        async with worker(data) as node, stand_in_leader() as leader:
            await leader.meet(node.address)

            async def becomes(*words: str) -> None:
                def is_told() -> bool:
                    told = leader.said(AnnounceCores)
                    unfit = told[-1].unfit if told else None
                    if unfit is None or len(unfit) != len(words):
                        return False
                    return all(map(str.__contains__, unfit, words))

                await until_async(is_told, what=f"the worker announces {words}")

            await becomes("MiB free, 128 MiB are needed")
            remount(data, "size=1g")
            await becomes()
            with mounted(data, "ro,size=1g"):
                await becomes("cannot be written: Read-only file system")
            await becomes()

    with mounted(data := tmp_path / "data", "size=1m"):
        run(work)


@pytest.mark.usefixtures("checks_often")
def test_a_worker_that_can_start_no_executor_is_unfit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with worker(tmp_path / "data") as node, stand_in_leader() as leader:
            await leader.meet(node.address)
            (executor,) = executors_of(os.getpid())
            with monkeypatch.context() as broken:
                broken.setattr(sys, "executable", "/bin/false")
                os.kill(executor, signal.SIGKILL)
                told = await leader.hears(AnnounceCores, lambda cores: cores.unfit)
            assert "executors do not start: an executor failed to start: " in told.unfit[0]
            await until_async(lambda: not leader.said(AnnounceCores)[-1].unfit)

    run(work)
