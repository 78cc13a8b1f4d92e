"""The run's state machine, fed with events by hand and by chance. No process, no clock."""

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperscale._native import Histogram, Report
from hyperscale.errors import InputError, InvariantError, RunError
from hyperscale.execution.protocol import (
    ExecutorDied,
    ExecutorEvent,
    SlotFinished,
    SlotReport,
)
from hyperscale.plan import (
    Plan,
    Priority,
    StateKind,
    StatePlan,
    StepKind,
    StepPlan,
    ThresholdPlan,
    WorkflowPlan,
)
from hyperscale.plan.context import Provided, decode_received, encode_provided
from hyperscale.plan.status import PartStatus
from hyperscale.reporting.results import RunStatus
from hyperscale.runner.events import (
    ExecutorReported,
    KillExecutors,
    PoolReady,
    PrepareWorkflow,
    RunEffect,
    RunEvent,
    RunInterrupted,
    StartExecutors,
    StopExecutors,
    WeighExecutors,
    WorkflowPrepared,
)
from hyperscale.runner.run import LocalRun
from hyperscale.sansio.core import Tick
from tests.lab.reports import PartReport, StepCounts, StepReport, native


def workflow(
    name: str,
    *,
    depends: Iterable[str] = (),
    vus: int = 10,
    priority: Priority = Priority.AUTO,
    is_test: bool = True,
    thresholds: tuple[ThresholdPlan, ...] = (),
    states: tuple[StatePlan, ...] = (),
) -> WorkflowPlan:
    return WorkflowPlan(
        name=name,
        vus=vus,
        duration_s=10.0,
        timeout_s=1.0,
        priority=priority,
        is_test=is_test,
        depends=tuple(depends),
        steps=(StepPlan(name="go", kind=StepKind.TEST if is_test else StepKind.ACTION),),
        thresholds=thresholds,
        states=states,
    )


def report(name: str, slot: int, *, total: int = 1, failed: int = 0, at_s: float = 1.0) -> Report:
    latency = Histogram()
    latency.record(1_000_000, total)
    counts = StepCounts(total=total, ok=total - failed, failed=failed)
    made = PartReport(
        workflow=name,
        slot=slot,
        sequence=int(at_s * 10),
        elapsed_s=at_s,
        vus=1,
        iterations=total,
        steps=[StepReport(name="go", counts=counts, latency=latency.encode())],
    )
    return native(made)


class Bench:
    """Feeds a run and remembers which executors hold what, as the driver's pool would."""

    def __init__(
        self, *workflows: WorkflowPlan, cores: int = 4, timeout_s: float | None = None
    ) -> None:
        plan = Plan(file="test.py", workflows=workflows)
        self.run = LocalRun(plan, cores=cores, timeout_s=timeout_s)
        self.now_s = 100.0
        self.slots: dict[int, tuple[str, int]] = {}
        self.received: dict[str, bytes] = {}
        self.preparing: set[str] = set()
        self.log: list[RunEffect] = []
        self.exclusive = {
            w.name for w in workflows if w.is_test and w.priority is Priority.EXCLUSIVE
        }
        self.feed(PoolReady())

    def feed(self, event: RunEvent) -> list[RunEffect]:
        effects = self.run.handle(event, now_s=self.now_s)
        for effect in effects:
            if isinstance(effect, PrepareWorkflow):
                self.received[effect.workflow] = effect.received
                self.preparing.add(effect.workflow)
                if self.exclusive & ({effect.workflow} | {name for name, _ in self.slots.values()}):
                    assert not self.slots, "an exclusive workflow is not alone"
                for slot, executor in enumerate(effect.executors):
                    assert executor not in self.slots, "given to two workflows at once"
                    self.slots[executor] = (effect.workflow, slot)
        self.log += effects
        return effects

    def executors(self, name: str) -> list[int]:
        return [executor for executor, (holder, _) in self.slots.items() if holder == name]

    def prepared(self, *names: str) -> list[RunEffect]:
        effects = []
        for name in names:
            self.preparing.discard(name)
            effects += self.feed(WorkflowPrepared(name))
        return effects

    def refuse(self, name: str, error: RunError | InputError) -> list[RunEffect]:
        self.preparing.discard(name)
        for executor in self.executors(name):
            del self.slots[executor]
        return self.feed(WorkflowPrepared(name, error))

    def part(self, executor: int, event: ExecutorEvent) -> list[RunEffect]:
        if isinstance(event, SlotFinished | ExecutorDied):
            self.slots.pop(executor, None)
        return self.feed(ExecutorReported(executor, event))

    def finish(
        self,
        name: str,
        *,
        status: PartStatus = PartStatus.COMPLETED,
        error: str | None = None,
        provided: Provided | None = None,
    ) -> list[RunEffect]:
        effects = []
        for executor in self.executors(name):
            slot = self.slots[executor][1]
            part = report(name, slot, total=5)
            given = b"" if provided is None else encode_provided(provided)
            finished = SlotFinished(status=status, report=part, error=error, provided=given)
            effects += self.part(executor, finished)
        return effects

    def statuses(self) -> dict[str, str]:
        return {view.name: view.status for view in self.run.view(now_s=self.now_s).workflows}

    def errors(self) -> dict[str, str | None]:
        return {outcome.stats.plan.name: outcome.error for outcome in self.run.outcomes()}


def shared_cores(bench: Bench) -> dict[str, int]:
    views = bench.run.view(now_s=bench.now_s).workflows
    return {view.name: view.shared_cores for view in views}


def prepares(effects: Iterable[RunEffect]) -> dict[str, int]:
    return {e.workflow: len(e.executors) for e in effects if isinstance(e, PrepareWorkflow)}


def test_a_lone_workflow_gets_every_core_starts_when_prepared_and_completes() -> None:
    bench = Bench(workflow("A"))
    assert prepares(bench.log) == {"A": 4}
    assert bench.prepared("A") == [StartExecutors((0, 1, 2, 3))]
    assert bench.statuses() == {"A": "running"}
    bench.finish("A")
    assert bench.run.is_over
    assert bench.run.status is RunStatus.COMPLETED
    assert bench.run.outcomes()[0].stats.counts("go").total == 20


def test_a_workflow_starts_when_its_own_dependencies_are_done() -> None:
    bench = Bench(
        workflow("Slow", vus=1), workflow("Seed", is_test=False), workflow("Shop", depends=["Seed"])
    )
    assert prepares(bench.log) == {"Seed": 1, "Slow": 1}
    bench.prepared("Slow", "Seed")
    assert prepares(bench.finish("Seed")) == {"Shop": 3}
    assert bench.statuses() == {"Slow": "running", "Seed": "completed", "Shop": "preparing"}


def test_workflows_left_without_a_core_share_those_of_the_others() -> None:
    bench = Bench(
        workflow("High", priority=Priority.HIGH),
        workflow("Auto"),
        workflow("Low", priority=Priority.LOW),
        workflow("Late", depends=["Low"]),
        cores=2,
    )
    assert prepares(bench.log) == {"High": 2, "Auto": 1, "Low": 1}
    assert shared_cores(bench) == {"High": 2, "Auto": 2, "Low": 2, "Late": 0}
    assert [bench.run.nice_of(name) for name in ("High", "Auto", "Low")] == [5, 10, 15]
    [note] = bench.run.view(now_s=bench.now_s).warnings
    assert note.startswith("3 workflows on 2 cores: High, Auto and Low run together")
    bench.prepared("High", "Auto", "Low")
    assert prepares(bench.finish("Low")) == {"Late": 1}  # the cores are still those of High
    assert shared_cores(bench)["Late"] == 2


def test_a_workflow_that_shared_inherits_a_core_before_another_one_gets_it() -> None:
    bench = Bench(
        workflow("A"), workflow("B"), workflow("C", depends=["A"]), workflow("D"), cores=2
    )
    assert prepares(bench.log) == {"A": 1, "B": 1, "D": 1}
    bench.prepared("A", "B", "D")
    assert bench.executors("D") == [2]  # beside the cores 0 and 1
    assert prepares(bench.finish("A")) == {"C": 1}
    assert bench.executors("C") == [3]  # D has the core of A now
    bench.prepared("C")
    bench.finish("D")
    bench.finish("B")
    bench.finish("C")
    assert bench.run.status is RunStatus.COMPLETED


def test_executors_that_already_run_are_weighed_when_another_workflow_shares_their_cores() -> None:
    bench = Bench(
        workflow("Load"),
        workflow("Seed", vus=1),
        workflow("One", depends=["Seed"]),
        workflow("Two", depends=["Seed"]),
        cores=2,
    )
    bench.prepared("Load", "Seed")
    assert bench.run.nice_of("Load") is None
    [weighed, *_] = bench.finish("Seed")
    assert weighed == WeighExecutors(tuple(bench.executors("Load")), nice=10)


def test_an_exclusive_workflow_shares_with_none_and_waits_until_all_have_ended() -> None:
    bench = Bench(
        workflow("A"),
        workflow("B"),
        workflow("Alone", priority=Priority.EXCLUSIVE, vus=1, depends=["A"]),
        workflow("C", depends=["A"]),
        workflow("D", depends=["B", "C"]),
        cores=1,
    )
    assert prepares(bench.log) == {"A": 1, "B": 1}
    bench.prepared("A", "B")
    assert prepares(bench.finish("A")) == {"C": 1}
    bench.prepared("C")
    assert prepares(bench.finish("C")) == {}
    assert prepares(bench.finish("B")) == {"Alone": 1}  # ahead of D, which is ready too
    assert bench.prepared("Alone") == [StartExecutors((0,))]
    assert prepares(bench.finish("Alone")) == {"D": 1}
    assert shared_cores(bench) == {"A": 1, "B": 1, "Alone": 0, "C": 1, "D": 0}


def test_no_more_than_64_workflows_share_cores_at_once() -> None:
    bench = Bench(*(workflow(f"W{n}", vus=1) for n in range(67)), cores=2)
    assert len(prepares(bench.log)) == 66
    assert bench.statuses()["W66"] == "waiting"
    bench.prepared("W65")
    assert prepares(bench.finish("W65")) == {"W66": 1}


def test_a_failed_workflow_cancels_its_dependents_and_no_other() -> None:
    bench = Bench(
        workflow("A"),
        workflow("B", depends=["A"]),
        workflow("C", depends=["B"]),
        workflow("D"),
    )
    bench.prepared("A", "D")
    bench.finish("A", status=PartStatus.FAILED, error="it broke")
    bench.finish("D")
    assert bench.run.is_over
    assert bench.statuses() == {
        "A": "failed",
        "B": "cancelled",
        "C": "cancelled",
        "D": "completed",
    }
    assert bench.errors() == {
        "A": "it broke",
        "B": "dependency failed: A",
        "C": "dependency failed: A",
        "D": None,
    }
    assert bench.run.status is RunStatus.PARTIAL


def test_a_dead_executor_fails_its_workflow_and_the_others_continue() -> None:
    bench = Bench(workflow("A"), cores=2)
    bench.prepared("A")
    bench.part(0, SlotReport(report=report("A", 0, total=3)))
    assert bench.part(0, ExecutorDied(reason="killed by SIGKILL")) == []
    assert not bench.run.is_over
    bench.finish("A")
    assert bench.run.status is RunStatus.FAILED
    assert bench.errors()["A"] == "executor 1 of 2 failed: killed by SIGKILL"
    assert bench.run.outcomes()[0].stats.counts("go").total == 3 + 5


def test_the_first_interrupt_stops_in_order_and_the_second_kills() -> None:
    bench = Bench(workflow("A"), workflow("B", depends=["A"]), cores=1)
    bench.prepared("A")
    [stop] = bench.feed(RunInterrupted("SIGINT"))
    assert isinstance(stop, StopExecutors)
    assert stop.executors == (0,)
    assert bench.statuses() == {"A": "stopping", "B": "cancelled"}
    assert bench.feed(RunInterrupted("SIGINT")) == [
        KillExecutors((0,), "interrupted twice by SIGINT")
    ]
    bench.part(0, ExecutorDied(reason="killed"))
    assert bench.run.is_over
    assert bench.run.status is RunStatus.CANCELLED
    assert bench.run.interrupted_by == "SIGINT"
    assert bench.errors() == {
        "A": "interrupted by SIGINT",
        "B": "never started: interrupted by SIGINT",
    }


def test_results_gathered_before_an_interrupt_are_kept() -> None:
    bench = Bench(workflow("A"), cores=1)
    bench.prepared("A")
    bench.feed(RunInterrupted("SIGTERM"))
    bench.finish("A", status=PartStatus.STOPPED, error="interrupted by SIGTERM")
    [outcome] = bench.run.outcomes()
    assert outcome.status is RunStatus.CANCELLED
    assert outcome.stats.counts("go").total == 5


@pytest.mark.parametrize("is_ready_first", [True, False])
def test_an_interrupt_during_preparation_ends_the_workflow_in_either_order_of_events(
    is_ready_first: bool,
) -> None:
    bench = Bench(workflow("A"), cores=2)
    assert isinstance(bench.feed(RunInterrupted("SIGINT"))[0], StopExecutors)
    if is_ready_first:
        # Perhaps the first stop came before there was anything to stop: it is said again.
        assert bench.prepared("A") == [StopExecutors((0, 1), "interrupted by SIGINT")]
        bench.finish("A", status=PartStatus.STOPPED, error="interrupted")
    else:
        bench.refuse("A", RunError("stopped while preparing"))
    assert bench.run.is_over
    assert bench.statuses() == {"A": "cancelled"}


def test_a_prepared_event_after_all_executors_died_changes_nothing() -> None:
    bench = Bench(workflow("A"), cores=1)
    bench.part(0, ExecutorDied(reason="gone"))
    assert bench.prepared("A") == []
    assert bench.statuses() == {"A": "failed"}


def test_the_timeout_of_the_run_stops_running_and_cancels_waiting_workflows() -> None:
    bench = Bench(workflow("A"), workflow("B", depends=["A"]), cores=1, timeout_s=5.0)
    bench.prepared("A")
    assert bench.run.wake_at_s() == 105.0
    bench.now_s = 105.0
    assert isinstance(bench.feed(Tick())[0], StopExecutors)
    assert bench.run.wake_at_s() is None
    bench.finish("A", status=PartStatus.STOPPED, error="timeout")
    assert bench.run.status is RunStatus.TIMEOUT
    assert bench.statuses() == {"A": "timeout", "B": "cancelled"}
    assert bench.errors()["A"] == "the run's timeout of 5s was over"


def test_a_threshold_that_aborts_ends_the_run_and_is_named_in_the_error() -> None:
    limit = ThresholdPlan(name="errors", limit="<10%", abort_on_fail=True)
    bench = Bench(workflow("A", thresholds=(limit,)), workflow("B"), cores=2)
    bench.prepared("A", "B")
    bench.part(
        bench.executors("A")[0], SlotReport(report=report("A", 0, total=9, failed=9, at_s=3.0))
    )
    bench.now_s = bench.run.wake_at_s()
    assert isinstance(bench.feed(Tick())[0], StopExecutors)
    bench.finish("A", status=PartStatus.STOPPED, error="x")
    bench.finish("B", status=PartStatus.STOPPED, error="x")
    assert bench.run.aborted_by == "A"
    assert bench.run.status is RunStatus.FAILED
    errors = bench.errors()
    assert errors["A"] == "stopped by its threshold errors <10%, was 100%"
    assert errors["B"] == "stopped by the threshold of A: errors <10%, was 100%"


def test_bad_input_found_by_an_executor_voids_a_run_in_which_nothing_started() -> None:
    bench = Bench(workflow("A"), workflow("B"), cores=2)
    [stop] = bench.refuse("A", InputError("no such file"))
    assert isinstance(stop, StopExecutors)
    bench.refuse("B", RunError("stopped while preparing"))
    assert bench.run.is_over
    assert str(bench.run.input_error) == "no such file"


def test_bad_input_found_after_a_workflow_ran_fails_only_its_own_workflow() -> None:
    bench = Bench(workflow("A"), workflow("B"), cores=2)
    bench.prepared("B")
    assert bench.refuse("A", InputError("no such file")) == []
    bench.finish("B")
    assert bench.run.input_error is None
    assert bench.run.status is RunStatus.PARTIAL


def _provider(name: str, *, to: str) -> WorkflowPlan:
    states = (StatePlan(name="token", kind=StateKind.PROVIDE, workflows=(to,), keys=("token",)),)
    return workflow(name, states=states)


def _user(name: str, *, of: str, is_required: bool) -> WorkflowPlan:
    use = StatePlan(
        name="take",
        kind=StateKind.USE,
        workflows=(of,),
        keys=("token",),
        required=("token",) if is_required else (),
    )
    return workflow(name, depends=[of], states=(use,))


def test_a_provided_value_reaches_the_workflow_that_uses_it() -> None:
    bench = Bench(_provider("A", to="B"), _user("B", of="A", is_required=True), cores=1)
    bench.prepared("A")
    bench.finish("A", provided=Provided(states={"token": b"secret"}))
    received = decode_received(bench.received["B"])
    assert received.uses["take"]["token"].chunks == (b"secret",)


def test_a_required_value_that_was_not_provided_fails_the_workflow() -> None:
    bench = Bench(
        _provider("A", to="B"),
        _user("B", of="A", is_required=True),
        workflow("C", depends=["B"]),
        cores=1,
    )
    bench.prepared("A")
    bench.finish("A")
    assert bench.run.is_over
    assert bench.statuses() == {"A": "completed", "B": "failed", "C": "cancelled"}
    assert "finished without providing it" in (bench.errors()["B"] or "")


def test_an_illegal_move_raises_an_invariant_error() -> None:
    bench = Bench(workflow("A"), cores=1)
    bench.prepared("A")
    with pytest.raises(InvariantError, match="A: RUNNING -> RUNNING"):
        bench.feed(WorkflowPrepared("A"))


# --- by chance ---------------------------------------------------------------------------


@st.composite
def dags(draw: st.DrawFn) -> list[WorkflowPlan]:
    plans: list[WorkflowPlan] = []
    for index in range(draw(st.integers(1, 6))):
        names = [plan.name for plan in plans]
        plans.append(
            workflow(
                f"W{index}",
                depends=draw(st.sets(st.sampled_from(names))) if names else (),
                vus=draw(st.integers(1, 8)),
                priority=draw(st.sampled_from(list(Priority))),
                is_test=draw(st.booleans()),
            )
        )
    return plans


@settings(max_examples=300)
@given(plans=dags(), cores=st.integers(1, 6), seed=st.integers(0, 2**32), gloom=st.floats(0, 1))
def test_any_run_ends_with_a_status_for_every_workflow_and_all_cores_free(
    plans: list[WorkflowPlan], cores: int, seed: int, gloom: float
) -> None:
    """Events come in any order; slots finish, fail or die; a signal may interrupt."""
    rng = random.Random(seed)
    timeout_s = rng.choice([None, 50.0])
    bench = Bench(*plans, cores=cores, timeout_s=timeout_s)
    for _ in range(2000):
        if bench.run.is_over:
            break
        bench.now_s += rng.random()
        assert bench.slots or bench.preparing, "nobody is busy, and the run is not over"
        if rng.random() < 0.03 * gloom:
            bench.feed(RunInterrupted("SIGINT"))
            continue
        wake_at_s = bench.run.wake_at_s()
        if wake_at_s is not None and bench.now_s >= wake_at_s:
            bench.feed(Tick())
            continue
        if bench.preparing and rng.random() < 0.5:
            name = rng.choice(sorted(bench.preparing))
            if rng.random() < 0.1 * gloom:
                bench.refuse(name, RunError("setup raised"))
            elif bench.executors(name):
                bench.prepared(name)
            else:
                bench.preparing.discard(name)
            continue
        running = [e for e, (name, _) in bench.slots.items() if name not in bench.preparing]
        if not running:
            continue
        executor = rng.choice(sorted(running))
        name, slot = bench.slots[executor]
        if rng.random() < 0.1 * gloom:
            bench.part(executor, ExecutorDied(reason="dead"))
        elif rng.random() < 0.3:
            bench.part(executor, SlotReport(report=report(name, slot)))
        else:
            status = PartStatus.FAILED if rng.random() < 0.1 * gloom else PartStatus.COMPLETED
            done = SlotFinished(status=status, report=report(name, slot, at_s=2.0), error=None)
            bench.part(executor, done)
    assert bench.run.is_over
    assert not bench.slots
    order: dict[str, int] = {}
    for index, effect in enumerate(bench.log):
        if isinstance(effect, PrepareWorkflow):
            assert effect.workflow not in order, "prepared twice"
            order[effect.workflow] = index
    outcomes = {outcome.stats.plan.name: outcome for outcome in bench.run.outcomes()}
    for plan in plans:
        if plan.name in order:
            assert all(outcomes[name].status is RunStatus.COMPLETED for name in plan.depends)
            assert all(order[name] < order[plan.name] for name in plan.depends)
            assert 1 <= outcomes[plan.name].cores <= min(cores, plan.vus)
            assert plan.is_test or outcomes[plan.name].cores == 1
        else:
            assert outcomes[plan.name].status is not RunStatus.COMPLETED
            assert outcomes[plan.name].error
