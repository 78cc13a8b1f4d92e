"""The mark on every process that an executor starts, in its environment and its limits."""

import os
import subprocess
import sys

from hyperscale.execution.orphans import ProcessMark
from tests.lab.processes import is_alive
from tests.lab.waiting import until

# Puts its mark on its limits and starts a process without an environment.
STARTER = """
import subprocess
from hyperscale.execution.orphans import ProcessMark
ProcessMark.of_this_process().put_on_limits()
process = subprocess.Popen(["sleep", "600"], env={}, stdout=subprocess.DEVNULL)
print(process.pid, flush=True)
process.wait()
"""


def test_a_process_with_the_mark_in_its_environment_is_killed_and_no_other() -> None:
    mark, others = ProcessMark.new(), ProcessMark.new()
    process = subprocess.Popen(["sleep", "600"], env=mark.added_to(os.environ))
    other = subprocess.Popen(["sleep", "600"], env=others.added_to(os.environ))
    try:
        assert mark.is_on_others()
        assert mark.end_bearers()
        process.wait()
        assert not mark.is_on_others()
        assert others.is_on_others()
        assert other.poll() is None
    finally:
        for each in (process, other):
            each.kill()
            each.wait()


def test_a_process_with_the_mark_only_in_its_limits_is_killed() -> None:
    mark = ProcessMark.new()
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER], env=mark.added_to(os.environ), stdout=subprocess.PIPE
    )
    try:
        pid = int(starter.stdout.readline())
        starter.kill()
        until(lambda: not is_alive(starter.pid), what="the starter has ended")
        assert mark.end_bearers()
        until(lambda: not is_alive(pid), what="what it started has ended")
        # The starter is a zombie, which cannot be killed.
        assert not mark.is_on_others()
        assert not mark.end_bearers()
    finally:
        starter.kill()
        starter.communicate()
