"""Rows of a job's results about single attempts, as the results file shows them.

The job core builds them from the committed record; `reporting.results` contains them.
"""

from msgspec import Struct


class SegmentResult(Struct, frozen=True, kw_only=True):
    """A revoked attempt. The requests it had reported are in the totals."""

    workflow: str
    part: int
    attempt: int
    worker: str
    reason: str
    began_seconds: float = 0.0  # of the workflow's time, when the attempt started
    elapsed_seconds: float = 0.0


class GapResult(Struct, frozen=True, kw_only=True):
    """Load that was possibly sent and not reported: reported <= target <= reported + gaps."""

    workflow: str
    worker: str
    seconds: float
    requests_max: int


class UsageResult(Struct, frozen=True, kw_only=True):
    """CPU and memory that an attempt used on its worker, from its last report."""

    workflow: str
    part: int
    attempt: int
    worker: str
    cores: int
    cpu: float  # share of those cores, 0 to 1
    memory_bytes: int
    saturated: bool = False
