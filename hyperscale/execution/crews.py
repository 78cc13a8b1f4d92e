"""Makes the virtual users of a slot: when it is prepared, and more if its load is raised."""

from typing import Any

from hyperscale.clients import ClientHub
from hyperscale.errors import RunError
from hyperscale.execution.alternatives import SlotChoices
from hyperscale.execution.capacity import memory_limit, own_descriptor_limit, refuse_excess
from hyperscale.execution.feeds import slot_feeds
from hyperscale.execution.hook_calls import is_once
from hyperscale.execution.lifecycle_hooks import LifecycleHooks
from hyperscale.execution.pacing import ClosedPacing, pacing_of
from hyperscale.execution.protocol import PrepareSlot, SlotRole
from hyperscale.execution.slot_clock import SlotClock
from hyperscale.execution.static import NativeCrew, compile_static
from hyperscale.execution.tally import CheckTally, MetricTally, Tallies
from hyperscale.execution.user_errors import HOOK_ERRORS, failure
from hyperscale.execution.virtual_users import UserCrew, VirtualUser
from hyperscale.graph import Blueprint, Workflow
from hyperscale.graph.workflow import attach, set_attribute
from hyperscale.plan import Connections, MetricKind, share


def make_instance(
    assignment: PrepareSlot,
    design: Blueprint,
    hub: ClientHub,
    *,
    number: int,
    context: dict[str, Any],
    uses: dict[str, dict[str, Any]],
) -> Workflow:
    """Make the workflow instance of user `number` of the slot. Raises RunError."""
    slot = assignment.slot
    try:
        instance = design.workflow()
    except HOOK_ERRORS as error:
        raise failure(RunError, f"{design.plan.name}() failed", error) from error
    attach(
        instance,
        client=hub.client(number, instance),
        context=dict(context),
        received=uses,
        vu=0
        if assignment.role is SlotRole.TEAR_DOWN
        else assignment.plan.first_vu + slot + number * assignment.slots,
    )
    return instance


class CrewMaker:
    """Makes the users of one slot."""

    def __init__(
        self, assignment: PrepareSlot, clock: SlotClock, hub: ClientHub, hooks: LifecycleHooks
    ) -> None:
        self._assignment = assignment
        self._clock = clock
        self._hub = hub
        self._hooks = hooks

    @property
    def vus(self) -> int:
        """How many users the slot has at most, by the changes so far. Raises InputError if this
        machine cannot have as many."""
        assignment, design = self._assignment, self._hooks.design
        if assignment.role is SlotRole.TEAR_DOWN:
            return 0
        vus = share(self._clock.schedule.vus, assignment.slots, assignment.slot)
        if any(hook.protocol is not None for layer in design.layers for hook in layer):
            limits = [memory_limit()]
            if assignment.plan.connections is not Connections.SHARED:
                limits.append(own_descriptor_limit())
            refuse_excess(f"{assignment.workflow}.vus", vus, *limits)
        return vus

    def users(self, numbers: range) -> list[VirtualUser]:
        """Make users of the slot; the first one has the instance that setup hooks ran on."""
        hooks, program = self._hooks, self._hooks.program
        users = []
        for number in numbers:
            if number == 0:
                users.append(VirtualUser(hooks.instance, remembers=True))
                continue
            instance = make_instance(
                self._assignment,
                hooks.design,
                self._hub,
                number=number,
                context=hooks.instance.context,
                uses=hooks.received,
            )
            for name, value in hooks.shared.items():
                set_attribute(instance, name, value)
            users.append(VirtualUser(instance, remembers=program.remembers))
        return users

    def closed_pacing(self) -> ClosedPacing:
        """Make the pacing of users that looped without a pause."""
        assignment = self._assignment
        return ClosedPacing(
            assignment.plan, self._clock, slots=assignment.slots, slot=assignment.slot
        )

    def crew(self) -> UserCrew | NativeCrew:
        """Make the crew: a native program if every step is static, else users in Python."""
        assignment, clock, vus = self._assignment, self._clock, self.vus
        plan, slots, slot = assignment.plan, assignment.slots, assignment.slot
        design, outcomes = self._hooks.design, self._hooks.outcomes
        has_load = assignment.role is not SlotRole.TEAR_DOWN
        drawn = 0 if assignment.rows is None else assignment.rows.first
        iterations = assignment.iterations
        if iterations is None and plan.iterations is not None and has_load:
            iterations = share(plan.iterations, slots, slot)
        if assignment.static and not assignment.trace and has_load:
            static = compile_static(
                design, self._hub, assignment, clock, vus=vus, iterations=iterations
            )
            if static is not None:
                return static
        return UserCrew(
            self._hooks.program,
            outcomes,
            tallies=Tallies(
                [CheckTally(hook.name) for hook in design.checks],
                [
                    MetricTally(hook.name, hook.metric_kind or MetricKind.COUNT)
                    for hook in design.metrics
                ],
            ),
            # A slot without users runs setup and teardown hooks all the same.
            users=self.users(range(vus)),
            pacing=pacing_of(plan, clock, outcomes.recorder, slots=slots, slot=slot),
            feeds=slot_feeds(assignment, design.workflow),
            choices=SlotChoices(plan, design.index, slots=slots, slot=slot, drawn=drawn) or None,
            iterations=iterations,
            is_once=is_once(design),
        )
