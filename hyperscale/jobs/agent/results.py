"""How an attempt ended.

What user code provides may be of any size; a result that is too large for a message would never
be acknowledged, so it is cut here.
"""

import msgspec

from hyperscale.jobs.agent.attempts import AttemptOnWorker, StopCause
from hyperscale.jobs.agent.events import AttemptPrepareFailed, PlaceEnded
from hyperscale.jobs.committed.context import size_problem
from hyperscale.jobs.messages import AnnouncePrepareFailed, DeliverResult
from hyperscale.plan.status import PartStatus

LEASE_OVER = "lease expired"
RENEWALS_MISSED = (
    "an executor of the part failed: its lease expired although it was renewed: the code of the "
    "test blocked the event loop, or the process was stopped or got no CPU time"
)
ERROR_CHARS_MAX = 4_000

AttemptEnd = DeliverResult | AnnouncePrepareFailed


def result_of(attempt: AttemptOnWorker, worker: str) -> DeliverResult:
    """Return the result of an attempt that has left its places."""
    ends = [attempt.ends[place] for place in sorted(attempt.ends)]
    status, error, is_retryable = _outcome(ends, attempt.stop_cause)
    return bounded(
        DeliverResult(
            worker=worker,
            group=attempt.group,
            attempt_id=attempt.id,
            status=status,
            report=attempt.statistics.whole(),
            elapsed_s=attempt.statistics.elapsed_s,
            error=None if error is None else _cut(error),
            provided=[end.provided for end in ends if end.provided],
            is_retryable=is_retryable,
            was_saturated=attempt.statistics.saturation.was_saturated,
            unheard_s=attempt.statistics.gap_s,
            set_up=b"" if attempt.has_context else attempt.set_up,
            rows_used=[] if (rows := attempt.directives.rows) is None else rows.used,
        )
    )


def prepare_failure_of(
    attempt: AttemptOnWorker, failed: AttemptPrepareFailed, worker: str
) -> AttemptEnd:
    """Return the end of an attempt that could not be prepared.

    If its setup hooks have already sent requests or left a context, it is a failed result with
    these.
    """
    report = attempt.statistics.whole()
    set_up = b"" if attempt.has_context else attempt.set_up
    if report is None and not set_up:
        return AnnouncePrepareFailed(
            worker=worker,
            group=attempt.group,
            attempt_id=attempt.id,
            error=_cut(failed.error),
            hint=_cut(failed.hint),
            is_retryable=failed.is_retryable,
        )
    error = f"{failed.error} (hint: {failed.hint})" if failed.hint else failed.error
    return DeliverResult(
        worker=worker,
        group=attempt.group,
        attempt_id=attempt.id,
        status=PartStatus.FAILED,
        report=report,
        error=_cut(error),
        is_retryable=failed.is_retryable,
        set_up=set_up,
    )


def bounded(result: DeliverResult) -> DeliverResult:
    """Return the result with context only if it completed and its context is not too large.

    A part that provides too much has failed, and a retry would provide as much.
    """
    if result.status is not PartStatus.COMPLETED:
        return msgspec.structs.replace(result, provided=[])
    problem = size_problem(result.attempt_id.workflow, result.provided, 0)
    if problem is None:
        return result
    return msgspec.structs.replace(
        result, status=PartStatus.FAILED, error=problem, provided=[], is_retryable=False
    )


def _cut(text: str) -> str:
    """Limit an error to a length that fits into a message: it may quote data of user code."""
    return text if len(text) <= ERROR_CHARS_MAX else f"{text[: ERROR_CHARS_MAX - 2]} …"


def _outcome(
    ends: list[PlaceEnded], stop_cause: StopCause | None
) -> tuple[PartStatus, str | None, bool]:
    """Return status, error, and whether a retry on another worker may succeed."""
    if ends and all(end.status is PartStatus.COMPLETED for end in ends):
        return PartStatus.COMPLETED, None, False
    if stop_cause is not None:
        return PartStatus.STOPPED, stop_cause.reason, stop_cause.is_retryable
    failed = next((end for end in ends if end.status is PartStatus.FAILED), None)
    if failed is not None and not failed.is_dead:
        return PartStatus.FAILED, failed.error, False
    dead = next((end for end in ends if end.is_dead), None)
    if dead is not None:
        return PartStatus.FAILED, dead.error, True
    stopped = next((end for end in ends if end.status is PartStatus.STOPPED), None)
    # An executor stops without a command only when its lease is over.
    return PartStatus.STOPPED, LEASE_OVER if stopped is None else stopped.error, True
