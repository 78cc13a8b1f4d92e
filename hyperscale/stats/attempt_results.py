"""Rows of a job's results about single attempts, as the results file shows them.

The job core builds them from the committed record; `reporting.results` contains them.
"""

from typing import Annotated

from msgspec import Struct

from hyperscale.stats.schema_notes import about, not_negative


class SegmentResult(Struct, frozen=True, kw_only=True):
    """An attempt that was revoked because its worker was lost. Its reports are in the totals."""

    workflow: Annotated[str, about("The workflow.")]
    part: Annotated[int, not_negative("The part of the workflow.")]
    attempt: Annotated[int, about("The attempt of the part.", minimum=1)]
    worker: Annotated[str, about("The worker the attempt ran on.")]
    reason: Annotated[str, about("Why the attempt was revoked.")]
    began_seconds: Annotated[
        float,
        not_negative("How much of the workflow's duration had passed when the attempt began."),
    ] = 0.0
    elapsed_seconds: Annotated[
        float, not_negative("How long the attempt had run at its last report.")
    ] = 0.0


class GapResult(Struct, frozen=True, kw_only=True):
    """Load that was possibly sent and not reported: the target has seen at least what is reported,
    and at most that plus the sum of `requests_max`."""

    workflow: Annotated[str, about("The workflow.")]
    worker: Annotated[str, about("The worker that may have sent the load.")]
    seconds: Annotated[
        float, not_negative("How long the worker may have sent load without reporting it.")
    ]
    requests_max: Annotated[
        int, not_negative("Upper bound of the requests that were not reported.")
    ]


class UsageResult(Struct, frozen=True, kw_only=True):
    """The resources an attempt used on its worker."""

    workflow: Annotated[str, about("The workflow.")]
    part: Annotated[int, not_negative("The part of the workflow.")]
    attempt: Annotated[int, about("The attempt of the part.", minimum=1)]
    worker: Annotated[str, about("The worker the attempt ran on.")]
    cores: Annotated[int, about("Cores the attempt had.", minimum=1)]
    cpu: Annotated[float, not_negative("Share of those cores its executors used, 0 to 1.")]
    memory_bytes: Annotated[int, not_negative("Memory its executors held at their last report.")]
    saturated: Annotated[bool, about("Whether the attempt was at its limit at any time.")] = False
