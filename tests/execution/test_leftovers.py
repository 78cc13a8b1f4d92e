"""No process of user code outlives its slot, its executor or the parent."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hyperscale.execution.process import ExecutorProcess, ExitInfo, spawn_executor
from hyperscale.lab.node_processes import children_of
from tests.lab.executors import SLEEPER, Bench, Lab
from tests.lab.processes import is_alive
from tests.lab.waiting import until

FORKER = """
    class Forker(Workflow):
        vus = 1
        duration = "60s"

        @step()
        async def fork(self) -> Result:
            pid = os.fork()
            if not pid:
                time.sleep(600)
                os._exit(0)
            log("forked", pid)
            log("parent", os.getpid())
            await asyncio.sleep(60)
"""


def test_processes_of_user_code_end_with_the_pool(lab: Lab) -> None:
    lab.write(FORKER)
    pids: list[int] = []

    async def work(bench: Bench) -> None:
        await bench.begin("Forker", until="parent")
        pids.extend(int(line.split()[1]) for line in lab.log())
        assert all(map(is_alive, pids))

    lab.work(work)
    assert not any(map(is_alive, pids))


def test_processes_of_user_code_end_when_the_executor_is_killed(lab: Lab) -> None:
    lab.write(FORKER)

    async def work(bench: Bench) -> None:
        await bench.begin("Forker", until="parent")
        os.kill(bench.pool.pids[0], signal.SIGKILL)
        await bench.ended()
        (child,) = [int(line.split()[1]) for line in lab.log() if "forked" in line]
        async with asyncio.timeout(10):
            while is_alive(child):
                await asyncio.sleep(0.01)

    lab.work(work)


DAEMONISE = '''
def daemonise(environment=os.environ):
    """A grandchild nobody waits for, in a session of its own; its number."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        grandchild = os.fork()
        if not grandchild:
            os.execvpe("sleep", ["sleep", "600"], environment)
        os.write(write, str(grandchild).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    return int(os.read(read, 100))
'''


LEFT_BEHIND = {
    "fork": "pid = os.fork()\n    while not pid: pass",
    "session": "pid = subprocess.Popen(['sleep', '60'], start_new_session=True).pid",
    "daemon": "pid = daemonise()",
    "daemon of another name": "pid = daemonise(environment={})",
    "thread": "threading.Thread(target=hog).start(); pid = 0",
    "to_thread": "asyncio.ensure_future(asyncio.to_thread(hog)); pid = 0",
}


@pytest.mark.parametrize("what", LEFT_BEHIND)
def test_processes_and_threads_of_user_code_end_with_its_slot(lab: Lab, what: str) -> None:
    lab.write(f"""
import subprocess, threading
{DAEMONISE}
def hog():
    while True: pass

async def start():
    {LEFT_BEHIND[what]}
    log("started", pid)

class Starter(Workflow):
    vus = 1
    duration = "10s"
    iterations = 1

    @step()
    async def begin(self) -> Result:
        await start()
        return Result()
""")

    async def work(bench: Bench) -> None:
        (executor,) = bench.pool.pids
        (outcome,) = await bench.run("Starter")
        assert outcome.step("begin").counts.ok == 1
        await bench.pool.wait_vacant(0)
        started = [int(line.split()[1]) for line in lab.log()]
        async with asyncio.timeout(10):
            while any(map(is_alive, [executor, *filter(None, started)])):
                await asyncio.sleep(0.01)

    lab.work(work)


@pytest.mark.parametrize(
    ("number", "environment"), [(signal.SIGSEGV, "os.environ"), (signal.SIGKILL, "{}")]
)
def test_a_daemon_ends_with_its_own_executor_only(lab: Lab, number: int, environment: str) -> None:
    lab.write(f"""
{DAEMONISE}
class Starter(Workflow):
    vus = 2
    duration = "60s"

    @step()
    async def begin(self) -> Result:
        log("started", os.getpid(), daemonise({environment}))
        await asyncio.sleep(60)
""")
    unrelated = subprocess.Popen(["sleep", "600"])  # a child of the program that embeds the pool

    async def work(bench: Bench) -> None:
        await bench.prepare("Starter")
        bench.pool.start(bench.ids)
        async with asyncio.timeout(20):
            while len(lab.log()) < 2:
                await asyncio.sleep(0.01)
        daemons = {int(line.split()[1]): int(line.split()[2]) for line in lab.log()}
        first, second = bench.pool.pids
        os.kill(first, number)
        await bench.until(lambda: bench.outcomes[0].is_over)
        await bench.pool.wait_vacant(0)
        assert not is_alive(daemons[first])
        assert is_alive(daemons[second])
        assert is_alive(second)
        assert unrelated.poll() is None

    try:
        lab.work(work, executors=2)
    finally:
        unrelated.kill()
        unrelated.wait()


def test_user_code_has_the_children_it_started_and_no_orphans_of_theirs(lab: Lab) -> None:
    lab.write("""
import select, signal, subprocess

class Starter(Workflow):
    vus = 1
    duration = "10s"
    iterations = 1

    @step()
    async def begin(self) -> Result:
        own = subprocess.Popen(["sh", "-c", "exit 7"])
        started = subprocess.run(
            "sleep 600 > /dev/null & echo $!", shell=True, check=True, stdout=subprocess.PIPE
        )
        orphan = os.pidfd_open(int(started.stdout))
        signal.pidfd_send_signal(orphan, signal.SIGKILL)
        select.select([orphan], [], [])  # until it has ended
        log("own", own.wait())
        try:
            log("another", os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT))
        except ChildProcessError:
            log("no other")
        return Result()
""")

    async def work(bench: Bench) -> None:
        (executor,) = bench.pool.pids
        (outcome,) = await bench.run("Starter")
        assert lab.log() == ["own 7", "no other"]
        assert outcome.output == ""
        assert not outcome.finished.tainted
        assert bench.pool.pids == [executor]

    lab.work(work)


@pytest.mark.parametrize("runs_code", [False, True])
def test_a_process_that_reuses_the_id_of_an_executor_is_not_killed(runs_code: bool) -> None:
    async def main() -> None:
        exits: list[ExitInfo] = []
        process = ExecutorProcess(
            spawn_executor(None),
            on_message=lambda _: None,
            on_garbage=lambda _: None,
            on_output=lambda _: None,
            on_exit=exits.append,
        )
        process.runs_code = runs_code
        process.kill()
        await process.wait_gone()
        assert [info.status for info in exits] == [-signal.SIGKILL]
        process.pid = bystander.pid
        process.terminate()
        process.kill()
        await process.wait_gone()
        assert bystander.poll() is None

    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        asyncio.run(main())
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize("how", ["idle", "hogging"])
def test_killing_the_parent_leaves_no_process(lab: Lab, how: str) -> None:
    body = "while True: pass" if how == "hogging" else "await asyncio.sleep(60)"
    lab.write(FORKER.replace("await asyncio.sleep(60)", body))
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import asyncio
from pathlib import Path
from tests.lab.executors import Lab
lab = Lab(Path({str(lab.directory)!r}))
lab.write({FORKER.replace("await asyncio.sleep(60)", body)!r})
lab.run("Forker", executors=1)
"""
    parent = subprocess.Popen([sys.executable, "-c", script])
    try:
        until(lambda: any("parent" in line for line in lab.log()), what="the fork")
        pids = [int(line.split()[1]) for line in lab.log()]
        assert all(map(is_alive, pids))
    finally:
        parent.kill()
        parent.wait()
    until(lambda: not any(map(is_alive, pids)), what="the end of all of it")


def test_no_descriptor_and_no_child_outlives_a_pool(lab: Lab) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        await bench.begin("Sleeper", until="napping")

    children = set(children_of(os.getpid()))  # servers of other tests
    lab.work(work, executors=2)  # descriptors that are opened only once are open now
    before = set(os.listdir("/proc/self/fd"))
    lab.work(work, executors=2)
    assert set(os.listdir("/proc/self/fd")) == before
    assert set(children_of(os.getpid())) <= children
