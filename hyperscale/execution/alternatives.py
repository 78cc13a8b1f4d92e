"""Draws the alternatives that each iteration of a slot runs."""

from collections.abc import Mapping

from hyperscale.plan import WorkflowPlan
from hyperscale.plan.alternatives import choices_of


class SlotChoices:
    """The choices of a workflow on one slot. `index` has the place of each step in the recorder."""

    def __init__(
        self, plan: WorkflowPlan, index: Mapping[str, int], *, slots: int, slot: int, drawn: int = 0
    ) -> None:
        self._choices = [
            (choice, [sum(1 << index[name] for name in names) for names in choice.left_out])
            for choice in choices_of(plan)
        ]
        self._slots = slots
        self._next = slot + drawn * slots  # the number of the next iteration, as for rows of feeds

    def __bool__(self) -> bool:
        return bool(self._choices)

    def next(self) -> int:
        """Return the bits of the steps that the next iteration leaves out."""
        number, self._next = self._next, self._next + self._slots
        left_out = 0
        for choice, bits in self._choices:
            left_out |= bits[choice.draw(number)]
        return left_out
