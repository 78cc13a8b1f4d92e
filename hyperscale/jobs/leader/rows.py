"""Raises the limits below which parts use rows that feeds deal once, ahead of use.

A limit is committed before a worker hears of it. It is raised when less than half of what a part
uses in `AHEAD_S` is left, by as much as that, for all parts of a job in one event: some entries per
second and job, however many rows its users take.
"""

import math

from hyperscale.jobs.committed.events import RowGrant, RowsGranted
from hyperscale.jobs.committed.state import Job, Part
from hyperscale.jobs.leader.attempts import Attempt, AttemptPhase
from hyperscale.jobs.leader.state import JobProgress, LeaderState
from hyperscale.jobs.messages import AnnounceRows, GrantRows
from hyperscale.plan import FeedPer, Take, WorkflowPlan
from hyperscale.plan.rows import RowBounds, feeds_once, rows_of_slot

AHEAD_S = 5.0
GRANT_EVERY_S = 0.2
_FIRST_LEAST = 64
_FIRST_SHARE = 16
"""At first, a slot gets this part of its rows: as much as is lost if its worker dies at once."""
_PHASES = (AttemptPhase.READY, AttemptPhase.RUNNING)


def first_rows(plan: WorkflowPlan, slots: int) -> int:
    """Return how many rows each slot may use at first, when nothing is known of its pace."""
    most = rows_of_slot(plan, slots)
    if most is None:
        return 0
    users = 2 * -(-plan.vus // slots)
    arrivals = 0.0
    if plan.is_open:
        arrivals = AHEAD_S * max(stage.target for stage in plan.stages) / slots
    return min(most, max(_FIRST_LEAST + users, most // _FIRST_SHARE, math.ceil(arrivals)))


def bounds_of(plan: WorkflowPlan, part: Part) -> RowBounds | None:
    """Return which rows the open attempt of a part may use; None: no feed deals its rows once."""
    if part.rows is None:
        return None
    limit = part.rows.limit if feeds_once(plan, FeedPer.ITERATION) else None
    return RowBounds(first=part.rows.first, limit=limit, users_before=part.rows.users_before)


class RowGrants:
    def __init__(self, state: LeaderState) -> None:
        self._state = state

    def announced(self, attempt: Attempt, message: AnnounceRows) -> None:
        """Take how many rows an attempt has used."""
        attempt.rows.use(message.used, now_s=self._state.now_s)
        attempt.rows.known = message.limit

    def advance(self, job: Job, progress: JobProgress) -> None:
        """Raise the limits of the parts of a job, and tell workers the limits that they lack."""
        if not any(feed.take is Take.ONCE for plan in job.plan.workflows for feed in plan.feeds):
            return
        grants: list[RowGrant] = []
        is_low = False
        for attempt in self._state.attempts.of_job(job.id):
            workflow, plan = job.workflows[attempt.id.workflow], job.plan_of(attempt.id.workflow)
            part, most = workflow.parts[attempt.id.part], rows_of_slot(plan, workflow.slots)
            if part.rows is None or most is None or attempt.phase not in _PHASES:
                continue
            self._tell(attempt, part.rows.limit)
            used = max(attempt.rows.used or part.rows.used)
            ahead = max(first_rows(plan, workflow.slots), math.ceil(attempt.rows.pace * AHEAD_S))
            left = part.rows.limit - used
            if part.rows.limit < most and left < 0.75 * ahead:
                is_low = is_low or left < ahead / 2
                grants.append(
                    RowGrant(
                        workflow=attempt.id.workflow,
                        part=attempt.id.part,
                        attempt=attempt.id.attempt,
                        used=attempt.rows.used,
                        limit=min(most, used + ahead),
                    )
                )
        if is_low and self._state.now_s >= progress.grant_rows_at_s:
            progress.grant_rows_at_s = self._state.now_s + GRANT_EVERY_S
            self._state.propose(RowsGranted(job=job.id, grants=grants))

    def _tell(self, attempt: Attempt, limit: int) -> None:
        """Send a limit that the worker does not know; repeat it until the worker confirms."""
        rows, now_s = attempt.rows, self._state.now_s
        if rows.known is not None and rows.known >= limit:
            return
        repeat_s = self._state.timeouts.repeat_s
        if limit <= rows.sent and rows.sent_s is not None and now_s < rows.sent_s + repeat_s:
            return
        rows.sent, rows.sent_s = limit, now_s
        command = GrantRows(
            attempt_id=attempt.id, group=self._state.group, term=self._state.term, limit=limit
        )
        self._state.send(attempt.worker, command)
