"""`LocalRunner`: the same run as `hyperscale run`, from Python."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError
from hyperscale.graph import Overrides, Workflow, build_plan
from hyperscale.graph.planning import plan_workflow
from hyperscale.graph.reading import read
from hyperscale.graph.settings import ATTRIBUTES, parse_count
from hyperscale.plan import Plan, WorkflowPlan
from hyperscale.reporting.reporter import Sink, as_reporters, submit_all
from hyperscale.reporting.results import RunResult
from hyperscale.runner.drive import WORKERS_MAX, RunOptions, drive
from hyperscale.runner.source import READING, load_test_classes, resolve_hosts
from hyperscale.ui import open_ui

Given: TypeAlias = type[Workflow] | Workflow
"""A workflow class, or an instance whose `vus` and `duration` replace those of its class."""

_PER_INSTANCE = ("vus", "duration")


class LocalRunner:
    """Runs workflows on this machine, over `workers` executors (default: one per core).

        runner = LocalRunner(workers=4)
        result = await runner.run(test_name="shop", workflows=[(["smoke"], Shop())])

    `host` and `port` are accepted because published code passes them. Executors talk to
    their parent over sockets that have no address, so nothing listens there.
    """

    def __init__(
        self, host: str = "localhost", port: int = 8080, workers: int | None = None
    ) -> None:
        self.host = host
        self.port = port
        self.workers = parse_workers(workers, where="workers")

    async def run(
        self,
        test_name: str,
        workflows: Iterable[Given | tuple[Iterable[str], Given]],
        terminal_mode: str = "full",
        timeout: str | float | None = None,  # noqa: ASYNC109  the published signature
        *,
        log_level: str = "info",
        reporters: Sequence[Sink] = (),
    ) -> RunResult:
        """Run the workflows and return their results, partial ones after an interrupt.

        Each is a class or an instance, alone or with tags: `(["tag"], MyWorkflow())`. A
        reporter that fails leaves a warning on the result and changes nothing else.
        """
        if log_level.upper() not in logging.getLevelNamesMapping():
            raise InputError(f"log_level: {log_level!r} is unknown", hint='use "info" or "debug"')
        classes, plan = plan_of(test_name, workflows, where="LocalRunner.run")
        options = RunOptions(
            workers=self.workers,
            timeout_s=None if timeout is None else parse_duration_s(timeout, where="timeout"),
            log_level=log_level,
        )
        sinks = as_reporters(list(reporters), where="LocalRunner.run: reporters")
        job = await asyncio.to_thread(load_test_classes, classes, plan)
        await resolve_hosts(plan)
        with open_ui(terminal_mode) as ui:
            result = (await drive(job, options, ui)).result
            lost = [
                f"{failure.reporter} failed to {failure.stage}: {failure.error}"
                for failure in await submit_all(sinks, result)
            ]
            result = msgspec.structs.replace(result, warnings=[*result.warnings, *lost])
            ui.finish(result)
        return result


def parse_workers(value: object, *, where: str) -> int | None:
    return None if value is None else parse_count(value, where=where, most=WORKERS_MAX)


def plan_of(
    test_name: str, workflows: Iterable[Given | tuple[Iterable[str], Given]], *, where: str
) -> tuple[Sequence[type[Workflow]], Plan]:
    """Return the classes of the given workflows, and their plan."""
    given = [_untagged(item, where) for item in workflows]
    if not given:
        raise InputError(f"{where}: no workflows were given", hint="give one or more classes")
    classes = [one if isinstance(one, type) else type(one) for _, one in given]
    with READING:
        plan = build_plan(test_name, classes)
        planned = tuple(
            _with_own(base, tags, one)
            for base, (tags, one) in zip(plan.workflows, given, strict=True)
        )
    return classes, msgspec.structs.replace(plan, workflows=planned)


def _untagged(
    item: Given | tuple[Iterable[str], Given], where: str
) -> tuple[tuple[str, ...], Given]:
    tags: tuple[str, ...] = ()
    one: object = item
    if isinstance(item, tuple) and len(item) == 2:
        tags, one = (item[0],) if isinstance(item[0], str) else tuple(item[0]), item[1]
    if isinstance(one, Workflow) or (isinstance(one, type) and issubclass(one, Workflow)):
        return tags, one
    raise InputError(
        f"{where}: {item!r} is not a workflow",
        hint='give a class, an instance, or (["tag"], instance)',
    )


def _with_own(plan: WorkflowPlan, tags: tuple[str, ...], one: Given) -> WorkflowPlan:
    """Return the plan with the settings of an instance and the tags given with it."""
    if isinstance(one, Workflow):
        own = {name: value for name, value in vars(one).items() if name in ATTRIBUTES}
        for name in own:
            if name not in _PER_INSTANCE:
                raise InputError(
                    f"{plan.name}.{name}: an instance may only set vus and duration",
                    hint=f"set {name} on the class",
                )
        if own:
            overrides = Overrides(vus=own.get("vus"), duration=own.get("duration"))
            plan = plan_workflow(read(type(one)), overrides)
    return msgspec.structs.replace(plan, tags=tuple(dict.fromkeys((*plan.tags, *tags))))
