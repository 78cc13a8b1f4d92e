"""Small jobs for tests: plans, submissions, reports."""

from collections.abc import Sequence

from hyperscale.jobs.committed.events import JobOptions, JobSubmitted, payload_digest
from hyperscale.plan import Plan, Priority, StepKind, StepPlan, WorkflowPlan
from tests.lab.reports import PartReport, SeriesPoint, StepCounts, StepReport, encoded


def workflow(
    name: str,
    *depends: str,
    vus: int = 100,
    duration_s: float = 30.0,
    priority: Priority = Priority.AUTO,
    is_test: bool = True,
    iterations: int | None = None,
) -> WorkflowPlan:
    kind = StepKind.TEST if is_test else StepKind.ACTION
    return WorkflowPlan(
        name=name,
        vus=vus,
        duration_s=duration_s,
        timeout_s=30.0,
        priority=priority,
        iterations=iterations,
        depends=depends,
        is_test=is_test,
        steps=(StepPlan(name="hit", kind=kind),),
    )


def plan(*workflows: WorkflowPlan) -> Plan:
    return Plan(file="shop.py", workflows=workflows or (workflow("Load"),))


def submission(
    key: str = "key-1", wanted: Plan | None = None, options: JobOptions | None = None
) -> JobSubmitted:
    chosen, opts = wanted or plan(), options or JobOptions()
    return JobSubmitted(
        key=key,
        digest=payload_digest(chosen, "b" * 64, opts),
        plan=chosen,
        bundle="b" * 64,
        options=opts,
        by="test",
    )


def report(
    name: str = "Load",
    *,
    slot: int = 0,
    sequence: int = 1,
    elapsed_s: float = 1.0,
    total: int = 10,
    failed: int = 0,
    sent: int | None = None,
    series: Sequence[SeriesPoint] = (),
) -> bytes:
    """An encoded report of one step."""
    counts = StepCounts(
        total=total, ok=total - failed, failed=failed, sent=total if sent is None else sent
    )
    made = PartReport(
        workflow=name,
        slot=slot,
        sequence=sequence,
        elapsed_s=elapsed_s,
        vus=10,
        iterations=total,
        steps=[StepReport(name="hit", counts=counts, series=list(series))],
    )
    return encoded(made)
