"""A manager in this process: what it keeps about jobs and workers, and for how long."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from hyperscale import HyperscaleClient, ManagerServer
from hyperscale.client.messages import GetQueueRoom, GetQueueRoomReply
from hyperscale.jobs.allocator.events import BecameAllocator, LostAllocator
from hyperscale.jobs.committed.events import CancelRequested, Event, JobStatus, decode_reply, encode
from hyperscale.jobs.committed.job_table import Limits
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.jobs.messages import (
    AcknowledgeResult,
    AttemptId,
    DeliverResult,
    ForwardOutput,
)
from hyperscale.ledger.server.tier_peers import TierPeers
from hyperscale.ledger.topology import GroupRecord, GroupState
from hyperscale.membership.events import (
    DatagramReceived,
    DialAnswered,
    Member,
    MemberDied,
    MemberState,
)
from hyperscale.membership.messages import ClaimedState, Gossip, Sender
from hyperscale.nodes.jobs import job_leaders
from hyperscale.nodes.jobs.job_leaders import JobLeaders, Outputs
from hyperscale.nodes.jobs.service import JobsService
from hyperscale.nodes.ledger_service import LedgerService
from hyperscale.plan.status import PartStatus
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import RemoteError
from hyperscale.wire.roles import Role
from tests.lab.job_builders import submission
from tests.lab.loops import on_loop
from tests.lab.waiting import until_async


class ForgetfulMachine(JobMachine):
    """A job machine that keeps one ended job."""

    def __init__(self, datacenter: str, group: int) -> None:
        super().__init__(datacenter, group, limits=Limits(ended_jobs=1))


@asynccontextmanager
async def managing(directory: Path) -> AsyncIterator[tuple[ManagerServer, JobLeaders]]:
    node = ManagerServer(
        {"node": {"data_dir": str(directory)}, "listen": {"port": 0, "http_port": 0}}
    )
    await node.start(timeout_s=60)
    try:
        (service,) = (each for each in node.member.services if isinstance(each, JobsService))
        leaders = service.leaders
        assert leaders is not None
        await until_async(lambda: leaders.allocator.allocator.is_leading)
        yield node, leaders
    finally:
        await node.graceful_shutdown()


# Silent workers.


def member(name: str, state: MemberState) -> Member:
    address = "127.0.0.1:1"
    return Member(name, 1, 0, Role.WORKER, address, address, state, since_s=0.0)


def join(node: ManagerServer, name: str) -> None:
    """Make a member known that does not exist; it stays alive until the loop runs."""
    address = "127.0.0.1:1"
    driver, life = node.member.driver, 2 * node.member.driver.core.local.incarnation
    driver.feed(DatagramReceived(address, name, life, Gossip(Sender(address, Role.WORKER))))
    driver.feed(DialAnswered(name, life, address, name, life))
    assert driver.core.state_of(name) is MemberState.ALIVE


@on_loop
async def test_workers_are_held_if_more_than_half_of_them_fall_silent(
    tmp_path: Path,
) -> None:
    dead = ["w1", "w2"]
    async with managing(tmp_path) as (node, leaders):
        join(node, "w3")
        for name in dead:
            died = MemberDied(
                member(name, MemberState.DEAD), ClaimedState.SILENT, is_from_gossip=False
            )
            leaders.member_changed(died)
        two_of_three = leaders.update_held()
        join(node, "w4")
        two_of_four = leaders.update_held()
    assert two_of_three == frozenset(dead)
    assert two_of_four == frozenset()


# The output of jobs.


def printed(job: str, text: str = "hello\n", *, number: int = 0) -> ForwardOutput:
    return ForwardOutput(
        worker="w",
        group=1,
        attempt_id=AttemptId(job, "Load", 3, 2),
        slot=0,
        stream="stdout",
        text=text,
        number=number,
    )


@on_loop
async def test_the_output_of_a_job_is_dropped_with_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgetful = partial(LedgerService, make_machine=ForgetfulMachine)
    monkeypatch.setattr("hyperscale.nodes.manager.LedgerService", forgetful)
    async with managing(tmp_path) as (_, leaders):

        async def submit(key: str) -> tuple[str, int]:
            done = await leaders.ledger.submit(key, encode(submission(key)))
            return decode_reply(done.reply).job, done.group

        async def execute(group: int, event: Event) -> None:
            assert decode_reply((await leaders.ledger.execute(group, encode(event))).reply).ok

        job, group = await submit("k1")
        leaders.output.add(printed(job))
        leaders.output.add(printed("default.1-nobody"))
        leaders.forget_ended()
        assert leaders.output.get(job) is not None
        assert leaders.output.get("default.1-nobody") is None
        machine = leaders.ledger.machine(group)
        assert isinstance(machine, JobMachine)
        await execute(group, CancelRequested(job=job, reason="no more", by="test"))
        await until_async(lambda: not list(machine.jobs()))
        leaders.forget_ended()
        assert leaders.output.get(job) is not None  # a late watcher still gets the output
        later, group = await submit("k2")
        await execute(group, CancelRequested(job=later, reason="no more", by="test"))
        await until_async(lambda: machine.job(job) is None)
        leaders.forget_ended()
        assert leaders.output.get(job) is None


@on_loop
async def test_a_job_with_output_larger_than_a_message_is_watched_to_its_end(
    tmp_path: Path,
) -> None:
    text = "x" * 600_000
    async with managing(tmp_path) as (node, leaders):
        done = await leaders.ledger.submit("k1", encode(submission("k1")))
        job = decode_reply(done.reply).job
        for number in range(1, 41):
            leaders.output.add(printed(job, text, number=number))
        await leaders.ledger.execute(done.group, encode(CancelRequested(job=job, reason="enough")))
        machine = leaders.ledger.machine(done.group)
        assert isinstance(machine, JobMachine)
        await until_async(lambda: not list(machine.jobs()))
        async with HyperscaleClient([node.address]) as client:
            news = [each async for each in client.follow_job(job)]
    lines = [line for each in news for line in each.output]
    assert {line.text for line in lines} == {text}
    assert [(line.part, line.attempt, line.number) for line in lines] == [
        (3, 2, number) for number in range(1, 41)
    ]
    assert news[-1].job.status is JobStatus.CANCELLED
    assert all(each.job.status is not JobStatus.CANCELLED for each in news[:-1])


@on_loop
async def test_the_heir_of_a_destroyed_group_acknowledges_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with managing(tmp_path) as (_, leaders):
        await until_async(lambda: bool(leaders.led()))
        sent: list[object] = []
        monkeypatch.setattr(TierPeers, "send", lambda _peers, _node, message: sent.append(message))
        groups = leaders.ledger.topology.groups
        groups[99] = GroupRecord(
            number=99,
            voters=[],
            settled=[],
            founders=[],
            key_slots=[],
            leader=0,
            state=GroupState.DESTROYED,
            heir=leaders.led()[0],
        )
        run = AttemptId("default.99-old", "Load", 0, 1)
        status = PartStatus.COMPLETED
        done = DeliverResult(worker="w1", group=99, attempt_id=run, status=status, report=None)
        leaders.announced(cast("InboundCall", None), done)
        del groups[99]
    assert [each.attempt_id for each in sent if isinstance(each, AcknowledgeResult)] == [run]


def test_the_output_of_all_jobs_is_bounded_and_the_oldest_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_leaders, "CHARACTERS_MAX", 25)
    monkeypatch.setattr(job_leaders, "LINES_MAX", 3)
    kept = Outputs()

    def texts(job: str) -> list[str]:
        found = kept.get(job)
        return [] if found is None else [line.text for line in found.lines]

    for job in ("a", "b", "a", "b"):
        kept.add(printed(job, f"{job}-----"))
    kept.add(printed("c", "c-----"))
    assert (texts("a"), texts("b"), texts("c")) == (["a-----"], ["b-----"] * 2, ["c-----"])
    kept.keep(lambda job: job == "b")
    for number in range(4):
        kept.add(printed("b", f"{number}"))
    assert texts("b") == ["1", "2", "3"]
    found = kept.get("b")
    assert found is not None
    assert found.total == 6
    assert (texts("a"), texts("c")) == ([], [])


# Room for another job.


@on_loop
async def test_a_new_allocator_is_asked_for_room_before_a_job_is_accepted(
    tmp_path: Path,
) -> None:
    async with managing(tmp_path) as (_, leaders):
        now_s, asked = asyncio.get_running_loop().time, GetQueueRoom()
        leaders.allocator.feed(LostAllocator())
        with pytest.raises(RemoteError, match="does not grant cores"):
            leaders.allocator.room_here(asked)
        assert await leaders.allocator.room(asked, until_s=now_s()) == GetQueueRoomReply(room=1)
        asking = asyncio.ensure_future(leaders.allocator.room(asked, until_s=now_s() + 60))
        done, _ = await asyncio.wait([asking], timeout=0.01)
        assert not done
        leaders.allocator.feed(BecameAllocator(()))
        assert await asking == GetQueueRoomReply(room=leaders.allocator.allocator.room)
