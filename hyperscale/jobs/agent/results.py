"""Results of attempts: how an attempt ended, and the delivery of results to job leaders.

A result is on disk before it is sent, and it is sent again until it is acknowledged. What user
code provides may be of any size; a result that is too large for a message would never be
acknowledged, so it is cut here.
"""

from dataclasses import dataclass

import msgspec

from hyperscale.jobs.agent.attempts import AttemptOnWorker
from hyperscale.jobs.agent.events import AttemptPrepareFailed
from hyperscale.jobs.committed.context import size_problem
from hyperscale.jobs.messages import AnnouncePrepareFailed, AttemptId, DeliverResult
from hyperscale.plan.status import PartStatus

LEASE_OVER = "lease expired"
ERROR_CHARS_MAX = 4_000

RESEND_FIRST_S = 1.0
RESEND_MOST_S = 10.0
RESEND_TO_ALL_S = 5.0
"""While the job leader is unknown, results go to every manager, but less often."""
RESEND_FOR_S = 600.0
"""After this time a result stays on disk until a job leader lists the attempts."""

AttemptEnd = DeliverResult | AnnouncePrepareFailed


@dataclass(slots=True)
class PendingResult:
    """The end of an attempt that is not acknowledged yet."""

    message: AttemptEnd
    is_stored: bool  # on disk, or not to be stored
    send_at_s: float
    send_until_s: float
    interval_s: float = RESEND_FIRST_S

    def wake_at_s(self) -> float | None:
        """Return when it is sent next; None until it is stored, and after `send_until_s`."""
        is_silent = not self.is_stored or self.send_at_s > self.send_until_s
        return None if is_silent else self.send_at_s

    def sent(self, *, now_s: float, is_leader_known: bool) -> None:
        """Schedule the next repetition."""
        least_s = 0.0 if is_leader_known else RESEND_TO_ALL_S
        self.send_at_s = now_s + max(self.interval_s, least_s)
        self.interval_s = min(self.interval_s * 1.5, RESEND_MOST_S)

    def restart(self, *, now_s: float) -> None:
        """Send it at once and often again: a new job leader does not have it."""
        self.send_at_s = now_s
        self.interval_s = RESEND_FIRST_S
        self.send_until_s = now_s + RESEND_FOR_S


class PendingResults:
    """Results by attempt, until they are acknowledged."""

    def __init__(self) -> None:
        self._results: dict[AttemptId, PendingResult] = {}

    def __contains__(self, attempt_id: AttemptId) -> bool:
        return attempt_id in self._results

    def __len__(self) -> int:
        return len(self._results)

    def ids(self) -> list[AttemptId]:
        """Return the attempts whose result is pending."""
        return list(self._results)

    def add(self, message: AttemptEnd, *, is_stored: bool, now_s: float) -> None:
        """Keep the end of an attempt until it is acknowledged."""
        self._results[message.attempt_id] = PendingResult(
            message, is_stored, now_s, now_s + RESEND_FOR_S
        )

    def stored(self, attempt_id: AttemptId) -> PendingResult | None:
        """Note that a result is on disk; return it if it is still pending."""
        result = self._results.get(attempt_id)
        if result is not None:
            result.is_stored = True
        return result

    def acknowledge(self, attempt_id: AttemptId) -> bool:
        """Forget a result; return False if it was not pending."""
        return self._results.pop(attempt_id, None) is not None

    def restart(self, group: int, *, now_s: float) -> list[AttemptId]:
        """Send the results of a group again, to a new job leader; return their attempts."""
        found = [each for each in self._results.values() if each.message.group == group]
        for result in found:
            result.restart(now_s=now_s)
        return [result.message.attempt_id for result in found]

    def due(self, *, now_s: float) -> list[PendingResult]:
        """Return the results that are to be sent now."""
        return [
            result
            for result in self._results.values()
            if (wake_at_s := result.wake_at_s()) is not None and wake_at_s <= now_s
        ]

    def wake_at_s(self) -> float | None:
        """Return when the next result is sent; None if no result is scheduled."""
        times_s = [result.wake_at_s() for result in self._results.values()]
        return min((at_s for at_s in times_s if at_s is not None), default=None)


# --- how attempts ended ------------------------------------------------------------------


def result_of(attempt: AttemptOnWorker, worker: str) -> DeliverResult:
    """Return the result of an attempt that has left its places."""
    status, error, is_retryable = _outcome(attempt)
    ends = [attempt.ends[place] for place in sorted(attempt.ends)]
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
            was_saturated=attempt.statistics.was_saturated,
            unheard_s=attempt.statistics.gap_s,
        )
    )


def prepare_failure_of(
    attempt: AttemptOnWorker, failed: AttemptPrepareFailed, worker: str
) -> AttemptEnd:
    """Return the end of an attempt that could not be prepared.

    If its setup hooks have already sent requests, it is a failed result with these counts.
    """
    report = attempt.statistics.whole()
    if report is None:
        return AnnouncePrepareFailed(
            worker=worker,
            group=attempt.group,
            attempt_id=attempt.id,
            error=_cut(failed.error),
            hint=_cut(failed.hint),
            is_input=failed.is_input,
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


def _outcome(attempt: AttemptOnWorker) -> tuple[PartStatus, str | None, bool]:
    """Return status, error, and whether a retry on another worker may succeed."""
    ends = [attempt.ends[place] for place in sorted(attempt.ends)]
    if ends and all(end.status is PartStatus.COMPLETED for end in ends):
        return PartStatus.COMPLETED, None, False
    if attempt.stop_cause is not None:
        return PartStatus.STOPPED, attempt.stop_cause.reason, attempt.stop_cause.is_retryable
    failed = next((end for end in ends if end.status is PartStatus.FAILED), None)
    if failed is not None and not failed.is_dead:
        return PartStatus.FAILED, failed.error, False
    dead = next((end for end in ends if end.is_dead), None)
    if dead is not None:
        return PartStatus.FAILED, dead.error, True
    stopped = next((end for end in ends if end.status is PartStatus.STOPPED), None)
    # An executor stops without a command only when its lease is over.
    return PartStatus.STOPPED, LEASE_OVER if stopped is None else stopped.error, True
