"""Validates workflow classes, each by itself and all together, before anything runs.

The first error raises an InputError that names file, class and method; what is legal but probably
a mistake becomes a warning.
"""

import ast
import difflib
import inspect
from collections.abc import Iterable, Mapping, Sequence

from hyperscale.errors import InputError
from hyperscale.graph.analysis import may_fill_context
from hyperscale.graph.columns import validate_columns
from hyperscale.graph.hooks import DECORATORS, Declared
from hyperscale.graph.reading import ReadHook, Reading, file_of
from hyperscale.graph.returns import Returned, returned
from hyperscale.graph.settings import read_settings
from hyperscale.graph.source import class_node, first_line
from hyperscale.graph.spelling import refuse_misspelt
from hyperscale.graph.workflow import Workflow
from hyperscale.plan import Per, StateKind, StepKind
from hyperscale.plan.alternatives import groups_of, left_out
from hyperscale.plan.dag import find_cycle


def validate(readings: Sequence[Reading]) -> list[str]:
    """Return warnings. Raises InputError for the first class that is not valid."""
    by_name: dict[str, Reading] = {}
    for reading in readings:
        other = by_name.setdefault(reading.name, reading)
        if other is not reading:
            raise InputError(
                f"{reading.where} and {other.where}: two workflows have the same name",
                hint="a workflow is known by its class name; rename one of them",
            )
    warnings = []
    for reading in readings:
        warnings += _validate_class(reading, by_name)
    _validate_depends(by_name)
    for reading in readings:
        warnings += _validate_states(reading, by_name)
    _refuse_measuring_nothing(readings)
    return warnings


def _refuse_measuring_nothing(readings: Sequence[Reading]) -> None:
    """Refuse a test without any test step, unless all it does is declared as actions."""
    if any(reading.is_test for reading in readings):
        return
    for reading in readings:
        for hook in reading.hooks:
            if hook.declared.decorator == "step" and hook.kind is StepKind.ACTION:
                raise InputError(
                    f"{hook.where}: no step of the test returns a result, so nothing would be "
                    "measured",
                    hint="return the response of a client call, as `return await "
                    "self.client.http.get(url)`, or mark the steps @action() if they only prepare",
                )


# --- one class ---------------------------------------------------------------------------


def _validate_class(reading: Reading, by_name: Mapping[str, Reading]) -> list[str]:
    if not reading.step_order():
        raise InputError(
            f"{reading.where}: a workflow without a step has nothing to run",
            hint="mark an async method with @step()",
        )
    _refuse_replaced_hooks(reading)
    refuse_misspelt(reading)
    read_settings(reading)
    _validate_constructor(reading)
    for hook in reading.hooks:
        _validate_hook(reading, hook)
        _validate_after(reading, hook, by_name)
    if cycle := find_cycle(reading.step_order()):
        raise InputError(
            f"{reading.where}: steps wait for each other: {' -> '.join(cycle)}",
            hint="take one of these names out of its @step(…)",
        )
    _validate_alternatives(reading)
    _refuse_running_once(reading)
    warnings = [
        f"{reading.at(name)}: replaces a decorated method of a base and is not decorated "
        "itself, so it does not run"
        for name in reading.dropped
    ]
    validate_columns(reading)
    for hook in reading.hooks:
        warnings += _validate_parameters(reading, hook)
        if hook.declared.decorator == "step" and hook.kind is StepKind.ACTION:
            warnings.append(
                f"{hook.where}: its return annotation is no result type, so it is an action: not "
                "measured as a test, and alone it gets one core (return the response of a client "
                "call, or mark it @action())"
            )
    return warnings


def _refuse_replaced_hooks(reading: Reading) -> None:
    """Refuse two hooks of one name in one class: the second replaces the first without a word."""
    for base in reading.cls.__mro__:
        node = class_node(base)
        if base in (object, Workflow) or node is None:
            continue
        methods: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        for method in node.body:
            if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            first = methods.setdefault(method.name, method)
            is_hook = isinstance(vars(base).get(method.name), Declared) or _looks_decorated(first)
            if first is not method and is_hook:
                raise InputError(
                    f"{file_of(base)}:{first_line(method)}: {base.__name__}.{method.name}: "
                    f"replaces the {method.name} of line {first_line(first)}, which never runs",
                    hint="give each its own name",
                )


def _looks_decorated(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return True if one of the decorators has the name of one of ours."""
    for decorator in method.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = getattr(called, "id", None) or getattr(called, "attr", None)
        if name in DECORATORS:
            return True
    return False


def _validate_alternatives(reading: Reading) -> None:
    """Refuse weights without alternatives, and steps that no choice of alternatives would run."""
    after, hooks = reading.step_order(), {hook.name: hook for hook in reading.hooks}
    groups = groups_of(after, (hook.name for hook in reading.hooks if hook.weight is not None))
    for names in groups:
        if len(names) == 1:
            beside = f"after {', '.join(after[names[0]])}" if after[names[0]] else "at the start"
            raise InputError(
                f"{hooks[names[0]].where}: has a weight, but no other step {beside} has one",
                hint="of steps with a weight that come after the same steps, each iteration runs "
                "one: give its alternatives weights too, or remove this one",
            )
        never = frozenset.intersection(*(left_out(after, names, chosen) for chosen in names))
        for name in after:
            if name in never:
                raise InputError(
                    f"{hooks[name].where}: never runs, because it waits for steps of more than "
                    f"one of the alternatives {', '.join(names)}",
                    hint="an iteration runs one of the alternatives: wait for the alternatives "
                    "themselves to run after any of them",
                )


def _refuse_running_once(reading: Reading) -> None:
    """Refuse a class whose steps make requests, but would run once because none is measured."""
    if reading.is_test or reading.cls.iterations is not None:
        return
    for hook in reading.hooks:
        is_step = hook.declared.decorator == "step"
        if is_step and returned(hook.function, reading.cls).makes_requests:
            raise InputError(
                f"{hook.where}: makes requests, but no step of {reading.name} returns a response: "
                "nothing would be measured, and the steps would run only once",
                hint="return the response, as `return await self.client.http.get(url)`; or mark "
                "every step @action() if it should run once",
            )


def _validate_constructor(reading: Reading) -> None:
    try:
        inspect.signature(reading.cls).bind()
    except TypeError as error:
        raise InputError(
            f"{reading.at('__init__')}: {error}",
            hint=f"a virtual user is made by calling {reading.name}(): give every parameter a "
            "default",
        ) from error


def _validate_hook(reading: Reading, hook: ReadHook) -> None:
    decorator = f"@{hook.declared.decorator}()"
    if hook.declared.name != hook.name:
        raise InputError(
            f"{hook.where}: {hook.name} and {hook.declared.name} are the same decorated method",
            hint="write a method of its own for each step",
        )
    if hook.declared.per not in (*Per, *(per.value for per in Per)):
        raise InputError(
            f"{hook.where}: per={hook.declared.per!r} is unknown",
            hint='a hook runs per "workflow" (the default), "executor" or "vu"',
        )
    if inspect.isgeneratorfunction(hook.function) or inspect.isasyncgenfunction(hook.function):
        raise InputError(f"{hook.where}: {decorator} cannot be a generator", hint="return a value")
    in_iteration = hook.kind in (StepKind.TEST, StepKind.ACTION)
    if in_iteration and not hook.is_async:
        raise InputError(
            f"{hook.where}: {decorator} must be async",
            hint=f"write `async def {hook.name}(self, …)`",
        )
    if in_iteration:
        _validate_requests(hook, returned(hook.function, reading.cls))
    for parameter in hook.parameters:
        part = parameter.optimized
        if part is None:
            continue
        if parameter.required:
            raise InputError(
                f"{hook.where}: {parameter.name} is a request part without a value",
                hint=f'give it a default, as `{parameter.name}: URL = "https://…"`',
            )


def _validate_requests(hook: ReadHook, seen: Returned) -> None:
    """Refuse a step that returns a request it did not await, or whose annotation is wrong."""
    if seen.unawaited_line is not None:
        raise InputError(
            f"{hook.where}: returns a request without awaiting it, in line {seen.unawaited_line}",
            hint="write `return await self.client.http.…`",
        )
    is_step = hook.declared.decorator == "step" and hook.kind is StepKind.ACTION
    if is_step and seen.response:
        raise InputError(
            f"{hook.where}: returns the response of a request, but its return annotation is "
            f"{_annotation(hook)}",
            hint="annotate it -> HTTPResponse, or mark it @action() if it should not be measured",
        )


def _annotation(hook: ReadHook) -> str:
    annotation = hook.function.__annotations__["return"]
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _validate_after(reading: Reading, hook: ReadHook, by_name: Mapping[str, Reading]) -> None:
    steps = reading.step_order()
    for name in hook.after:
        if name in steps:
            continue
        if any(other.name == name for other in reading.hooks):
            raise InputError(
                f"{hook.where}: waits for {name!r}, which is no step of the iteration",
                hint=f"steps are {', '.join(steps)}",
            )
        if name in reading.dropped:
            raise InputError(
                f"{hook.where}: waits for {name!r}, which {reading.name} or a base class replaces "
                "by a method that is no step",
                hint=f"put @step() above the new {name} too",
            )
        owners = [other.name for other in by_name.values() if name in other.step_order()]
        if owners:
            raise InputError(
                f"{hook.where}: waits for {name!r}, a step of {', '.join(owners)}; steps know only "
                "their own class",
                hint="pass values between workflows with @state and @depends",
            )
        raise InputError(
            f"{hook.where}: waits for unknown step {name!r}", hint=_nearest(name, steps)
        )


def _validate_parameters(reading: Reading, hook: ReadHook) -> list[str]:
    """Check that each parameter without a default gets a value, and each result is waited for."""
    warnings = []
    steps, waited_for = reading.step_order(), reading.waited_for(hook)
    used = {p.name for s in reading.states if s.state is StateKind.USE for p in s.parameters}
    for parameter in hook.parameters:
        if parameter.optimized is not None or parameter.name in waited_for | used:
            continue
        if parameter.name in steps:
            problem = f"{hook.where}: takes the result of {parameter.name!r} without waiting for it"
            hint = f'write @{hook.declared.decorator}("{parameter.name}")'
            if hook.kind not in (StepKind.TEST, StepKind.ACTION):
                hint = "only steps, checks and metrics take results"
            if parameter.required:
                raise InputError(problem, hint=hint)
            warnings.append(f"{problem}; it gets its default ({hint})")
        elif parameter.required and not (parameter.by_name and _may_get_context(reading, hook)):
            raise InputError(
                f"{hook.where}: nothing gives a value to its parameter {parameter.name!r}",
                hint=f"name a step it waits for ({', '.join(steps)}), or give it a default",
            )
    return warnings


def _may_get_context(reading: Reading, hook: ReadHook) -> bool:
    """Return True if the context, which is known only at run time, may hold values for a hook."""
    return hook.state is None and bool(reading.depends or may_fill_context(reading))


# --- classes together --------------------------------------------------------------------


def _validate_depends(by_name: Mapping[str, Reading]) -> None:
    for reading in by_name.values():
        for name in reading.depends:
            if name not in by_name:
                raise InputError(
                    f"{reading.where}: @depends on unknown workflow {name!r}",
                    hint=_nearest(name, by_name),
                )
    order = {reading.name: reading.depends for reading in by_name.values()}
    if cycle := find_cycle(order):
        raise InputError(
            f"{by_name[cycle[0]].where}: workflows depend on each other: {' -> '.join(cycle)}",
            hint="take one of these names out of its @depends(…)",
        )


def _validate_states(reading: Reading, by_name: Mapping[str, Reading]) -> list[str]:
    warnings = []
    for hook in reading.states:
        if not hook.workflows:
            warnings.append(f"{hook.where}: @state() names no workflow, so nothing flows")
        for name in hook.workflows:
            if name == reading.name:
                raise InputError(f"{hook.where}: @state names its own workflow {name!r}")
            if name not in by_name:
                raise InputError(
                    f"{hook.where}: @state names unknown workflow {name!r}",
                    hint=_nearest(name, by_name),
                )
            if hook.state is StateKind.PROVIDE:
                warnings += _validate_provided(reading, hook, by_name[name])
            elif name not in reading.depends:
                raise InputError(
                    f"{hook.where}: uses a value of {name}, but {reading.name} does not depend on "
                    "it",
                    hint=f'put @depends("{name}") above class {reading.name}',
                )
        if hook.state is StateKind.USE:
            warnings += _validate_use(reading, hook, by_name)
    return warnings


def _validate_provided(reading: Reading, hook: ReadHook, user: Reading) -> list[str]:
    takes = any(
        reading.name in use.workflows and hook.name in {p.name for p in use.parameters}
        for use in user.states
        if use.state is StateKind.USE
    )
    if takes:
        return []
    return [
        f"{hook.where}: provides {hook.name!r} to {user.name}, which does not use it; it needs "
        f'@state("{reading.name}") on a method with a parameter {hook.name!r}, -> Use[…]'
    ]


def _validate_use(reading: Reading, hook: ReadHook, by_name: Mapping[str, Reading]) -> list[str]:
    offered = {
        state.name
        for name in hook.workflows
        for state in by_name[name].states
        if state.state is StateKind.PROVIDE and reading.name in state.workflows
    }
    warnings = []
    for parameter in hook.parameters:
        if parameter.name in offered:
            continue
        problem = (
            f"{hook.where}: {', '.join(hook.workflows) or 'no workflow'} provides no "
            f"{parameter.name!r} to {reading.name}"
        )
        hint = f"it is offered {', '.join(offered) or 'nothing'}"
        if parameter.required:
            raise InputError(problem, hint=f"{hint}; or give the parameter a default")
        warnings.append(f"{problem}, so it always has its default ({hint})")
    return warnings


def _nearest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there is {', '.join(known) or 'none'}"
