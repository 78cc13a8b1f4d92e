"""The results of many datacenters as one: the same numbers as if all samples were in one place."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from hyperscale._native import Histogram
from hyperscale.gates.committed.events import GlobalOptions
from hyperscale.gates.committed.state import AssignmentStatus, DatacenterAssignment, GlobalJob
from hyperscale.gates.results import merged_record, short_record
from hyperscale.gates.slices import split_plan
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.outcome import outcome_of
from hyperscale.jobs.committed.state import (
    Gap,
    Job,
    JobTimes,
    Part,
    PartEnd,
    WorkflowState,
    WorkflowStatus,
)
from hyperscale.plan.status import PartStatus
from tests.lab.job_builders import plan
from tests.lab.reports import PartReport, StepCounts, StepReport, encoded

NAMES = ("east", "west", "south")


def part(slot: int, samples_ns: list[int]) -> Part:
    latency = Histogram()
    for sample_ns in samples_ns:
        latency.record(sample_ns)
    count = len(samples_ns)
    step = StepReport(
        name="hit",
        counts=StepCounts(total=count, ok=count, sent=count),
        latency=latency.encode(),
    )
    report = PartReport(
        workflow="Load",
        slot=slot,
        sequence=1,
        elapsed_s=10.0,
        vus=1,
        iterations=count,
        steps=[step],
    )
    return Part(
        first_slot=slot,
        cores=1,
        attempt=1,
        worker=f"worker-{slot}",
        elapsed_s=10.0,
        report=encoded(report),
        end=PartEnd(status=PartStatus.COMPLETED),
    )


def record(name: str, parts: list[Part], gap_requests: int = 0) -> Job:
    gaps = [Gap(part=0, attempt=1, worker="w", seconds=1.0, requests_max=gap_requests)]
    return Job(
        id=f"{name}.1-x",
        key="global.1-x",
        digest="",
        plan=plan(),
        status=JobStatus.COMPLETED,
        times=JobTimes(submitted_ms=1, started_ms=2, ended_ms=3),
        workflows={
            "Load": WorkflowState(
                status=WorkflowStatus.COMPLETED,
                ended_as=JobStatus.COMPLETED,
                parts=parts,
                gaps=gaps if gap_requests else [],
            )
        },
    )


def merged(records: dict[str, Job]) -> Job:
    shares = split_plan(plan(), dict.fromkeys(records, 4))
    return merged_record(
        GlobalJob(
            id="global.1-x",
            key="k",
            digest="",
            plan=plan(),
            options=GlobalOptions(datacenter_count=len(records)),
            status=JobStatus.COMPLETED,
            times=JobTimes(submitted_ms=1),
            assignments=[
                DatacenterAssignment(
                    datacenter=name,
                    index=index,
                    workflows=shares[name],
                    status=AssignmentStatus.FINISHED,
                    ended_as=JobStatus.COMPLETED,
                    result=short_record(each, datacenter=name, index=index),
                )
                for index, (name, each) in enumerate(records.items())
            ],
        )
    )


@given(st.integers(0, 10**6), st.lists(st.integers(1, 200), min_size=6, max_size=6))
def test_merged_counts_and_percentiles_are_those_of_all_samples(
    seed: int, sizes: list[int]
) -> None:
    rng = Random(seed)
    samples = [[int(rng.lognormvariate(16.0, 1.0)) for _ in range(size)] for size in sizes]
    records = {
        name: record(name, [part(slot, samples[2 * index + slot]) for slot in range(2)])
        for index, name in enumerate(NAMES)
    }
    stats = outcome_of(merged(records)).stats["Load"]
    pooled = Histogram()
    for sample_ns in (each for part_samples in samples for each in part_samples):
        pooled.record(sample_ns)
    assert stats.headline_counts().total == sum(sizes)
    for q in (0.5, 0.9, 0.99, 0.999):
        assert stats.latency("hit").quantile_ns(q) == pooled.quantile_ns(q)


def test_gaps_of_each_datacenter_are_in_the_merged_result() -> None:
    records = {name: record(name, [part(0, [10_000_000])], 7) for name in NAMES}
    end = outcome_of(merged(records))
    assert [gap.requests_max for gap in end.gaps] == [7, 7, 7]
    assert {gap.worker.partition("/")[0] for gap in end.gaps} == set(NAMES)
