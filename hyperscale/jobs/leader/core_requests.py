"""Requests of a job leader for cores, and the replies of the allocator."""

from dataclasses import dataclass

from hyperscale.jobs.messages import AttemptId, RequestCoresReply, RequestState

GRANT_S = 10.0
"""A grant is good for this long; the allocator keeps it reserved a little longer."""
BACKOFF_S_MAX = 8.0


@dataclass(slots=True)
class CoreRequest:
    """One request, from the first time it is sent until its grant is used or released."""

    job: str
    workflow: str
    sent_s: float | None = None
    not_before_s: float | None = None  # the allocator or a backoff asks to wait until then
    reply: RequestCoresReply | None = None
    replied_s: float = 0.0
    impossible_since_s: float | None = None  # since when no worker could ever serve it

    def grant(self, *, now_s: float) -> RequestCoresReply | None:
        """Return the grant unless it has expired: then its cores may be granted to others."""
        if self.reply is None or self.reply.state is not RequestState.GRANTED:
            return None
        if now_s >= self.replied_s + GRANT_S:
            self.reply = None
            return None
        return self.reply

    def may_send(self, *, now_s: float, repeat_s: float) -> bool:
        if self.not_before_s is not None and now_s < self.not_before_s:
            return False
        return self.sent_s is None or now_s >= self.sent_s + repeat_s

    def take(self, reply: RequestCoresReply, *, now_s: float) -> None:
        """Take the allocator's reply; replies after a grant are ignored."""
        if self.reply is not None and self.reply.state is RequestState.GRANTED:
            return
        self.reply, self.replied_s = reply, now_s
        if reply.state is not RequestState.IMPOSSIBLE:
            self.impossible_since_s = None
        elif self.impossible_since_s is None:
            self.impossible_since_s = now_s
        if reply.retry_after_s and self.sent_s is not None:
            self.not_before_s = max(self.not_before_s or 0.0, self.sent_s + reply.retry_after_s)


class CoreRequests(dict[str, CoreRequest]):
    """Requests of a group's jobs, by id."""

    def back_off(self, attempt: AttemptId, refusals: int, *, now_s: float) -> None:
        """Delay the request for the next attempt of a part that workers refused in a row."""
        wait_s = min(BACKOFF_S_MAX, 0.25 * 2 ** min(refusals - 1, 10))
        request = CoreRequest(attempt.job, attempt.workflow, not_before_s=now_s + wait_s)
        self[request_for_attempt(attempt)] = request

    def use(self, attempt: AttemptId) -> bool:
        """Drop the request of an attempt that was dispatched; return True if it shares cores."""
        own = self.pop(request_for_attempt(attempt), None)
        request = own or self.get(request_for_workflow(attempt.job, attempt.workflow))
        return request is not None and request.reply is not None and request.reply.shared

    def of_job(self, job: str, workflow: str | None = None) -> list[str]:
        """Return the ids of the requests of a job, or of one of its workflows."""
        return [
            name
            for name, request in self.items()
            if request.job == job and workflow in (None, request.workflow)
        ]

    def position(self, job: str) -> tuple[int, str]:
        """Return the best position of a job in the allocator's queue (0: none) and why it waits."""
        places = [
            (max(1, request.reply.position), request.reply.reason)
            for request in self.values()
            # A request without a reason was just sent, or is about to be granted.
            if request.job == job and request.reply is not None and request.reply.reason
        ]
        return min(places, default=(0, ""))


def request_for_workflow(job: str, workflow: str) -> str:
    """Return the id of the request for the first attempts of all parts."""
    return f"{job}/{workflow}"


def request_for_attempt(attempt: AttemptId) -> str:
    """Return the id of the request for one later attempt of one part."""
    return f"{request_for_workflow(attempt.job, attempt.workflow)}/{attempt.part}#{attempt.attempt}"
