"""Executor processes for tests: write a workflow, run it, read its reports."""

import asyncio
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import uvloop

from hyperscale.execution.pool import ExecutorPool
from hyperscale.execution.protocol import (
    ExecutorDied,
    ExecutorEvent,
    ExecutorOutput,
    PrepareSlot,
    SlotFinished,
    SlotReport,
    SlotSetUp,
    role_of,
)
from hyperscale.graph import build_plan, collect, load_module
from hyperscale.plan import WorkflowPlan
from tests.lab.reports import CheckReport, MetricReport, PartReport, StepReport, read

HEADER = """
import asyncio, os, sys, time
from hyperscale.graph import (
    Provide, Use, Workflow, action, check, depends, metric, setup, state, step, teardown,
)
from hyperscale.testing import CustomResult, HTTPResponse, URL

class Result(CustomResult):
    def __init__(self, value=None, ok=True):
        self.value = value
        self.ok = ok

def log(*words):
    with open(LOG, "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")
"""

SLEEPER = """
    class Sleeper(Workflow):
        vus = 2
        duration = "60s"

        @step()
        async def nap(self) -> Result:
            log("napping", os.getpid())
            await asyncio.sleep(60)

        @teardown(per="executor")
        async def close(self):
            log("teardown")
"""


class Outcome:
    """The events of one executor while it had a slot of a workflow."""

    def __init__(self) -> None:
        self.reports: list[PartReport] = []
        self.finished: SlotFinished | None = None
        self.died: ExecutorDied | None = None
        self.output = ""
        self.events: list[ExecutorEvent] = []

    def take(self, event: ExecutorEvent) -> None:
        self.events.append(event)
        match event:
            case SlotReport():
                self.reports.append(read(event.report))
            case SlotFinished():
                self.finished = event
            case ExecutorDied():
                self.died = event
            case ExecutorOutput():
                self.output += event.text

    @property
    def is_over(self) -> bool:
        return self.finished is not None or self.died is not None

    @property
    def report(self) -> PartReport:
        assert self.finished is not None, self.died
        return read(self.finished.report)

    def step(self, name: str) -> StepReport:
        return next(step for step in self.report.steps if step.name == name)

    def check(self, name: str) -> CheckReport:
        return next(check for check in self.report.checks if check.name == name)

    def metric(self, name: str) -> MetricReport:
        return next(metric for metric in self.report.metrics if metric.name == name)


class Bench:
    """A pool and the events of its executors; `changed` is notified of each event."""

    def __init__(self, lab: "Lab", pool: ExecutorPool, outcomes: list[Outcome]) -> None:
        self.lab = lab
        self.pool = pool
        self.outcomes = outcomes
        self.changed = asyncio.Condition()

    @property
    def ids(self) -> list[int]:
        return list(range(self.pool.size))

    async def prepare(self, workflow: str, *, context: bytes = b"", static: bool = True) -> None:
        for index in self.ids:
            self.outcomes[index] = Outcome()
        assignments = [
            self.assignment(workflow, index, context=context, static=static) for index in self.ids
        ]
        await self.pool.prepare(self.ids, assignments)

    def assignment(
        self, workflow: str, index: int, *, context: bytes = b"", static: bool = True
    ) -> PrepareSlot:
        return PrepareSlot(
            bundle="",
            file=str(self.lab.file),
            workflow=workflow,
            plan=self.lab.plan(workflow),
            slot=index,
            slots=self.pool.size,
            role=role_of(self.lab.plan(workflow), index, b""),
            context=context,
            static=static,
        )

    def share(self, event: ExecutorEvent) -> None:
        """Share what setup left once every slot waits for it."""
        if isinstance(event, SlotSetUp):
            said = [[e for e in o.events if isinstance(e, SlotSetUp)] for o in self.outcomes]
            if all(said):
                left = next(e.context for events in said for e in events if e.context)
                self.pool.share_context(self.ids, left)

    async def run(
        self, workflow: str, *, context: bytes = b"", static: bool = True
    ) -> list[Outcome]:
        await self.prepare(workflow, context=context, static=static)
        self.pool.start(self.ids)
        return await self.ended()

    async def begin(self, workflow: str, *, until: str) -> None:
        """Prepare and start a workflow; wait until it wrote `until` to the log."""
        await self.prepare(workflow)
        self.pool.start(self.ids)
        await self.lab.logged(until)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30), self.changed:
            await self.changed.wait_for(condition)

    async def ended(self) -> list[Outcome]:
        await self.until(lambda: all(outcome.is_over for outcome in self.outcomes))
        return self.outcomes


class Lab:
    """One test file and the executors that run it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "flows.py"
        self.log_file = directory / "log.txt"
        self._plans: dict[str, WorkflowPlan] = {}

    def write(self, source: str) -> None:
        """Write the test file; `log(...)` in it appends a line to `self.log()`."""
        header = HEADER + f"LOG = {str(self.log_file)!r}\n"
        self.file.write_text(header + textwrap.dedent(source))
        classes = collect(load_module(self.file))
        plan = build_plan(self.file, classes)
        self._plans = {workflow.name: workflow for workflow in plan.workflows}

    def plan(self, workflow: str) -> WorkflowPlan:
        return self._plans[workflow]

    def change_plan(self, workflow: str, **changes: object) -> None:
        self._plans[workflow] = msgspec.structs.replace(self._plans[workflow], **changes)

    def log(self) -> list[str]:
        return self.log_file.read_text().splitlines() if self.log_file.exists() else []

    async def logged(self, text: str) -> None:
        async with asyncio.timeout(20):
            while not any(text in line for line in self.log()):
                await asyncio.sleep(0.01)

    def work(
        self,
        work: Callable[[Bench], Awaitable[None]],
        *,
        executors: int = 1,
        log_dir: Path | None = None,
        loop: str = "asyncio",
    ) -> None:
        """Run `work` with a pool, which is closed afterwards."""

        async def main() -> None:
            outcomes = [Outcome() for _ in range(executors)]
            wakers: set[asyncio.Task[None]] = set()

            async def wake() -> None:
                async with bench.changed:
                    bench.changed.notify_all()

            def take(index: int, event: ExecutorEvent) -> None:
                outcomes[index].take(event)
                bench.share(event)
                task = asyncio.ensure_future(wake())
                wakers.add(task)
                task.add_done_callback(wakers.discard)

            async with ExecutorPool(executors, on_event=take, log_dir=log_dir) as pool:
                bench = Bench(self, pool, outcomes)
                await work(bench)

        if loop == "uvloop":
            uvloop.run(main())
        else:
            asyncio.run(main())

    def run(
        self, workflow: str, *, executors: int = 1, context: bytes = b"", static: bool = True
    ) -> list[Outcome]:
        """Run one workflow to its end, split over `executors`."""
        found: list[Outcome] = []

        async def work(bench: Bench) -> None:
            found.extend(await bench.run(workflow, context=context, static=static))

        self.work(work, executors=executors)
        return found
