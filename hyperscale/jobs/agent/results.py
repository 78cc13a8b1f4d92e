"""How a run ended, as its worker tells it: an outcome of all its cores, small enough to be told.

What user code gave may be of any size. A result is kept and repeated until somebody takes it, so
one that no message can carry would never be over. Pure.
"""

import msgspec

from hyperscale.jobs.agent.attempts import Run
from hyperscale.jobs.agent.events import PrepareFailed
from hyperscale.jobs.committed.context import size_problem
from hyperscale.jobs.messages import AnnouncePrepareFailed, DeliverResult
from hyperscale.plan.status import PartStatus

LEASE_OVER = "lease expired"
ERROR_CHARS_MAX = 4_000


def result_of(run: Run, worker: str) -> DeliverResult:
    """The end of a run that has left its places."""
    status, error, is_retryable = _outcome(run)
    ends = [run.ended[place] for place in sorted(run.ended)]
    return bounded(
        DeliverResult(
            worker=worker,
            group=run.group,
            run=run.id,
            status=status,
            report=run.merge.whole(),
            elapsed_s=run.elapsed_s(),
            error=None if error is None else cut(error),
            provided=[end.provided for end in ends if end.provided],
            is_retryable=is_retryable,
            was_saturated=run.saturation.was_saturated,
            unheard_s=run.unheard_s,
        )
    )


def refusal_of(
    run: Run, failed: PrepareFailed, worker: str
) -> DeliverResult | AnnouncePrepareFailed:
    """The end of a run that could not be prepared. If its hooks have sent something by then,
    that is in the numbers: it failed with what it did, rather than never having been."""
    report = run.merge.whole()
    if report is None:
        return AnnouncePrepareFailed(
            worker=worker,
            group=run.group,
            run=run.id,
            error=cut(failed.error),
            hint=cut(failed.hint),
            is_input=failed.is_input,
            is_retryable=failed.is_retryable,
        )
    error = f"{failed.error} (hint: {failed.hint})" if failed.hint else failed.error
    return DeliverResult(
        worker=worker,
        group=run.group,
        run=run.id,
        status=PartStatus.FAILED,
        report=report,
        error=cut(error),
        is_retryable=failed.is_retryable,
    )


def bounded(result: DeliverResult) -> DeliverResult:
    """The result without context that nobody would take. A part that provides too much has
    failed, and would again; one that did not complete provides nothing."""
    if result.status is not PartStatus.COMPLETED:
        return msgspec.structs.replace(result, provided=[])
    problem = size_problem(result.run.workflow, result.provided, 0)
    if problem is None:
        return result
    return msgspec.structs.replace(
        result, status=PartStatus.FAILED, error=problem, provided=[], is_retryable=False
    )


def cut(text: str) -> str:
    """Errors may quote what user code has at hand; a message must stay one."""
    return text if len(text) <= ERROR_CHARS_MAX else f"{text[: ERROR_CHARS_MAX - 2]} …"


def _outcome(run: Run) -> tuple[PartStatus, str | None, bool]:
    """How a run ended: status, error, and whether another worker might fare better."""
    ends = [run.ended[place] for place in sorted(run.ended)]
    if ends and all(end.status is PartStatus.COMPLETED for end in ends):
        return PartStatus.COMPLETED, None, False
    if run.stop_reason is not None:
        return PartStatus.STOPPED, run.stop_reason, run.is_worth_retrying
    dead = next((end for end in ends if end.is_dead), None)
    failed = next((end for end in ends if end.status is PartStatus.FAILED), None)
    if failed is not None and not failed.is_dead:
        return PartStatus.FAILED, failed.error, False
    if dead is not None:
        return PartStatus.FAILED, dead.error, True
    stopped = next((end for end in ends if end.status is PartStatus.STOPPED), None)
    # Nobody told it to stop but its executor, and that knows one reason only.
    return PartStatus.STOPPED, LEASE_OVER if stopped is None else stopped.error, True
