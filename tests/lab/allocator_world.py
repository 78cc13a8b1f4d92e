"""An allocator and workers that hold what it grants, on a clock that the test moves."""

from msgspec.structs import replace

from hyperscale.jobs.allocator.core import Allocator
from hyperscale.jobs.allocator.events import (
    AllocatorEvent,
    AnswerRequest,
    BecameAllocator,
    CoresRequested,
)
from hyperscale.jobs.allocator.queue import RESERVE_S, SETTLE_S
from hyperscale.jobs.messages import (
    AnnounceCores,
    AttemptId,
    HeldCores,
    ReleaseCores,
    RequestCores,
    RequestCoresReply,
)
from hyperscale.plan import Priority
from hyperscale.sansio.core import Tick


def pass_cores_on(held: list[HeldCores]) -> list[HeldCores]:
    """Give a core to an attempt that shared those of its job, if the job has left all of them."""
    with_core = {each.attempt_id.job for each in held if not each.shared}
    passed = list(held)
    for index, each in enumerate(held):
        if each.within_job and each.attempt_id.job not in with_core:
            with_core.add(each.attempt_id.job)
            passed[index] = replace(each, shared=False)
    return passed


class AllocatorWorld:
    """Workers w0, w1, ... with these numbers of cores, and the requests of job leaders."""

    def __init__(
        self,
        *totals: int,
        queue_max: int = 1000,
        announced: bool = True,
        zones: str = "",
    ) -> None:
        """`zones` has one letter for each worker: the value of its label `zone`."""
        self.now_s = 100.0
        self.totals = {f"w{i}": total for i, total in enumerate(totals)}
        self.held: dict[str, list[HeldCores]] = {name: [] for name in self.totals}
        self.versions = dict.fromkeys(self.totals, 0)
        self.incarnations = dict.fromkeys(self.totals, 1)
        self.draining: set[str] = set()
        self.labels = {name: {"zone": zone} for name, zone in zip(self.totals, zones, strict=False)}
        self.allocator = Allocator(queue_max=queue_max)
        self.granted: dict[str, RequestCoresReply] = {}
        self.requests: dict[str, RequestCores] = {}
        self.handle(BecameAllocator(tuple(self.totals)))
        if announced:
            for name in self.totals:
                self.announce(name)
            self.now_s += RESERVE_S  # no grant of an earlier allocator can be unknown

    def handle(self, event: AllocatorEvent) -> list[RequestCoresReply]:
        """Hand an event to the allocator, record its grants, and return its answers."""
        answers = []
        for effect in self.allocator.handle(event, now_s=self.now_s):
            if isinstance(effect, AnswerRequest):
                answers.append(effect.reply)
            else:
                assert effect.reply.request_id not in self.granted
                self.granted[effect.reply.request_id] = effect.reply
        return answers

    def tick(self) -> None:
        self.handle(Tick())

    def announce(self, name: str) -> None:
        """Let a worker announce its cores."""
        self.versions[name] += 1
        cores = AnnounceCores(
            worker=name,
            incarnation=self.incarnations[name],
            version=self.versions[name],
            total=self.totals[name],
            held=list(self.held[name]),
            draining=name in self.draining,
            labels=self.labels.get(name, {}),
        )
        self.handle(cores)

    def request(self, name: str, **fields: object) -> RequestCoresReply:
        """Request cores for a workflow `Load`, by default of a job with the request's name."""
        message = RequestCores(
            request_id=name,
            leader="m1",
            **{"job": name, "workflow": "Load", "group": 1, "term": 1, "vus": 1000, **fields},  # type: ignore[arg-type]  # fields of RequestCores
        )
        self.requests[name] = message
        return self.repeat(name)

    def repeat(self, name: str) -> RequestCoresReply:
        """Repeat a request."""
        (reply,) = self.handle(CoresRequested(self.requests[name]))
        return reply

    def release(self, name: str, *, term: int = 1, part: int = -1) -> None:
        """Release a request or its grant."""
        self.handle(ReleaseCores(request_id=name, group=1, term=term, part=part))

    def run(self, seconds: float, *, holds: bool = True, repeats: bool = True) -> None:
        """Let time pass; requests are repeated and workers hold what was granted."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s = min(until_s, self.now_s + 0.5)
            if repeats:
                for name in self.requests:
                    if name not in self.granted:
                        self.repeat(name)
            self.tick()
            if holds:
                self.hold()

    def settle(self, *, holds: bool = True) -> None:
        """Let enough time pass for new requests to be served."""
        self.now_s += SETTLE_S
        self.tick()
        if holds:
            self.hold()

    def hold(self) -> None:
        """Let workers hold and announce what was granted on them."""
        for name, reply in self.granted.items():
            request = self.requests[name]
            for index, share in enumerate(reply.shares):
                part = max(request.part, index)
                attempt = AttemptId(request.job, request.workflow, part, 1)
                if all(held.attempt_id != attempt for held in self.held[share.worker]):
                    exclusive = request.is_test and request.priority is Priority.EXCLUSIVE
                    self.held[share.worker].append(
                        HeldCores(
                            attempt_id=attempt,
                            cores=share.cores,
                            shared=reply.shared,
                            exclusive=exclusive,
                            within_job=reply.within_job,
                        )
                    )
        self._announce_again()

    def end(self, name: str) -> None:
        """End the workflow of a granted request; its workers announce free cores."""
        ended = (self.requests[name].job, self.requests[name].workflow)
        for worker, held in self.held.items():
            left = [
                each for each in held if (each.attempt_id.job, each.attempt_id.workflow) != ended
            ]
            self.held[worker] = pass_cores_on(left)
        del self.granted[name]
        del self.requests[name]
        self._announce_again()

    def cores(self, name: str) -> int:
        """Return the cores granted to a request."""
        return sum(share.cores for share in self.granted[name].shares)

    def free(self) -> int:
        """Return the free cores of all workers."""
        return sum(self.allocator.pool.free().values())

    def _announce_again(self) -> None:
        for name in self.totals:
            if self.versions[name]:
                self.announce(name)
