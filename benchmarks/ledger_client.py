"""Commits in flight at one leader, from a process of its own; `benchmarks.ledger` runs it.

It is a peer of the tier without a vote, and sends what managers forward to each other: events
of jobs, each a checkpoint with the statistics of a running part.
"""

import asyncio
import json
import secrets
import sys
import time
from collections.abc import Awaitable, Callable

import uvloop

from hyperscale.config.addresses import split_address
from hyperscale.jobs.committed.events import (
    Checkpoint,
    Checkpointed,
    JobOptions,
    JobSubmitted,
    decode_reply,
    encode,
    payload_digest,
)
from hyperscale.jobs.committed.keys import parse_job_id
from hyperscale.ledger.messages import ForwardCommand, ForwardCommandReply
from hyperscale.plan import Plan, StepKind, StepPlan, WorkflowPlan
from hyperscale.wire.connection import Connection
from hyperscale.wire.messages import Introduction
from hyperscale.wire.roles import Role
from hyperscale.wire.security import VERSION, Security, incarnation_now
from hyperscale.wire.server import PeerServer

REPORT_BYTES = 200
CALL_S = 20.0
_PLAN = Plan(
    file="bench.py",
    workflows=(
        WorkflowPlan(
            name="Load",
            vus=1,
            duration_s=60.0,
            timeout_s=30.0,
            steps=(StepPlan(name="hit", kind=StepKind.TEST),),
        ),
    ),
)


class Client:
    """One connection to the leader of a group."""

    def __init__(self, connection: Connection, group: int) -> None:
        self._connection = connection
        self._group = group
        self._loop = asyncio.get_running_loop()

    async def _commit(self, group: int, key: str, body: bytes) -> ForwardCommandReply:
        deadline_s = self._loop.time() + CALL_S
        command = ForwardCommand(group, key, body, hops=1)
        done = await self._connection.call(command, ForwardCommandReply, deadline_s=deadline_s)
        if done.refused:
            raise SystemExit(f"the leader refused: {done}")
        return done

    async def make_jobs(self, count: int) -> list[bytes]:
        """Submit jobs to the group; return an event to commit for each: a checkpoint of a part.

        There are no workers, so nothing runs, and the state machine of every replica looks
        the job up and answers that it has no such part. The way of an entry is the same.
        """
        options = JobOptions(dispatch_timeout_s=3600.0)
        digest = payload_digest(_PLAN, "", options)
        bodies: list[bytes] = []
        salt = secrets.token_hex(4)
        for number in range(100 * count):
            key = f"bench-{salt}-{number}"
            submitted = JobSubmitted(key=key, digest=digest, plan=_PLAN, options=options)
            deadline_s = self._loop.time() + CALL_S
            command = ForwardCommand(-1, key, encode(submitted), hops=1)
            done = await self._connection.call(command, ForwardCommandReply, deadline_s=deadline_s)
            if done.refused or not (job := decode_reply(done.reply).job):
                continue
            if parse_job_id(job).group != self._group:
                continue
            at = Checkpoint(
                workflow="Load",
                part=0,
                attempt=1,
                elapsed_s=1.0,
                iterations=1,
                report=secrets.token_bytes(REPORT_BYTES),
            )
            bodies.append(encode(Checkpointed(job=job, parts=[at])))
            if len(bodies) == count:
                break
        return bodies

    async def closed(self, bodies: list[bytes], in_flight: int, seconds: float) -> list[float]:
        """Keep this many commits in flight; return the latency of each."""
        until_s = time.perf_counter() + seconds
        latencies: list[float] = []

        async def one(number: int) -> None:
            while (begun_s := time.perf_counter()) < until_s:
                await self._commit(self._group, "", bodies[number % len(bodies)])
                latencies.append(time.perf_counter() - begun_s)
                number += in_flight

        await asyncio.gather(*(one(number) for number in range(in_flight)))
        return latencies

    async def paced(self, bodies: list[bytes], rate: float, seconds: float) -> list[float]:
        """Start this many commits per second, answered or not; return their latencies, measured
        from when each was due."""
        latencies: list[float] = []
        began_s = time.perf_counter()
        tasks: set[asyncio.Task[None]] = set()

        async def one(due_s: float, body: bytes) -> None:
            await self._commit(self._group, "", body)
            latencies.append(time.perf_counter() - due_s)

        for number in range(int(rate * seconds)):
            due_s = began_s + number / rate
            if (wait_s := due_s - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            task = asyncio.create_task(one(due_s, bodies[number % len(bodies)]))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if tasks:
            await asyncio.wait(tasks)
        return latencies


async def run(address: str, group: int, seconds: float) -> None:
    """Run the measurements requested on standard input, one per line."""
    local = Introduction(
        cluster="hyperscale",
        environment="default",
        role=Role.MANAGER,
        node_id=f"bench-{secrets.token_hex(4)}",
        incarnation=incarnation_now(),
        version=VERSION,
    )
    async with PeerServer(local, Security()) as server:
        client = Client(await server.dial(*split_address(address)), group)
        bodies = await client.make_jobs(100)
        measures: dict[str, Callable[[float], Awaitable[list[float]]]] = {
            "closed": lambda count: client.closed(bodies, int(count), seconds),
            "paced": lambda rate: client.paced(bodies, rate, seconds),
        }
        print(json.dumps({"ready": len(bodies)}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            mode, amount = line.split()
            cpu_s, began_s = time.process_time(), time.monotonic()
            latencies = sorted(await measures[mode](float(amount)))
            result = {
                "count": len(latencies),
                "seconds": time.monotonic() - began_s,
                "cpu_s": time.process_time() - cpu_s,
                "p50_s": latencies[len(latencies) // 2],
                "p99_s": latencies[int(len(latencies) * 0.99)],
                "max_s": latencies[-1],
            }
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    uvloop.run(run(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
