"""`LocalRunner`: the same run as `hyperscale run`, from Python."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, Unpack

import msgspec

from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError
from hyperscale.graph import Overrides, Workflow, build_plan
from hyperscale.graph.changes import ScaleTarget, pause, resume, scale_to
from hyperscale.graph.planning import plan_workflow
from hyperscale.graph.reading import read
from hyperscale.graph.settings import ATTRIBUTES
from hyperscale.graph.values import parse_count
from hyperscale.plan import WorkflowPlan
from hyperscale.reporting.files import ensure_writable
from hyperscale.reporting.outputs import planned_outputs, write_outputs
from hyperscale.reporting.reporter import Sink, as_reporters, submit_all
from hyperscale.reporting.results import RunResult
from hyperscale.runner.control import RunControl
from hyperscale.runner.drive import WORKERS_MAX, RunOptions, drive
from hyperscale.runner.source import (
    READING,
    LoadedTest,
    classes_with_values,
    load_test_classes,
    plan_with_values,
    resolve_hosts,
)
from hyperscale.testing.parameters import GivenParameters, ParameterScope, resolving
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
        self,
        host: str = "localhost",
        port: int = 8080,
        workers: int | None = None,
        *,
        params: Mapping[str, object] | None = None,
    ) -> None:
        """`params` has values for the parameters (`Param`) of the workflows, by name."""
        self.host = host
        self.port = port
        self.params = checked_parameters(params, where="params")
        self.workers = parse_workers(workers, where="workers")
        self._control = RunControl()

    async def scale(self, **target: Unpack[ScaleTarget]) -> None:
        """Change the load of the run under way: `vus=500`, or `rate="500/s"`, and `over="30s"`,
        `workflow=…`. Raises InputError if nothing runs or the change does not fit."""
        await self._control.change(scale_to(**target))

    async def pause(self) -> None:
        """Pause the run under way: users finish their iteration and wait."""
        await self._control.change(pause())

    async def resume(self) -> None:
        """Let a paused run go on where it was."""
        await self._control.change(resume())

    async def run(
        self,
        test_name: str,
        workflows: Iterable[Given | tuple[Iterable[str], Given]],
        terminal_mode: str = "full",
        timeout: str | float | None = None,  # noqa: ASYNC109  the published signature
        *,
        log_level: str = "info",
        reporters: Sequence[Sink] = (),
        out: str | Path | None = None,
    ) -> RunResult:
        """Run the workflows and return their results, partial ones after an interrupt.

        Each is a class or an instance, alone or with tags: `(["tag"], MyWorkflow())`. `out` is the
        directory for the files that `hyperscale run` writes: report.html, results.json, steps.csv,
        junit.xml and what the test printed; without it no file is written. A reporter or file that
        fails leaves a warning on the result and changes nothing else.
        """
        if log_level.upper() not in logging.getLevelNamesMapping():
            raise InputError(f"log_level: {log_level!r} is unknown", hint='use "info" or "debug"')
        job = await asyncio.to_thread(
            load_given, test_name, workflows, where="LocalRunner.run", params=self.params
        )
        out_dir = None if out is None else Path(out)
        options = RunOptions(
            workers=self.workers,
            timeout_s=None if timeout is None else parse_duration_s(timeout, where="timeout"),
            log_level=log_level,
            output_file=None if out_dir is None else out_dir / "output.log",
            control_dir=out_dir,
            control=self._control,
        )
        for _, path in planned_outputs(out_dir, None):
            ensure_writable(path, where="LocalRunner.run: out")
        sinks = as_reporters(list(reporters), where="LocalRunner.run: reporters")
        await resolve_hosts(job.plan)
        with open_ui(terminal_mode) as ui:
            result = (await drive(job, options, ui)).result
            outputs = await asyncio.to_thread(
                write_outputs, result, out_dir=out_dir, output_file=options.output_file
            )
            result = outputs.result
            lost = [failure.error for failure in outputs.failures] + [
                f"{failure.reporter} failed to {failure.stage}: {failure.error}"
                for failure in await submit_all(sinks, result)
            ]
            result = msgspec.structs.replace(result, warnings=[*result.warnings, *lost])
            ui.finish(result)
        return result


def parse_workers(value: object, *, where: str) -> int | None:
    return None if value is None else parse_count(value, where=where, most=WORKERS_MAX)


def checked_parameters(params: object, *, where: str) -> Mapping[str, object]:
    """Return values of parameters by name. Raises InputError."""
    if params is None:
        return {}
    if not isinstance(params, Mapping) or not all(isinstance(name, str) for name in params):
        raise InputError(f"{where}: not a mapping of names to values", hint='as {"base": "…"}')
    return dict(params)


def load_given(
    test_name: str,
    workflows: Iterable[Given | tuple[Iterable[str], Given]],
    *,
    where: str,
    params: Mapping[str, object],
) -> LoadedTest:
    """Load the given workflows with the values of their parameters."""
    given = [_untagged(item, where) for item in workflows]
    if not given:
        raise InputError(f"{where}: no workflows were given", hint="give one or more classes")
    classes = [one if isinstance(one, type) else type(one) for _, one in given]
    scope = ParameterScope(GivenParameters(params))
    with READING, resolving(scope), classes_with_values(classes, params, scope) as current:
        plan = build_plan(test_name, [current[cls] for cls in classes])
        planned = tuple(
            _with_own(base, tags, one, current[cls])
            for base, (tags, one), cls in zip(plan.workflows, given, classes, strict=True)
        )
        plan = plan_with_values(msgspec.structs.replace(plan, workflows=planned), scope)
    return load_test_classes(classes, plan, scope.secrets)


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


def _with_own(
    plan: WorkflowPlan, tags: tuple[str, ...], one: Given, cls: type[Workflow]
) -> WorkflowPlan:
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
            plan = plan_workflow(read(cls), overrides)
    return msgspec.structs.replace(plan, tags=tuple(dict.fromkeys((*plan.tags, *tags))))
