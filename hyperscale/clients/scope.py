"""The step that is running: client calls count their traffic for it.

A context variable, because steps of one virtual user run concurrently and user code may
start tasks of its own; both inherit it.
"""

from contextvars import ContextVar
from typing import NamedTuple


class StepScope(NamedTuple):
    step: int  # index of the step in the workflow's recorder
    sees_body: bool  # False lets the engine drop response bodies unread


# Calls made outside any step, such as in a Provide hook, are counted for no step.
NO_STEP = StepScope(step=2**32 - 1, sees_body=True)

current_step: ContextVar[StepScope] = ContextVar("hyperscale_step")
