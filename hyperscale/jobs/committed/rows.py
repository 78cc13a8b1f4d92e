"""Rows of feeds that are dealt once: up to where each part may use them, as it is committed.

The slots of a part use rows below the part's limit, which the leader raises ahead of use. When an
attempt ends early, any row between what it had reported and the limit may have been used: the next
attempt begins at the limit, and those rows are named in the gap of the attempt.
"""

from hyperscale.jobs.committed.events import Code, RowsGranted
from hyperscale.jobs.committed.job_table import Refuse
from hyperscale.jobs.committed.state import Job, Part, PartRows
from hyperscale.plan import FeedPer, Take, WorkflowPlan
from hyperscale.plan.rows import LostRows, feeds_once, lost_rows

ROWS_MAX = 2**48
"""No limit is higher: a feed has far fewer rows."""


def part_rows(plan: WorkflowPlan, rows: int, cores: int) -> PartRows | None:
    """Return the rows of a part that is dispatched first; None if no feed deals its rows once."""
    if all(feed.take is not Take.ONCE for feed in plan.feeds):
        return None
    return PartRows(limit=rows, used=[0] * cores)


def begin_rows(part: Part, rows: int) -> None:
    """Let the next attempt of a part begin at the limit of the last, with so many rows at first."""
    if part.rows is not None:
        part.rows.limit = part.rows.first + max(0, rows)


def leave_rows(job: Job, name: str, part: Part, used: list[int]) -> list[LostRows]:
    """End the use of rows by the open attempt, of which `used` is known; return the rows that it
    may have used beyond that. No later attempt uses them."""
    rows, workflow = part.rows, job.workflows[name]
    if rows is None:
        return []
    plan, slots = job.plan_of(name), workflow.slots
    of_iterations, of_users = feeds_once(plan, FeedPer.ITERATION), feeds_once(plan, FeedPer.VU)
    users = rows.users_before + -(-job.schedule_of(name).vus // slots)
    _note_used(rows, used)
    lost: list[LostRows] = []
    for slot, known in enumerate(rows.used, part.first_slot):
        lost += lost_rows(of_iterations, slots=slots, slot=slot, used=known, limit=rows.limit)
        lost += lost_rows(of_users, slots=slots, slot=slot, used=rows.users_before, limit=users)
    rows.first, rows.users_before = rows.limit, users
    rows.used = [rows.limit] * part.cores
    return lost


def rows_granted(job: Job, event: RowsGranted, now_ms: int) -> bool:  # noqa: ARG001 - as others
    """Raise the limits of open attempts; refuse if none of them is open."""
    is_known, is_new = False, False
    for grant in event.grants:
        workflow = job.workflows.get(grant.workflow)
        if workflow is None or not 0 <= grant.part < len(workflow.parts):
            continue
        part = workflow.parts[grant.part]
        if part.rows is None or not part.is_open or part.attempt != grant.attempt:
            continue
        is_known = True
        _note_used(part.rows, grant.used)
        if part.rows.limit < grant.limit <= ROWS_MAX:
            part.rows.limit = grant.limit
            is_new = True
    if not is_known:
        raise Refuse(Code.STALE_ATTEMPT, "no attempt that gets rows is open")
    return is_new


def _note_used(rows: PartRows, used: list[int]) -> None:
    """Note how many rows each slot has used; what is known never shrinks, nor exceeds the limit."""
    if len(used) == len(rows.used):
        rows.used = [
            max(known, min(each, rows.limit)) for known, each in zip(rows.used, used, strict=True)
        ]
