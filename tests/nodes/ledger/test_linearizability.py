"""What clients of real managers saw, while those were killed, fits one copy of each job."""

import asyncio
import random
import time
from typing import Any

import msgspec

from hyperscale.errors import HyperscaleError
from hyperscale.jobs.committed.events import (
    CancelRequested,
    Code,
    Event,
    JobFinished,
    JobStatus,
    JobSubmitted,
    decode_reply,
    encode,
)
from hyperscale.jobs.committed.keys import parse_job_id
from hyperscale.ledger.server.operator_messages import ListEvents, ListEventsReply
from hyperscale.wire.errors import CallError
from tests.lab.job_builders import plan, submission, workflow
from tests.lab.ledger_clients import Forwarder, UnknownError
from tests.lab.manager_tier import ManagerTier
from tests.lab.nodes import NodeCluster
from tests.ledger.linearizability import History, check

SECONDS = 12.0
CLIENTS = 8

_RESULTS = {
    Code.OK: "ok",
    Code.DUPLICATE: "duplicate",
    Code.CONFLICT: "conflict",
    Code.TERMINAL: "terminal",
    Code.UNKNOWN_JOB: "unknown_job",
}
_OTHER = plan(workflow("Other"))


class Recorder:
    """Clients on a few keys, and all they were told."""

    def __init__(self, forwarder: Forwarder, rng: random.Random) -> None:
        self.history = History()
        self._forwarder = forwarder
        self._rng = rng
        self._jobs: dict[str, str] = {}

    async def client(self, name: str, until_s: float) -> None:
        number = 0
        while time.monotonic() < until_s:
            number += 1
            # A new key now and then: most of the life of a key is its beginning.
            key = f"key-{int((until_s - time.monotonic()) * 2)}-{self._rng.randrange(3)}"
            choice = self._rng.choice(("submit", "submit", "cancel", "finish", "read", "read"))
            await self._do(name, key, choice)
            await asyncio.sleep(self._rng.uniform(0, 0.02))

    async def _do(self, client: str, key: str, choice: str) -> None:
        if choice != "submit" and key not in self._jobs:
            return
        if choice == "read":
            await self._read(client, key)
            return
        event: Event
        argument = None
        if choice == "submit":
            event = submission(key, self._rng.choice((None, _OTHER)))
            argument = event.digest
        elif choice == "cancel":
            event = CancelRequested(job=self._jobs[key], reason="enough", by=client)
            # Whoever leads the job ends it once it is cancelled, whenever that is.
            ended = JobStatus.CANCELLED.value
            self.history.invoke("leader", key, "finish", ended, time.monotonic())
        else:
            status = self._rng.choice((JobStatus.COMPLETED, JobStatus.FAILED))
            event = JobFinished(job=self._jobs[key], status=status)
            argument = status.value
        operation = self.history.invoke(client, key, choice, argument, time.monotonic())
        try:
            reply = await self._commit(event)
        except UnknownError:
            return  # nobody can say: it may come yet
        told = _RESULTS[reply.code]
        if choice == "submit":
            self._jobs[key] = reply.job
            told = "new" if told == "ok" else told
        self.history.returned(operation, told, time.monotonic())

    async def _commit(self, event: Event) -> Any:
        is_new = isinstance(event, JobSubmitted)
        group = -1 if is_new else parse_job_id(event.job).group
        key = event.key if is_new else ""
        done = await self._forwarder.command(group, key, encode(event), within_s=30.0)
        return decode_reply(done.reply)

    async def _read(self, client: str, key: str) -> None:
        """From any node: it answers once it knows all that was committed before."""
        operation = self.history.invoke(client, key, "read", None, time.monotonic())
        try:
            asked = ListEvents(job=self._jobs[key])
            told = await self._forwarder.ask(self._rng.randrange(3), asked, ListEventsReply)
        except (CallError, HyperscaleError):
            self.history.dropped(operation)  # a read that was not answered changed nothing
            return
        self.history.returned(operation, _status(told), time.monotonic())


def _status(told: ListEventsReply) -> str:
    kinds = {row[4]: row[5] for row in told.rows}
    if "finished" in kinds:
        return str(msgspec.msgpack.decode(kinds["finished"])["status"])
    return "cancelling" if "cancel" in kinds else "submitted" if kinds else "none"


def test_client_histories_are_linearizable_while_managers_are_killed(cluster: NodeCluster) -> None:
    tier = ManagerTier(cluster)
    rng = random.Random(22)

    async def torment(until_s: float) -> None:
        while time.monotonic() < until_s - 3:
            await asyncio.sleep(rng.uniform(0.5, 2.5))
            name = rng.choice(tier.names)
            await asyncio.to_thread(tier.kill, name)
            await asyncio.to_thread(tier.start, name)
            await asyncio.to_thread(tier.wait_ready, name)

    async def play() -> History:
        until_s = time.monotonic() + SECONDS
        async with Forwarder(tier.addresses) as forwarder, asyncio.TaskGroup() as tasks:
            recorder = Recorder(forwarder, rng)
            for number in range(CLIENTS):
                tasks.create_task(recorder.client(f"client-{number}", until_s))
            tasks.create_task(torment(until_s))
        return recorder.history

    history = asyncio.run(play())
    returned = [each for each in history.operations if each.returned_s < float("inf")]
    assert len(returned) > 20  # however busy the machine is
    assert {each.name for each in returned} == {"submit", "cancel", "finish", "read"}
    wrong = check(history.operations)
    assert wrong is None, str(wrong)
