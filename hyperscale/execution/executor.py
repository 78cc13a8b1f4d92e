"""The executor process: the only place where user code is imported and run.

    python -m hyperscale.execution.executor CONTROL_FD PARENT_PID CORE|- [BOX]

Started by `process.ExecutorProcess` as the leader of its own session. It speaks the protocol
over the socket it was given and runs one slot after another. Before anything else it makes sure
that it dies with its parent; slow imports come after that.
"""

from hyperscale._native import guard_process  # isort: skip - the guard comes before every other import

import os
import sys

from hyperscale.execution.box import enter
from hyperscale.execution.limits import EXECUTOR_NICE


def main(arguments: list[str]) -> None:
    control_fd, parent_pid, core = int(arguments[0]), int(arguments[1]), arguments[2]
    # The box holds for threads that are started in it, and the guard starts one.
    boxed = enter(arguments[3]) if len(arguments) > 3 else ""
    guard_process(control_fd, parent_pid)
    os.nice(EXECUTOR_NICE)
    if core != "-":
        os.sched_setaffinity(0, {int(core)})

    from hyperscale.execution.orphans import ProcessMark  # noqa: PLC0415 - after the guard
    from hyperscale.execution.service import serve  # noqa: PLC0415 - after the guard

    mark = ProcessMark.of_this_process()
    mark.put_on_limits()
    serve(control_fd, mark, boxed)


if __name__ == "__main__":
    main(sys.argv[1:])
