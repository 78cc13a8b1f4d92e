"""The load of a global job is scaled, paused and resumed in all of its datacenters."""

import pytest
from msgspec.structs import replace

from hyperscale.gates.changes import by_workflow, split_changes
from hyperscale.gates.committed.events import (
    GlobalCancelRequested,
    GlobalLoadChanged,
    GlobalOptions,
)
from hyperscale.gates.messages import (
    AssignJob,
    AssignmentAnswer,
    ChangeAssignment,
    StartAssignment,
)
from hyperscale.gates.owner.events import DatacentersRemoved
from hyperscale.gates.results import merged_record, unheard_load
from hyperscale.gates.slices import split_plan
from hyperscale.jobs.committed.events import Code
from hyperscale.jobs.leader.statistics import WorkflowStatistics
from hyperscale.plan import StagePlan
from hyperscale.plan.changes import ChangeKind, LoadChange
from tests.gates.global_jobs import OwnedJobs
from tests.gates.test_owner import running
from tests.gates.test_routing import view
from tests.gates.test_vacancies import with_cores
from tests.lab.job_builders import plan, report, workflow

PAUSE = LoadChange(id="pause", kind=ChangeKind.PAUSE)
RESUME = LoadChange(id="resume", kind=ChangeKind.RESUME)


def scale(vus: int, *, name: str = "scale", workflow: str = "") -> LoadChange:
    return LoadChange(id=name, kind=ChangeKind.SCALE, vus=vus, workflow=workflow, by="ann")


def changed(jobs: OwnedJobs, job: str, change: LoadChange) -> Code:
    reply = jobs.commit(GlobalLoadChanged(job=job, change=change))
    return Code.OK if reply.ok else reply.code


def delivered(jobs: OwnedJobs) -> dict[str, list[LoadChange]]:
    """Return the changes that are on their way, by datacenter."""
    return {
        name: command.changes
        for _, name, command in jobs.sent
        if isinstance(command, ChangeAssignment)
    }


def test_a_scale_is_split_over_datacenters_by_their_shares() -> None:
    jobs = OwnedJobs()
    jobs.see(with_cores("east", 6), with_cores("west", 2))
    job = jobs.submit(GlobalOptions(datacenter_count=2), plan(workflow("Load", vus=8)))
    jobs.answer()
    assert changed(jobs, job, scale(100)) is Code.OK
    assert {name: each[0].vus for name, each in delivered(jobs).items()} == {"east": 75, "west": 25}
    assert {each[0].workflow for each in delivered(jobs).values()} == {"Load"}


def test_per_datacenter_a_scale_is_what_every_one_gets() -> None:
    options = GlobalOptions(datacenter_count=2, vus_per_datacenter=True)
    jobs, job = running("east", "west", options=options, wanted=10)
    changed(jobs, job, scale(30))
    assert {name: each[0].vus for name, each in delivered(jobs).items()} == {"east": 30, "west": 30}


def test_a_rate_is_split_in_proportion_and_workflows_that_share_a_total_by_their_weights() -> None:
    stages = (StagePlan(duration_s=10.0, target=30.0),)
    rate = replace(workflow("Rate"), stages=stages, is_open=True)
    parts = list(split_plan(plan(rate), {"east": 1, "west": 2}).values())
    change = LoadChange(id="c", kind=ChangeKind.SCALE, rate=90.0)
    split = split_changes(by_workflow(change, {"Rate": 90.0}), parts)
    assert [each[0].rate for each in split] == [pytest.approx(30.0), pytest.approx(60.0)]
    both = plan(workflow("Browse", vus=30), workflow("Buy", vus=10))
    parts = list(split_plan(both, {"east": 1, "west": 1}).values())
    split = split_changes(by_workflow(scale(80), {"Browse": 60.0, "Buy": 20.0}), parts)
    assert [[(each.workflow, each.vus) for each in mine] for mine in split] == [
        [("Browse", 30), ("Buy", 10)],
        [("Browse", 30), ("Buy", 10)],
    ]
    assert len({each.id for each in split[0]}) == 2


def test_a_change_is_repeated_until_it_is_acknowledged_also_by_a_successor() -> None:
    jobs, job = running("east", "west")
    changed(jobs, job, scale(50))
    jobs.answer(of="east")
    jobs.answer(None, of="west")
    jobs.run(1.0)
    assert list(delivered(jobs)) == ["west"]
    changed(jobs, job, PAUSE)
    assert [each.kind for each in delivered(jobs)["east"]] == [ChangeKind.PAUSE]
    new = jobs.successor()
    new.run(0.5)
    assert {name: [c.kind for c in each] for name, each in delivered(new).items()} == {
        "east": [ChangeKind.PAUSE],
        "west": [ChangeKind.SCALE, ChangeKind.PAUSE],
    }
    new.answer()
    new.run(60.0)
    assert not delivered(new)
    assert all(not part.changes.open for part in new.job(job).assignments)


def test_a_change_that_was_not_taken_is_sent_again() -> None:
    jobs, job = running("east")
    changed(jobs, job, PAUSE)
    jobs.answer(AssignmentAnswer.RETRY)
    jobs.run(0.5)
    assert delivered(jobs)["east"] == [PAUSE]


def test_a_change_is_made_once_and_one_that_does_not_fit_is_refused() -> None:
    jobs, job = running("east")
    assert changed(jobs, job, RESUME) is Code.INVALID
    assert changed(jobs, job, PAUSE) is Code.OK
    assert changed(jobs, job, PAUSE) is Code.OK  # the same one again
    assert changed(jobs, job, LoadChange(id="p2", kind=ChangeKind.PAUSE)) is Code.INVALID
    assert changed(jobs, job, scale(5, workflow="Shop")) is Code.INVALID
    assert [each.change.id for each in jobs.job(job).changes] == ["pause"]
    jobs.commit(GlobalCancelRequested(job=job, reason="enough"))
    assert changed(jobs, job, RESUME) is Code.CANCELLING


def test_changes_made_before_datacenters_were_chosen_reach_them() -> None:
    jobs = OwnedJobs()
    job = jobs.submit(GlobalOptions(datacenter_count=2), plan(workflow("Load", vus=10)))
    assert changed(jobs, job, scale(40)) is Code.OK
    jobs.see(view("east"), view("west"))
    jobs.run(1.0)
    assert jobs.commands(AssignJob)
    jobs.answer()
    assert sum(each[0].vus or 0 for each in delivered(jobs).values()) == 40


def test_the_part_of_a_removed_datacenter_goes_on_with_its_changes() -> None:
    jobs, job = running("east", "west", wanted=10)
    changed(jobs, job, scale(60))
    jobs.answer()
    jobs.see(view("north"))
    jobs._take(DatacentersRemoved(frozenset({"west"})))
    jobs.answer()
    assert {name: each[0].vus for name, each in delivered(jobs).items()} == {"north": 30}


def test_a_datacenter_that_joins_late_does_not_count_pauses_and_has_a_later_deadline() -> None:
    jobs = OwnedJobs("east", "west")
    options = GlobalOptions(datacenter_count=2, start_timeout_s=5.0)
    job = jobs.submit(options, plan(workflow("Load", vus=10, duration_s=60.0)))
    jobs.answer()
    jobs.ready(job, "east")
    jobs.run(6.0)
    jobs.answer(of="east")
    started_s = jobs.job(job).started_ms / 1000 - 1000
    jobs.run(4.0)
    changed(jobs, job, PAUSE)
    jobs.answer()
    jobs.run(20.0)
    changed(jobs, job, RESUME)
    jobs.answer()
    jobs.ready(job, "west")
    jobs.run(1.0)
    (start,) = jobs.commands(StartAssignment, to="west")
    assert isinstance(start, StartAssignment)
    assert start.elapsed_s == pytest.approx(jobs.now_s - started_s - 20.0, abs=1.5)
    assert jobs.job(job).paused_ms(0, 10**9) == 20_000


def test_changes_are_in_the_merged_results() -> None:
    jobs, job = running("east", "west", wanted=10)
    jobs.run(2.0)
    changed(jobs, job, scale(400))
    jobs.answer()
    jobs.run(1.0)
    changed(jobs, job, PAUSE)
    jobs.answer()
    jobs._take(DatacentersRemoved(frozenset({"west"})))
    jobs.run(1.0)
    (scaled, paused) = merged_record(jobs.job(job)).workflows["Load"].changes
    assert (scaled.kind, scaled.target, scaled.by) == (ChangeKind.SCALE, 400.0, "ann")
    assert paused.kind is ChangeKind.PAUSE
    assert paused.at_s - scaled.at_s == pytest.approx(1.0)


def test_a_lost_datacenter_may_have_sent_as_much_as_its_scaled_users() -> None:
    load = replace(workflow("Load", vus=10), interval_s=1.0)
    heard = WorkflowStatistics(load)
    heard.take(report("Load", elapsed_s=4.0, total=40), slot=0, attempt=1)
    plain = unheard_load(heard, load, cores=8)
    scaled = unheard_load(heard, load, cores=8, changes=[scale(100, workflow="Load")], paused_s=6.0)
    assert scaled.requests_max >= 9 * plain.requests_max
    assert scaled.seconds == plain.seconds + 6.0
