"""Rows of a job's results about single attempts, as the results file shows them.

The job core builds them from the committed record; `reporting.results` contains them. The comment
beside or above a field is its description in the JSON Schema of results (`reporting.schema`).
"""

from typing import Annotated

from msgspec import Meta, Struct

from hyperscale.plan.rows import LostRows

# The bounds are for the schema: reading a result does not enforce them.
NOT_NEGATIVE = Meta(extra_json_schema={"minimum": 0})
Count = Annotated[int, NOT_NEGATIVE]
Ordinal = Annotated[int, Meta(extra_json_schema={"minimum": 1})]
Amount = Annotated[float, NOT_NEGATIVE]


class SegmentResult(Struct, frozen=True, kw_only=True):
    """An attempt that was revoked because its worker was lost. Its reports are in the totals."""

    workflow: str  # The workflow.
    part: Count  # The part of the workflow.
    attempt: Ordinal  # The attempt of the part.
    worker: str  # The worker the attempt ran on.
    reason: str  # Why the attempt was revoked.
    # How much of the workflow's duration had passed when the attempt began.
    began_seconds: Amount = 0.0
    elapsed_seconds: Amount = 0.0  # How long the attempt had run at its last report.


class GapResult(Struct, frozen=True, kw_only=True):
    """Load that was possibly sent and not reported: the target has seen at least what is reported,
    and at most that plus the sum of `requests_max`."""

    workflow: str  # The workflow.
    worker: str  # The worker that may have sent the load.
    seconds: Amount  # How long the worker may have sent load without reporting it.
    requests_max: Count  # Upper bound of the requests that were not reported.
    # Rows of feeds with `take="once"` that were possibly used; no other user gets them.
    rows: list[LostRows] = []


class UsageResult(Struct, frozen=True, kw_only=True):
    """The resources an attempt used on its worker."""

    workflow: str  # The workflow.
    part: Count  # The part of the workflow.
    attempt: Ordinal  # The attempt of the part.
    worker: str  # The worker the attempt ran on.
    cores: Ordinal  # Cores the attempt had.
    cpu: Amount  # Share of those cores its executors used, 0 to 1.
    memory_bytes: Count  # Memory its executors held at their last report.
    saturated: bool = False  # Whether the attempt was at its limit at any time.
