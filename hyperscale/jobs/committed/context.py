"""The context a workflow starts with: a pure function of committed results.

Dependencies finish before a dependent is dispatched, so every leader derives the same bytes at any
time. Nothing is stored twice, and nothing can be stale.
"""

import msgspec

from hyperscale.errors import RunError
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.state import Job
from hyperscale.plan.context import (
    Namespace,
    decode_provided,
    encode_received,
    namespace_of,
    received_by,
)

UPDATE_BYTES_MAX = 64 * 1024
JOB_BYTES_MAX = 1024 * 1024


def context_for(job: Job, workflow: str) -> bytes:
    """Return the encoded context of a workflow whose dependencies have all completed.

    Raise `RunError` if the workflow needs a value that no dependency provided, or if what was
    provided cannot be read.
    """
    plan = job.plan_of(workflow)
    finished: dict[str, Namespace] = {}
    for name in plan.depends:
        dependency = job.workflows.get(name)
        if dependency is None or dependency.ended_as is not JobStatus.COMPLETED:
            continue
        try:
            ends = [part.end for part in dependency.parts if part.end is not None]
            given = [decode_provided(each) for end in ends for each in end.provided]
        except msgspec.MsgspecError as exc:
            raise RunError(f"{workflow}: what {name} provided cannot be read: {exc}") from exc
        finished[name] = namespace_of(job.plan_of(name), given)
    return encode_received(received_by(plan, job.plan.workflows, finished))


def size_problem(workflow: str, provided: list[bytes], job_bytes: int) -> str | None:
    """Return why the context that a part provides is too large; None if it is not."""
    size = sum(map(len, provided))
    if size > UPDATE_BYTES_MAX:
        problem = f"a part provides {size:,} bytes of context, more than {UPDATE_BYTES_MAX:,}"
    elif size + job_bytes > JOB_BYTES_MAX:
        total = size + job_bytes
        problem = f"the job's context would be {total:,} bytes, more than {JOB_BYTES_MAX:,}"
    else:
        return None
    return f"{workflow}: {problem} (hint: provide what identifies the data, not the data)"
