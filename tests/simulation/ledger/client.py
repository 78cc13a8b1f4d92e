"""Clients of a simulated ledger: one operation after another, through any node, with keys.

Two kinds of jobs. Those with keys `k…` are only submitted, cancelled, finished and read, and what
clients were told about them is a history that must be linearizable. Those with keys `w…` are also
dispatched, revoked and finished part by part, with attempts that are often the wrong ones: what
fences are for.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hyperscale.jobs.committed.events import (
    AttemptRevoked,
    CancelRequested,
    Code,
    Event,
    JobFinished,
    JobStatus,
    JobSubmitted,
    PartDispatch,
    PartEnded,
    PartRedispatched,
    Reply,
    WorkflowDispatched,
    encode,
)
from hyperscale.jobs.committed.keys import parse_job_id
from hyperscale.plan.status import PartStatus
from tests.lab.job_builders import plan, submission, workflow
from tests.ledger.linearizability import History, Operation
from tests.simulation import network
from tests.simulation.kernel import Host
from tests.simulation.ledger.newer_events import newer_event, newer_note
from tests.simulation.ledger.routing import Command

ANSWER_S = 4.0
_PAYLOADS = (plan(workflow("Load")), plan(workflow("Other")))
_ENDS = (JobStatus.COMPLETED, JobStatus.FAILED)


def _submission(key: str, payload: int) -> JobSubmitted:
    return submission(key, _PAYLOADS[payload])


def encoded_submission(key: str) -> bytes:
    return encode(_submission(key, 0))


_DIGESTS = [_submission("", payload).digest for payload in range(len(_PAYLOADS))]


@dataclass
class Workload:
    """The shared state of all clients: their operations, and the jobs they know."""

    nodes: list[str]
    keys: int = 5
    every_s: float = 0.1
    sends_newer: bool = False
    """Some events are of a newer version."""
    work: float = 0.3
    """Share of operations on jobs whose parts are dispatched."""
    history: History = field(default_factory=History)
    jobs: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Group and index of the entry that created the job of a key."""
    attempts: dict[tuple[str, int], int] = field(default_factory=dict)
    """The last known attempt of each part of a job."""
    answered: int = 0
    unknown: int = 0
    refused: int = 0
    stale: list[str] = field(default_factory=list)
    """Session reads that did not see their write."""


class ClientProgram:
    """One client. It never crashes, so that it remembers its operations."""

    def __init__(self, host: Host, workload: Workload) -> None:
        self.host = host
        self.workload = workload
        self.is_active = True
        self.probes: list[tuple[str, str]] = []
        """(key, node) to be submitted one after another, each until it is answered."""
        first_s = workload.every_s * host.world.rng.random()
        self._next_s: float | None = host.world.now_s + first_s
        self._calls: dict[int, Callable[[Any], None]] = {}
        self._count = 0
        self._is_busy = False

    # -- kernel side ----------------------------------------------------------------------

    def start(self, now_s: float) -> None: ...

    def datagram(self, source: str, payload: Any, now_s: float) -> None: ...

    def disk(self, token: Any, now_s: float) -> None: ...

    def stream(self, event: Any, now_s: float) -> None:
        self._is_busy = False
        self._next_s = now_s + self.workload.every_s * self.host.world.rng.random()
        match event:
            case network.Answered(token, _, message):
                self._calls.pop(token)(message)
            case network.Failed(token, _, refused):
                answer = ("refused", "connection refused", "") if refused else ("unknown",)
                self._calls.pop(token)(answer)

    def wake(self, now_s: float) -> None:
        if self._is_busy:
            self._next_s = None
        elif self.probes:
            self._probe()
        elif self.is_active:
            self._act(now_s)
        else:
            self._next_s = None

    def wake_at_s(self) -> float | None:
        return None if self._is_busy else self._next_s

    def probe(self, probes: list[tuple[str, str]]) -> None:
        self.is_active = False
        self.probes = probes
        soon_s = self.host.world.now_s + 0.05
        self._next_s = soon_s if self._next_s is None else min(self._next_s, soon_s)
        self.host.settle()

    # -- operations -----------------------------------------------------------------------

    def _act(self, now_s: float) -> None:
        rng, workload = self.host.world.rng, self.workload
        node = rng.choice(workload.nodes)
        if workload.sends_newer and workload.jobs and rng.random() < 0.3:
            self._send_newer(node)
            return
        if rng.random() < workload.work:
            self._work(node, f"w{rng.randrange(2)}")
            return
        key = f"k{rng.randrange(workload.keys)}"
        dice = rng.random()
        if key not in workload.jobs or dice < 0.25:
            self._submit(node, key, int(rng.random() < 0.15))
        elif dice < 0.35 and key in workload.tokens:
            self._session_read(node, key)
        elif dice < 0.60:
            self._read(node, key)
        elif dice < 0.80:
            cancel = CancelRequested(job=workload.jobs[key], reason="tired")
            self._recorded(node, key, "cancel", None, cancel)
        else:
            status = rng.choice(_ENDS)
            finish = JobFinished(job=workload.jobs[key], status=status)
            self._recorded(node, key, "finish", status.value, finish)
        del now_s

    def _send_newer(self, node: str) -> None:
        """Send an event that only the newer nodes of the tier know, about a job with parts: its
        cancel is in no history."""
        rng = self.host.world.rng
        job = self.workload.jobs.get("w0") or rng.choice(sorted(self.workload.jobs.values()))
        is_worked = job == self.workload.jobs.get("w0")
        body = newer_event(job, rng) if is_worked else newer_note(job)
        command = Command(parse_job_id(job).group, "", body)
        self._call(node, ("routed", command), self._count_answer)

    def _submit(self, node: str, key: str, payload: int) -> None:
        event = _submission(key, payload)
        operation = self._invoked(key, "submit", _DIGESTS[payload])

        def told(answer: Any) -> None:
            reply = self._settled(operation, answer)
            if reply is not None and reply.job:
                self.workload.jobs.setdefault(key, reply.job)
                if reply.ok and not reply.was_duplicate:
                    self.workload.tokens[key] = (answer[1], answer[2])

        self._call(node, ("routed", Command(-1, key, encode(event))), told)

    def _recorded(self, node: str, key: str, name: str, argument: Any, event: Event) -> None:
        operation = self._invoked(key, name, argument)
        group = parse_job_id(self.workload.jobs[key]).group
        command = Command(group, "", encode(event))

        def told(answer: Any) -> None:
            self._settled(operation, answer)

        self._call(node, ("routed", command), told)

    def _read(self, node: str, key: str) -> None:
        job = self.workload.jobs[key]
        operation = self._invoked(key, "read", None)

        def told(answer: Any) -> None:
            if answer[0] == "status":
                self.workload.answered += 1
                self.workload.history.returned(operation, answer[1], self.host.world.now_s)
            else:  # refused or unknown: nothing was learnt
                self.workload.history.dropped(operation)

        self._call(node, ("read", parse_job_id(job).group, job), told)

    def _session_read(self, node: str, key: str) -> None:
        job, (group, index) = self.workload.jobs[key], self.workload.tokens[key]

        def told(answer: Any) -> None:
            if answer == ("status", "none"):
                self.workload.stale.append(f"{node} does not know {job} at entry {index}")

        self._call(node, ("session", group, index, job), told)

    def _work(self, node: str, key: str) -> None:
        """Send an event about a part, which may be valid or not."""
        rng, workload = self.host.world.rng, self.workload
        job = workload.jobs.get(key)
        if job is None:
            self._submit(node, key, 0)
            return
        part = rng.randrange(2)
        last = workload.attempts.get((job, part), -1)
        dice = rng.random()
        event: Event
        if last < 0:
            workers = [f"worker-{rng.randrange(3)}" for _ in range(2)]
            parts = [PartDispatch(slot, 1, worker) for slot, worker in enumerate(workers)]
            event = WorkflowDispatched(job=job, workflow="Load", parts=parts)
            last = 1
        elif dice < 0.4:
            last += 1
            worker = f"worker-{rng.randrange(3)}"
            event = PartRedispatched(
                job=job, workflow="Load", part=part, attempt=last, worker=worker
            )
        elif dice < 0.8:
            event = AttemptRevoked(
                job=job, workflow="Load", part=part, attempt=last, reason="silent"
            )
        else:
            attempt = rng.randint(1, last + 1)
            event = PartEnded(
                job=job,
                workflow="Load",
                part=part,
                attempt=attempt,
                status=PartStatus.COMPLETED,
            )

        def told(answer: Any) -> None:
            self._count_answer(answer)
            if answer[0] == "done" and answer[3].ok:
                workload.attempts[job, part] = max(last, workload.attempts.get((job, part), 0))

        self._call(node, ("routed", Command(parse_job_id(job).group, "", encode(event))), told)

    def _probe(self) -> None:
        key, node = self.probes[-1]

        def told(answer: Any) -> None:
            if answer[0] == "done":
                self.probes.pop()
            else:
                self.probes[-1] = (key, self.host.world.rng.choice(self.workload.nodes))

        self._call(node, ("routed", Command(-1, key, encode(_submission(key, 0)))), told)

    # -- calls ----------------------------------------------------------------------------

    def _call(self, node: str, message: Any, told: Callable[[Any], None]) -> None:
        self._count += 1
        self._is_busy = True
        self._calls[self._count] = told
        self.host.ask(node, message, self._count, within_s=ANSWER_S)

    def _invoked(self, key: str, name: str, argument: Any) -> Operation:
        world = self.host.world
        return self.workload.history.invoke(self.host.address, key, name, argument, world.now_s)

    def _count_answer(self, answer: Any) -> None:
        match answer[0]:
            case "done":
                self.workload.answered += 1
            case "refused":
                self.workload.refused += 1
            case _:
                self.workload.unknown += 1

    def _settled(self, operation: Operation, answer: Any) -> Reply | None:
        """Record the answer in the history."""
        self._count_answer(answer)
        history = self.workload.history
        if answer[0] == "refused":
            history.dropped(operation)
            return None
        if answer[0] != "done":
            return None  # it may have happened, or may happen yet
        reply: Reply = answer[3]
        job = self.workload.jobs.get(operation.key)
        if reply.code is Code.UNKNOWN_JOB and job and parse_job_id(job).group != answer[1]:
            history.dropped(operation)  # told by the heir of its group, which ended with it
            return None
        history.returned(operation, _result(operation.name, reply), self.host.world.now_s)
        return reply


def _result(name: str, reply: Reply) -> str:
    if name == "submit" and reply.ok:
        return "duplicate" if reply.was_duplicate else "new"
    return "conflict" if reply.code is Code.CONFLICT else reply.code.value
