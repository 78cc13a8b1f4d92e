"""A worker as a member of a cluster: it connects to managers and announces its cores."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hyperscale._native import Target
from hyperscale.config.loading import node_config
from hyperscale.config.schema import NodeConfig, NodeRole
from hyperscale.jobs.agent import core as agent_core
from hyperscale.jobs.messages import (
    AnnounceCores,
    DeliverResult,
    DrainWorker,
    DrainWorkerReply,
)
from hyperscale.membership.events import MemberChanged, MemberDied
from hyperscale.nodes.member import MemberNode, NodeService, RoleSpec, open_member
from hyperscale.nodes.messages import NodeMetadata, metadata_of
from hyperscale.nodes.server import complete_config
from hyperscale.nodes.worker import WORKER_ROLE
from hyperscale.plan.status import PartStatus
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.roles import Role
from tests.lab.job_leader import StandInLeader, is_quiet, load
from tests.lab.loops import run
from tests.lab.ports import free_port
from tests.lab.reports import read
from tests.lab.waiting import until_async


class LeaderService(NodeService):
    """A manager that acts as job leader and allocator towards a worker."""

    def __init__(self, member: MemberNode, handlers: Handlers) -> None:
        self.worker: NodeMetadata | None = None
        self.leader = StandInLeader(member.server, handlers, {})

    def changed(self, change: MemberChanged | MemberDied) -> None:
        if change.member.role is Role.WORKER:
            self.worker = metadata_of(change.member.metadata)


def config(role: NodeRole, **tables: Any) -> NodeConfig:
    tables.setdefault("listen", {"port": 0, "http_port": 0})
    return complete_config(role, node_config(role, tables))


def worker_config(directory: Path, seed: str, *, cores: int) -> NodeConfig:
    return config(
        "worker",
        node={"id": "w1", "cores": cores, "data_dir": str(directory / "w"), "stop_s": 3.0},
        discovery={"seeds": [seed]},
    )


@asynccontextmanager
async def managing(
    directory: Path, name: str = "m1", *, port: int = 0, seed: str | None = None
) -> AsyncIterator[tuple[MemberNode, LeaderService]]:
    spec = RoleSpec(
        role=Role.MANAGER, counts_cpu=False, services=lambda *parts: [LeaderService(*parts)]
    )
    tables: dict[str, Any] = {"listen": {"port": port, "http_port": 0}}
    if seed is not None:
        tables["discovery"] = {"seeds": [seed]}
    node = {"id": name, "data_dir": str(directory / name)}
    async with open_member(config("manager", node=node, **tables), spec) as manager:
        (service,) = manager.services
        assert isinstance(service, LeaderService)
        yield manager, service


def test_a_worker_connects_to_its_leader_and_members_see_its_free_cores(
    tmp_path: Path, target: Target
) -> None:
    code = load(tmp_path, target, duration="2s", pause_s=0.02)

    async def work() -> None:
        async with managing(tmp_path) as (manager, service):
            settings = worker_config(tmp_path, manager.address, cores=2)
            async with open_member(settings, WORKER_ROLE) as worker:
                leader = service.leader
                await worker.wait_ready(30)
                await leader.meet(worker.address)
                await until_async(lambda: service.worker is not None and service.worker.is_ready)
                assert service.worker is not None
                assert (service.worker.cores, service.worker.free) == (2, 2)
                run = await leader.run(code)
                await until_async(lambda: service.worker is not None and service.worker.free == 1)
                await until_async(
                    lambda: service.worker is not None and service.worker.progress == "progressing"
                )
                # The worker has to connect again by itself.
                for connection in manager.server.connections:
                    connection.abort("cut by the test")
                finished = await leader.hears(DeliverResult)
                assert finished.status is PartStatus.COMPLETED
                assert finished.report is not None
                assert read(finished.report).steps[0].counts.sent == await is_quiet(target)
                leader.acknowledge(run)
                await until_async(lambda: service.worker is not None and service.worker.free == 2)
                assert leader.said(AnnounceCores)[-1].incarnation > 0
                drains = await leader.ask(DrainWorker(), DrainWorkerReply)
                assert drains.attempts == 0
                await until_async(
                    lambda: (
                        service.worker is not None
                        and service.worker.is_draining
                        and not service.worker.is_ready
                    )
                )
                assert worker.why_not_ready() == ("draining",)
                await asyncio.wait_for(worker.leave(), 30)

    run(work)


@pytest.fixture
def announces_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off the repetition of core announcements."""
    monkeypatch.setattr(agent_core, "ANNOUNCE_CORES_EVERY_S", 3600.0)


@pytest.mark.usefixtures("announces_rarely")
def test_a_new_manager_gets_the_cores_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        settings = worker_config(tmp_path, f"127.0.0.1:{(port := free_port())}", cores=1)
        async with open_member(settings, WORKER_ROLE) as worker:
            assert worker.why_not_ready()
            async with (
                managing(tmp_path, port=port) as (first, one),
                managing(tmp_path, "m2", seed=first.address) as (_, other),
            ):
                await one.leader.hears(AnnounceCores)
                await other.leader.hears(AnnounceCores)
                await worker.wait_ready(30)

    run(work)


def test_a_worker_is_ready_once_an_allocator_knows_its_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_core, "ANNOUNCE_CORES_EVERY_S", 0.1)

    async def work() -> None:
        async with managing(tmp_path) as (manager, service):
            service.leader.grants_cores = False
            settings = worker_config(tmp_path, manager.address, cores=1)
            async with open_member(settings, WORKER_ROLE) as worker:
                await until_async(lambda: len(service.leader.said(AnnounceCores)) >= 2)
                assert worker.why_not_ready() == ("no manager that grants cores knows this worker",)
                service.leader.grants_cores = True
                await worker.wait_ready(30)
                service.leader.grants_cores = False  # a later allocator waits for all workers
                told = len(service.leader.said(AnnounceCores))
                await until_async(lambda: len(service.leader.said(AnnounceCores)) > told)
                assert not worker.why_not_ready()

    run(work)
