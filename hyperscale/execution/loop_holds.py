"""Finds out which code of the test holds the event loop.

The native `LoopWatch` notices, from a thread of its own, that the loop has not turned for some
milliseconds, and asks here which code runs. Steps, checks and metrics are known by their code;
other code, such as a task that a step started, is named by its function. Hyperscale's own work is
not a hold.
"""

import asyncio
import inspect
import os
import sys
import threading
from types import CodeType, FrameType, FunctionType

from hyperscale._native import LoopWatch, Recorder
from hyperscale.execution.hook_calls import StepProgram

_OWN_MODULES = frozenset({"hyperscale", "uvloop", "__main__"})


class LoopHolds:
    """Watches the loop while virtual users run; what it finds goes into the recorder's reports."""

    def __init__(self, program: StepProgram, recorder: Recorder) -> None:
        self._hooks = _hooks_by_code(program)
        self._thread = threading.get_ident()
        self._base = _loop_frame(sys._getframe())
        self._task: FrameType | None = None  # the frame of the task that was seen last
        self._tasks = 0  # tasks seen so far
        self._loop = asyncio.get_running_loop()
        self._watch = LoopWatch(recorder, self._find_holder)
        self._loop.add_reader(self._watch.fileno(), self._watch.answer)

    def stop(self) -> None:
        self._loop.remove_reader(self._watch.fileno())
        self._watch.stop()
        self._task = None

    def _find_holder(self) -> tuple[str, str, int] | None:
        """Return name and place of the code that the loop's thread runs, and a number of its task;
        None if that is our own code. Called on another thread."""
        hook: tuple[str, str] | None = None
        function: tuple[str, str] | None = None
        task: FrameType | None = None
        frame = sys._current_frames().get(self._thread)
        while frame is not None and frame is not self._base:
            name = self._hooks.get(frame.f_code)
            if name is not None:
                hook = hook or (name, _place(frame))
            elif _is_users(frame):
                function = (frame.f_code.co_name, _place(frame))  # the outermost counts
            task, frame = frame, frame.f_back
        if task is not self._task:
            self._task, self._tasks = task, self._tasks + 1
        holder = hook or function
        return None if holder is None else (*holder, self._tasks)


def _loop_frame(frame: FrameType) -> FrameType:
    """Return the frame that runs the event loop: below it is no coroutine."""
    found = frame
    while frame.f_back is not None:
        if frame.f_code.co_flags & inspect.CO_COROUTINE:
            found = frame.f_back
        frame = frame.f_back
    return found


def _hooks_by_code(program: StepProgram) -> dict[CodeType, str]:
    names: dict[CodeType, set[str]] = {}
    for call in (*program.recorded(), *program.checks, *program.metrics):
        for function in (call.function, inspect.unwrap(call.function)):
            if isinstance(function, FunctionType):
                names.setdefault(function.__code__, set()).add(call.name)
    # The code of a decorator may be that of several hooks.
    return {code: name for code, (name, *others) in names.items() if not others}


def _is_users(frame: FrameType) -> bool:
    root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return root not in _OWN_MODULES and root not in sys.stdlib_module_names


def _place(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
