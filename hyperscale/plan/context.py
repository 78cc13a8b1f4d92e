"""Context: the values that a workflow passes to the workflows that depend on it.

A part provides values when it ends (`Provided`); the parts of a workflow make one `Namespace`; a
workflow starts with what its dependencies gave it (`ReceivedContext`). Values are bytes here: only
executors, which run user code anyway, encode and decode them.

Both sides of a `@state` must name each other, otherwise nothing is passed. Of several parts the
lowest slot with a value wins; a `Provide[list[T]]` is every part's list in order of slots.
"""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from hyperscale.errors import RunError
from hyperscale.plan.model import StateKind, StatePlan, WorkflowPlan

SETUP_BYTES_MAX = 64 * 1024  # of the `self.context` that setup leaves: every part gets it
CONTEXT_BYTES_MAX = 1024 * 1024  # of one workflow: context is for tokens and ids, not for data


class Provided(Struct, frozen=True, kw_only=True):
    """What one part provided when it ended."""

    slot: int = 0
    states: dict[str, bytes] = {}  # by method; None is left out
    context: dict[str, bytes] = {}  # its `self.context`


class ContextValue(Struct, frozen=True, kw_only=True):
    """One encoded value, or with `is_list` the encoded lists whose items it is made of."""

    chunks: tuple[bytes, ...]
    is_list: bool = False


class Namespace(Struct, frozen=True, kw_only=True):
    """What a finished workflow provides to the workflows that depend on it."""

    states: dict[str, ContextValue] = {}
    context: dict[str, ContextValue] = {}


class ReceivedContext(Struct, frozen=True, kw_only=True):
    """What a workflow starts with."""

    context: dict[str, ContextValue] = {}  # `self.context`
    uses: dict[str, dict[str, ContextValue]] = {}  # by method, by parameter


class MissingContextError(RunError):
    """A workflow needs a value that no dependency provided."""


def namespace_of(workflow: WorkflowPlan, parts: Iterable[Provided]) -> Namespace:
    """Merge what the parts of a finished workflow provided, in any order."""
    ordered = sorted(parts, key=lambda part: part.slot)
    states = {}
    for plan in workflow.states:
        chunks = tuple(part.states[plan.name] for part in ordered if plan.name in part.states)
        if plan.kind is StateKind.PROVIDE and chunks:
            kept = chunks if plan.is_list else chunks[:1]
            states[plan.name] = ContextValue(chunks=kept, is_list=plan.is_list)
    context: dict[str, ContextValue] = {}
    # Only a non-test workflow is one part, so only there is "its context" one thing.
    if not workflow.is_test:
        for part in ordered:
            for key, value in part.context.items():
                context.setdefault(key, ContextValue(chunks=(value,)))
    _limit(workflow.name, {**context, **states})
    return Namespace(states=states, context=context)


def received_by(
    workflow: WorkflowPlan, workflows: Iterable[WorkflowPlan], finished: Mapping[str, Namespace]
) -> ReceivedContext:
    """Return what `workflow` starts with, given the namespaces of finished workflows.

    `self.context` holds the context of non-test dependencies, and over it everything that was
    provided to the workflow. Raises MissingContextError for a used value without a default that was
    not provided.
    """
    plans = {plan.name: plan for plan in workflows}
    context: dict[str, ContextValue] = {}
    for name in workflow.depends:
        if name in finished:
            context.update(finished[name].context)
    uses: dict[str, dict[str, ContextValue]] = {}
    for use in workflow.states:
        if use.kind is not StateKind.USE:
            continue
        given = {}
        for name in use.workflows:  # the last one named wins
            if name in workflow.depends and name in finished and name in plans:
                states = finished[name].states
                keys = contract(plans[name], use, workflow.name)
                given.update({key: states[key] for key in keys if key in states})
        for key in use.required:
            if key not in given:
                providers = " or ".join(use.workflows) or "no workflow"
                raise MissingContextError(
                    f"{workflow.name}.{use.name}: needs {key!r}, and "
                    f"{providers} finished without providing it",
                    hint=f"give {key!r} a default, or see why it was not provided",
                )
        uses[use.name] = given
        context.update(given)
    return ReceivedContext(context=context, uses=uses)


def contract(provider: WorkflowPlan, use: StatePlan, user: str) -> list[str]:
    """Return the keys that `provider` passes to `use`, a `@state` of the workflow `user`."""
    if provider.name not in use.workflows:
        return []
    return [
        plan.name
        for plan in provider.states
        if plan.kind is StateKind.PROVIDE and user in plan.workflows and plan.name in use.keys
    ]


def encode_provided(provided: Provided) -> bytes:
    return msgspec.msgpack.encode(provided)


def decode_provided(payload: bytes) -> Provided:
    return msgspec.msgpack.decode(payload, type=Provided) if payload else Provided()


def encode_received(received: ReceivedContext) -> bytes:
    return msgspec.msgpack.encode(received)


def decode_received(payload: bytes) -> ReceivedContext:
    return msgspec.msgpack.decode(payload, type=ReceivedContext) if payload else ReceivedContext()


def encode_set_up(values: dict[str, bytes]) -> bytes:
    """Encode the `self.context` that setup left; never empty."""
    return msgspec.msgpack.encode(values)


def decode_set_up(payload: bytes) -> dict[str, bytes]:
    return msgspec.msgpack.decode(payload, type=dict[str, bytes])


def _limit(workflow: str, values: Mapping[str, ContextValue]) -> None:
    sizes = {key: sum(len(chunk) for chunk in value.chunks) for key, value in values.items()}
    total = sum(sizes.values())
    if total > CONTEXT_BYTES_MAX:
        largest = max(sizes, key=lambda key: sizes[key])
        raise RunError(
            f"{workflow}: provides {total:,} bytes of context, more than {CONTEXT_BYTES_MAX:,}; "
            f"the largest is {largest!r} with {sizes[largest]:,}",
            hint="provide what identifies the data, not the data",
        )
