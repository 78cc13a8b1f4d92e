"""Nodes inside a program: started, awaited and stopped from Python."""

import asyncio
import gc
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from hyperscale import ManagerServer, WorkerServer
from hyperscale.client.cluster_file import ClusterNode
from hyperscale.errors import InputError, InvariantError, RunError
from hyperscale.lab.readiness import why_not_ready
from hyperscale.membership.events import DatagramReceived, DialAnswered, MemberState
from hyperscale.membership.messages import Gossip, Sender
from hyperscale.nodes.data_directory import remember_name
from hyperscale.nodes.jobs.job_leaders import JobLeaders
from hyperscale.nodes.jobs.service import JobsService
from hyperscale.nodes.manager import MANAGER_ROLE
from hyperscale.nodes.member import open_member
from hyperscale.nodes.server import complete_config
from hyperscale.wire.roles import Role
from tests.lab.waiting import until_async

ANY_PORT = {"port": 0, "http_port": 0}


def manager(**tables: Any) -> ManagerServer:
    return ManagerServer({"listen": ANY_PORT, **tables})


def worker(*seeds: str, **tables: Any) -> WorkerServer:
    return WorkerServer({"listen": ANY_PORT, "discovery": {"seeds": list(seeds)}, **tables})


def jobs_of(node: ManagerServer) -> JobLeaders:
    (service,) = (each for each in node.member.services if isinstance(each, JobsService))
    assert service.leaders is not None
    return service.leaders


def run(work: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop, debug=True) as runner:

        async def main() -> None:
            before = asyncio.all_tasks()
            await work()
            # No task of the nodes is left, except those that end at this moment.
            await asyncio.sleep(0)
            assert asyncio.all_tasks() == before

        runner.run(main())


def sockets() -> int:
    gc.collect()
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except FileNotFoundError:
            continue
    return found


def test_an_embedded_manager_and_worker_join_and_leave() -> None:
    async def work() -> None:
        first, second = manager(), worker("127.0.0.1:1")
        await first.start(timeout_s=60)
        await second.start()  # no node is at its seed; it listens nevertheless
        with pytest.raises(RunError, match="no manager is known"):
            await second.wait_ready(timeout_s=0.01)
        third = worker(first.address, node={"cores": 1})
        await third.start(timeout_s=60)
        assert jobs_of(first).allocator.allocator.pool.free() == {
            third.node_id: 1
        }  # the worker is ready
        await until_async(lambda: len(first.members()) == 2)
        assert {member.node for member in third.members()} == {first.node_id, third.node_id}
        await third.graceful_shutdown()
        await until_async(
            lambda: {m.state for m in first.members()} == {MemberState.ALIVE, MemberState.LEFT}
        )
        await second.graceful_shutdown()
        await first.graceful_shutdown()

    before = sockets()
    run(work)
    assert sockets() == before


def test_the_objects_of_a_stopped_manager_may_be_collected_by_any_thread() -> None:
    """The native ledger may only be used by its own thread, but any thread may collect garbage."""

    async def work() -> None:
        node = manager()
        await node.start(timeout_s=60)
        await node.graceful_shutdown()

    gc.collect()
    gc.disable()
    try:
        run(work)
        other = threading.Thread(target=gc.collect)
        other.start()
        other.join()
    finally:
        gc.enable()


def test_a_worker_that_is_not_ready_in_time_raises_why_and_is_closed() -> None:
    async def work() -> None:
        lonely = worker("127.0.0.1:1")
        with pytest.raises(RunError, match="no manager is known"):
            await lonely.start(timeout_s=0.2)

    before = sockets()
    run(work)
    assert sockets() == before


def test_why_not_ready_returns_the_reasons_of_a_node() -> None:
    async def work() -> None:
        lonely = worker("127.0.0.1:1", node={"cores": 1})
        await lonely.start()
        row = ClusterNode(id="w", pid=0, tcp="", udp="", http=lonely.http_address, argv=[])
        why = await asyncio.to_thread(why_not_ready, row)
        assert why == "no manager is known, no manager that grants cores knows this worker"
        await lonely.graceful_shutdown()
        assert await asyncio.to_thread(why_not_ready, row) == "it does not answer"

    run(work)


def test_a_port_in_use_raises_an_error_and_leaves_nothing_open() -> None:
    async def work() -> None:
        first = manager()
        await first.start()
        taken = int(first.address.rpartition(":")[2])
        again = ManagerServer({"listen": {"port": taken, "http_port": 0}})
        with pytest.raises(InputError, match="cannot listen"):
            await again.start()
        http = int(first.http_address.rpartition(":")[2])
        third = ManagerServer({"listen": {"port": 0, "http_port": http}})
        with pytest.raises(InputError, match="--http-port"):
            await third.start()
        await first.graceful_shutdown()

    before = sockets()
    run(work)
    assert sockets() == before


def test_a_node_can_be_started_only_once_and_used_only_after_that() -> None:
    async def work() -> None:
        node = manager()
        with pytest.raises(InvariantError, match="not started"):
            node.members()
        await node.start()
        with pytest.raises(InvariantError, match="once"):
            await node.start()
        await node.graceful_shutdown()
        await node.graceful_shutdown()  # a second call changes nothing

    run(work)


def test_settings_are_checked_when_a_node_is_made() -> None:
    with pytest.raises(InputError, match="did you mean"):
        ManagerServer({"listn": {}})
    with pytest.raises(InputError, match="where a manager is"):
        WorkerServer()
    with pytest.raises(InputError, match="5 is no configuration"):
        ManagerServer(5)  # type: ignore[arg-type]


def test_a_node_remembers_its_name_and_refuses_a_damaged_one(tmp_path: Path) -> None:
    settings = {"node": {"data_dir": str(tmp_path)}}
    remember_name(tmp_path, "manager-7")
    assert ManagerServer(settings).node_id == "manager-7"
    for damaged in (b"", b"\xff", b"two\nlines\n"):
        (tmp_path / "node-id").write_bytes(damaged)
        with pytest.raises(InputError, match="node-id does not hold the name of a node"):
            ManagerServer(settings)
    (tmp_path / "node-id").unlink()
    assert ManagerServer(settings).node_id.startswith("manager-")


def test_a_bug_in_a_core_stops_the_node_with_its_error() -> None:
    async def work() -> None:
        node = manager()
        await node.start()
        core = node.member.driver.core

        def broken(*_: object, **__: object) -> list[Any]:
            raise InvariantError("this cannot be")

        core.handle = broken  # type: ignore[method-assign]  # the bug of this test
        await until_async(lambda: node.has_ended)
        with pytest.raises(InvariantError, match="this cannot be"):
            await node.graceful_shutdown()

    before = sockets()
    run(work)
    assert sockets() == before


def test_a_node_that_is_cancelled_leaves_nothing() -> None:
    async def work() -> None:
        config = complete_config("manager", {"listen": ANY_PORT})

        async def live() -> None:
            async with open_member(config, MANAGER_ROLE):
                await asyncio.Event().wait()

        task = asyncio.create_task(live())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = sockets()
    run(work)
    assert sockets() == before


@pytest.mark.parametrize("heir_is", ["another node", "the observer itself"])
def test_a_node_found_at_the_address_of_another_proves_the_other_gone(
    heir_is: str,
) -> None:
    async def work() -> None:
        home, other = manager(), manager()
        await home.start()
        await other.start()
        driver, life = home.member.driver, 2 * home.member.driver.core.local.incarnation
        address = other.address if heir_is == "another node" else home.address
        driver.feed(DatagramReceived(address, "gone", life, Gossip(Sender(address, Role.MANAGER))))
        driver.feed(DialAnswered("gone", life, address, "gone", life))
        assert driver.core.state_of("gone") is MemberState.ALIVE
        await until_async(lambda: driver.core.state_of("gone") is MemberState.DEAD)
        assert driver.deaths == {"refused": 1}
        await other.graceful_shutdown()
        await home.graceful_shutdown()

    run(work)


def test_the_later_of_two_living_processes_with_one_name_ends_with_a_reason() -> None:
    async def work() -> None:
        home = manager()
        await home.start()
        seeds = {"discovery": {"seeds": [home.address], "retry_most_s": 0.5}}
        # As on two machines: each has its own data directory.
        first, second = [
            manager(**seeds, node={"id": "twin", "data_dir": directory})
            for directory in ("here", "there")
        ]
        await first.start()
        await until_async(lambda: home.member.driver.core.state_of("twin") is MemberState.ALIVE)
        await second.start()
        await until_async(lambda: second.has_ended)
        with pytest.raises(RunError, match=f"taken by a living manager at {first.address}"):
            await second.graceful_shutdown()
        assert home.member.driver.core.state_of("twin") is MemberState.ALIVE
        await first.graceful_shutdown()
        await home.graceful_shutdown()

    run(work)
