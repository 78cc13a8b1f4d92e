"""Executors as processes: how they end, and that nothing of them is ever left."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from hyperscale.errors import InputError, RunError
from hyperscale.execution.protocol import Output, PartStatus
from tests.execution.lab import Bench, Lab

SLEEPER = """
    class Sleeper(Workflow):
        vus = 2
        duration = "60s"

        @step()
        async def nap(self) -> Result:
            log("napping", os.getpid())
            await asyncio.sleep(60)

        @teardown()
        async def close(self):
            log("teardown")
"""


def is_alive(pid: int) -> bool:
    """Whether the process exists and is more than an entry waiting to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def wait_until(condition, *, within_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.01)


async def logged(lab: Lab, text: str) -> None:
    async with asyncio.timeout(20):
        while not any(text in line for line in lab.log()):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_stop_cuts_what_runs_tears_down_and_names_its_reason(lab: Lab, loop: str) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        await bench.prepare("Sleeper")
        bench.pool.start(bench.ids)
        await logged(lab, "napping")
        bench.pool.stop(bench.ids, "interrupted", 0.05)
        (outcome,) = await bench.ended()
        assert outcome.finished is not None
        assert outcome.finished.status is PartStatus.STOPPED
        assert outcome.finished.error == "interrupted"
        assert outcome.step("nap").counts.cut == 2

    lab.work(work, loop=loop)
    assert lab.log()[-1] == "teardown"


def test_a_part_stopped_before_its_start_only_tears_down(lab: Lab) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        await bench.prepare("Sleeper")
        bench.pool.stop(bench.ids, "not needed", 1.0)
        (outcome,) = await bench.ended()
        assert outcome.finished is not None
        assert outcome.finished.status is PartStatus.STOPPED

    lab.work(work)
    assert lab.log() == ["teardown"]


@pytest.mark.parametrize("when", ["before the task begins", "while executors start"])
def test_a_stop_reaches_a_part_that_is_still_on_its_way_to_its_executor(
    lab: Lab, when: str
) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        preparing = asyncio.ensure_future(bench.prepare("Sleeper"))
        await asyncio.sleep(0)
        if when == "while executors start":
            await asyncio.sleep(0)
        bench.pool.stop(bench.ids, "interrupted", 1.0)
        with pytest.raises(RunError, match="stopped while preparing"):
            await preparing
        await bench.prepare("Sleeper")  # and they are there for another

    lab.work(work, executors=2)
    assert lab.log() == ["teardown", "teardown"]


def test_a_part_too_large_to_be_sent_is_told_at_once_and_leaves_the_executor_usable(
    lab: Lab,
) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        with pytest.raises(RunError, match="over the limit"):
            await bench.prepare("Sleeper", context=bytes(17 * 1024 * 1024))
        await bench.prepare("Sleeper")

    lab.work(work)


def test_a_start_in_the_future_can_still_be_stopped(lab: Lab) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        await bench.prepare("Sleeper")
        bench.pool.start(bench.ids, start_in_ms=60_000)
        bench.pool.stop(bench.ids, "not needed", 1.0)
        (outcome,) = await bench.ended()
        assert outcome.finished is not None
        assert outcome.finished.status is PartStatus.STOPPED

    lab.work(work)
    assert lab.log() == ["teardown"]


def test_a_killed_executor_is_reported_with_its_signal_and_the_pool_starts_another(
    lab: Lab,
) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        await bench.prepare("Sleeper")
        bench.pool.start(bench.ids)
        await logged(lab, "napping")
        killed = bench.pool.pids[0]
        os.kill(killed, signal.SIGKILL)
        await bench.until(lambda: bench.outcomes[0].is_over)
        died = bench.outcomes[0].died
        assert died is not None
        assert died.signal == signal.SIGKILL
        assert "SIGKILL" in died.reason
        assert died.pid == killed
        assert not bench.outcomes[1].is_over  # the other goes on
        bench.pool.stop([1], "enough", 0.0)
        await bench.until(lambda: bench.outcomes[1].is_over)
        await bench.prepare("Sleeper")
        assert bench.pool.pids[0] != killed

    lab.work(work, executors=2)


def test_an_executor_that_exits_is_reported_with_its_code_and_last_words(lab: Lab) -> None:
    lab.write("""
        class Quitter(Workflow):
            vus = 1
            duration = "60s"

            @step()
            async def quit(self) -> Result:
                os.write(2, b"cannot go on\\n")
                os._exit(9)
    """)
    (outcome,) = lab.run("Quitter")
    assert outcome.died is not None
    assert outcome.died.exit_code == 9
    assert "exited with code 9" in outcome.died.reason
    assert "cannot go on" in outcome.died.reason


def test_sys_exit_in_a_step_is_only_a_failed_step(lab: Lab) -> None:
    lab.write("""
        class Quitter(Workflow):
            vus = 1
            duration = "60s"
            iterations = 2

            @step()
            async def quit(self) -> Result:
                sys.exit(3)
    """)
    (outcome,) = lab.run("Quitter")
    assert outcome.step("quit").counts.failed == 2


def test_code_that_never_yields_is_killed_after_its_time(lab: Lab) -> None:
    lab.write("""
        class Hog(Workflow):
            vus = 1
            duration = "100ms"

            @step()
            async def spin(self) -> Result:
                while True:
                    pass
    """)
    (outcome,) = lab.run("Hog")
    assert outcome.died is not None
    assert "holds the interpreter" in outcome.died.reason


def test_code_that_never_yields_is_killed_when_told_to_stop(lab: Lab) -> None:
    lab.write("""
        class Hog(Workflow):
            vus = 1
            duration = "60s"

            @step()
            async def spin(self) -> Result:
                log("spinning")
                while True:
                    pass
    """)

    async def work(bench: Bench) -> None:
        await bench.prepare("Hog")
        bench.pool.start(bench.ids)
        await logged(lab, "spinning")
        while not bench.outcomes[0].is_over:  # told again and again, as a leader does
            bench.pool.stop(bench.ids, "interrupted", 1.0)
            await asyncio.sleep(0.1)
        (outcome,) = await bench.ended()
        assert outcome.died is not None
        assert outcome.died.blames_code
        assert "holds the interpreter" in outcome.died.reason

    lab.work(work)


def test_code_that_swallows_its_cancellation_is_left_behind_and_its_process_ended(
    lab: Lab,
) -> None:
    lab.write("""
        class Stubborn(Workflow):
            vus = 2
            duration = "100ms"

            @step()
            async def hold(self) -> Result:
                while True:
                    try:
                        await asyncio.sleep(60)
                    except BaseException:
                        pass

        class Next(Workflow):
            vus = 1
            duration = "10s"
            iterations = 1

            @step()
            async def one(self) -> Result:
                return Result()
    """)

    async def work(bench: Bench) -> None:
        first_pid = bench.pool.pids[0]
        (stubborn,) = await bench.run("Stubborn")
        assert stubborn.finished is not None
        assert stubborn.step("hold").counts.cut == 2
        assert stubborn.step("hold").counts.failed == 0
        assert "ignore their cancellation" in stubborn.output
        (following,) = await bench.run("Next")
        assert following.step("one").counts.ok == 1
        assert bench.pool.pids[0] != first_pid
        assert not is_alive(first_pid)

    lab.work(work)


def test_a_step_that_swallows_its_cancellation_and_returns_is_cut_not_ok(lab: Lab) -> None:
    lab.write("""
        class Quiet(Workflow):
            vus = 1
            duration = "100ms"

            @step()
            async def hold(self) -> Result:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    pass
                return Result()
    """)
    (outcome,) = lab.run("Quiet")
    counts = outcome.step("hold").counts
    assert (counts.cut, counts.ok, counts.failed) == (1, 0, 0)
    assert outcome.finished is not None
    assert not outcome.finished.tainted


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


def test_what_user_code_forked_is_gone_with_the_pool(lab: Lab) -> None:
    lab.write(FORKER)
    pids: list[int] = []

    async def work(bench: Bench) -> None:
        await bench.prepare("Forker")
        bench.pool.start(bench.ids)
        await logged(lab, "parent")
        pids.extend(int(line.split()[1]) for line in lab.log())
        assert all(map(is_alive, pids))

    lab.work(work)
    assert not any(map(is_alive, pids))


def test_what_user_code_forked_is_gone_when_the_executor_is_killed(lab: Lab) -> None:
    lab.write(FORKER)

    async def work(bench: Bench) -> None:
        await bench.prepare("Forker")
        bench.pool.start(bench.ids)
        await logged(lab, "parent")
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
def test_what_user_code_started_ends_with_its_part(lab: Lab, what: str) -> None:
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


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_daemon_ends_with_its_executor_and_with_no_other(lab: Lab, number: int) -> None:
    lab.write(f"""
{DAEMONISE}
class Starter(Workflow):
    vus = 2
    duration = "60s"

    @step()
    async def begin(self) -> Result:
        log("started", os.getpid(), daemonise())
        await asyncio.sleep(60)
""")
    unrelated = subprocess.Popen(["sleep", "600"])  # a child of whoever embeds the pool

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


def test_what_a_part_printed_is_not_taken_for_the_last_words_of_the_next(lab: Lab) -> None:
    lab.write("""
        class Talker(Workflow):
            vus = 1
            duration = "10s"
            iterations = 1

            @step()
            async def talk(self) -> Result:
                print("of another", file=sys.stderr)
                return Result()

        class Quitter(Workflow):
            vus = 1
            duration = "10s"

            @step()
            async def quit(self) -> Result:
                os._exit(7)
    """)

    async def work(bench: Bench) -> None:
        await bench.run("Talker")
        (outcome,) = await bench.run("Quitter")
        assert outcome.died is not None
        assert outcome.died.reason == "exited with code 7"
        assert not outcome.died.blames_code

    lab.work(work)


@pytest.mark.parametrize("kind", ["setup", "teardown"])
@pytest.mark.parametrize("what", ["sys.exit(3)", "raise KeyboardInterrupt"])
def test_a_hook_that_wants_to_leave_has_failed(lab: Lab, kind: str, what: str) -> None:
    lab.write(f"""
        class Quitter(Workflow):
            vus = 1
            duration = "10s"
            iterations = 1

            @{kind}()
            async def quit(self) -> None:
                {what}

            @step()
            async def one(self) -> Result:
                return Result()
    """)

    async def work(bench: Bench) -> None:
        if kind == "setup":
            with pytest.raises(RunError, match=r"Quitter.quit failed: \w+"):
                await bench.prepare("Quitter")
        else:
            (outcome,) = await bench.run("Quitter")
            assert outcome.step("quit").counts.failed == 1
        assert is_alive(bench.pool.pids[0])

    lab.work(work)


@pytest.mark.parametrize("how", ["idle", "hogging"])
def test_killing_the_parent_leaves_nothing(lab: Lab, how: str) -> None:
    body = "while True: pass" if how == "hogging" else "await asyncio.sleep(60)"
    lab.write(FORKER.replace("await asyncio.sleep(60)", body))
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import asyncio
from pathlib import Path
from tests.execution.lab import Lab
lab = Lab(Path({str(lab.directory)!r}))
lab.write({FORKER.replace("await asyncio.sleep(60)", body)!r})
lab.run("Forker", executors=1)
"""
    parent = subprocess.Popen([sys.executable, "-c", script])
    try:
        wait_until(lambda: any("parent" in line for line in lab.log()))
        pids = [int(line.split()[1]) for line in lab.log()]
        assert all(map(is_alive, pids))
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not any(map(is_alive, pids)))


def test_sigterm_tears_down_before_the_executor_leaves(lab: Lab) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        await bench.prepare("Sleeper")
        bench.pool.start(bench.ids)
        await logged(lab, "napping")

    lab.work(work)  # closing the pool is the SIGTERM
    assert lab.log()[-1] == "teardown"


def test_an_interrupt_does_not_reach_an_executor(lab: Lab) -> None:
    lab.write("""
        class Short(Workflow):
            vus = 1
            duration = "30s"
            iterations = 1

            @step()
            async def one(self) -> Result:
                os.kill(os.getpid(), 2)
                await asyncio.sleep(0.05)
                return Result()
    """)
    (outcome,) = lab.run("Short")
    assert outcome.step("one").counts.ok == 1


def test_an_expired_lease_cuts_at_once(lab: Lab) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        await bench.prepare("Sleeper")
        bench.pool.start(bench.ids)
        await logged(lab, "napping")
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        bench.pool.renew_lease(bench.ids, now_ns + 300_000_000)
        bench.pool.renew_lease(bench.ids, now_ns + 400_000_000)
        (outcome,) = await bench.ended()
        assert time.clock_gettime_ns(time.CLOCK_BOOTTIME) >= now_ns + 400_000_000
        assert outcome.finished is not None
        assert outcome.finished.status is PartStatus.STOPPED
        assert outcome.finished.error == "lease expired"
        assert outcome.step("nap").counts.cut == 2

    lab.work(work)


def test_output_of_every_kind_is_captured_and_written_to_the_log(lab: Lab, tmp_path: Path) -> None:
    lab.write("""
        import logging, subprocess

        class Loud(Workflow):
            vus = 1
            duration = "30s"
            iterations = 1

            @step()
            async def speak(self) -> Result:
                print("printed")
                print("in red", file=sys.stderr)
                os.write(1, b"from the descriptor\\n")
                subprocess.run(["echo", "from a child"])
                logging.getLogger("mine").warning("logged")
                sys.stdout.buffer.write(b"bytes\\n")
                print("no line end", end="")
                return Result()
    """)

    async def work(bench: Bench) -> None:
        (outcome,) = await bench.run("Loud")
        said = outcome.output
        for words in (
            "printed\n",
            "in red\n",
            "from the descriptor\n",
            "from a child\n",
            "WARNING mine: logged\n",
            "bytes\n",
            "no line end",
        ):
            assert words in said, said
        # All of it before the part's end.
        kinds = [type(event) for event in outcome.events]
        assert Output in kinds
        assert kinds[-1] is not Output

    logs = tmp_path / "logs"
    lab.work(work, log_dir=logs)
    assert "from a child" in (logs / "executor-0.log").read_text()


def test_a_flood_of_output_neither_blocks_nor_grows(lab: Lab) -> None:
    lab.write("""
        class Flood(Workflow):
            vus = 1
            duration = "30s"
            iterations = 20

            @step()
            async def pour(self) -> Result:
                for _ in range(100):
                    print("x" * 10_000)
                os.write(1, b"y" * 1_000_000)
                return Result()
    """)
    (outcome,) = lab.run("Flood")
    assert outcome.step("pour").counts.ok == 20
    assert "bytes dropped" in outcome.output
    assert len(outcome.output) < 3_000_000  # of 40 MB


def test_a_bad_file_refuses_every_part_and_leaves_the_executors_usable(lab: Lab) -> None:
    lab.write("""
        class Good(Workflow):
            vus = 2
            duration = "30s"
            iterations = 2

            @step()
            async def one(self) -> Result:
                return Result()
    """)

    async def work(bench: Bench) -> None:
        good = lab.file.read_text()
        lab.file.write_text("raise RuntimeError('not today')")
        with pytest.raises(InputError, match="not today"):
            await bench.prepare("Good")
        lab.file.write_text(good)
        outcomes = await bench.run("Good")
        assert sum(outcome.report.iterations for outcome in outcomes) == 2

    lab.work(work, executors=2)


def test_one_refusal_undoes_the_preparation_of_the_others(lab: Lab) -> None:
    lab.write("""
        class Picky(Workflow):
            vus = 2
            duration = "30s"

            @setup()
            async def open(self):
                try:
                    os.mkdir(LOG + ".taken")
                except FileExistsError:
                    raise RuntimeError("taken")
                log("open")

            @step()
            async def one(self) -> Result:
                return Result()

            @teardown()
            async def close(self):
                log("close")
    """)

    async def work(bench: Bench) -> None:
        with pytest.raises(RunError, match=r"Picky\.open failed: RuntimeError: taken"):
            await bench.prepare("Picky")
        assert not any(outcome.is_over for outcome in bench.outcomes)

    lab.work(work, executors=2)
    assert sorted(lab.log()) == ["close", "close", "open"]


def test_an_executor_that_dies_while_preparing_is_an_error_not_a_hang(lab: Lab) -> None:
    lab.write("""
        class Fragile(Workflow):
            vus = 1
            duration = "30s"

            @setup()
            async def open(self):
                os.kill(os.getpid(), 9)

            @step()
            async def one(self) -> Result:
                return Result()
    """)
    with pytest.raises(RunError, match="ended while preparing: killed by SIGKILL"):
        lab.run("Fragile")


def test_a_cancelled_preparation_leaves_no_part_behind(lab: Lab) -> None:
    lab.write("""
        class Slow(Workflow):
            vus = 1
            duration = "30s"

            @setup()
            async def open(self):
                log("opening")
                await asyncio.sleep(60)

            @step()
            async def one(self) -> Result:
                return Result()

            @teardown()
            async def close(self):
                log("close")
    """)

    async def work(bench: Bench) -> None:
        preparing = asyncio.ensure_future(bench.prepare("Slow"))
        await logged(lab, "opening")
        preparing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await preparing

    lab.work(work)
    assert lab.log() == ["opening", "close"]


def test_a_teardown_that_takes_for_ever_is_given_up(lab: Lab) -> None:
    lab.write("""
        from hyperscale.execution import host
        host.TEARDOWN_S = 0.2

        class Endless(Workflow):
            vus = 1
            duration = "30s"
            iterations = 1

            @step()
            async def one(self) -> Result:
                return Result()

            @teardown()
            async def close(self):
                await asyncio.sleep(3600)
    """)
    (outcome,) = lab.run("Endless")
    assert outcome.finished is not None
    assert outcome.finished.status is PartStatus.COMPLETED
    assert "teardown hooks took longer" in outcome.output


def test_no_descriptor_and_no_child_outlives_a_pool(lab: Lab) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        await bench.prepare("Sleeper")
        bench.pool.start(bench.ids)
        await logged(lab, "napping")

    lab.work(work, executors=2)  # whatever is opened once and for all is open now
    before = set(os.listdir("/proc/self/fd"))
    lab.work(work, executors=2)
    assert set(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_pool_can_kill_a_part_and_says_why(lab: Lab) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        await bench.prepare("Sleeper")
        bench.pool.start(bench.ids)
        await logged(lab, "napping")
        bench.pool.kill(bench.ids, "interrupted twice")
        (outcome,) = await bench.ended()
        assert outcome.died is not None
        assert outcome.died.reason == "interrupted twice"

    lab.work(work)
    assert "teardown" not in lab.log()


def test_a_parent_that_stood_still_does_not_blame_the_executor(lab: Lab) -> None:
    lab.write("""
        class Short(Workflow):
            vus = 1
            duration = "100ms"

            @step()
            async def one(self) -> Result:
                await asyncio.sleep(0.01)
                return Result()
    """)

    async def work(bench: Bench) -> None:
        await bench.prepare("Short")
        bench.pool.start(bench.ids)
        time.sleep(4)  # longer than any executor may be silent after its end
        (outcome,) = await bench.ended()
        assert outcome.finished is not None
        assert outcome.finished.status is PartStatus.COMPLETED

    lab.work(work)


def test_a_log_that_cannot_be_written_does_not_stop_the_run(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where a directory should be")
    lab.write("""
        class Loud(Workflow):
            vus = 1
            duration = "30s"
            iterations = 1

            @step()
            async def speak(self) -> Result:
                print("hello")
                return Result()
    """)

    async def work(bench: Bench) -> None:
        (outcome,) = await bench.run("Loud")
        assert outcome.step("speak").counts.ok == 1
        assert "hello" in outcome.output
        assert "not written any more" in outcome.output

    lab.work(work, log_dir=tmp_path / "logs")


def test_code_that_closes_or_replaces_its_streams_does_no_harm(lab: Lab) -> None:
    lab.write("""
        class Mute(Workflow):
            vus = 1
            duration = "30s"
            iterations = 1

            @step()
            async def mute(self) -> Result:
                sys.stdout.close()
                sys.stderr = None
                os.write(1, b"still here\\n")
                return Result()

            @teardown()
            async def fail(self):
                raise ValueError("told nobody")
    """)
    (outcome,) = lab.run("Mute")
    assert outcome.step("mute").counts.ok == 1
    assert outcome.step("fail").counts.failed == 1
    assert "still here" in outcome.output
    assert "ValueError: told nobody" in outcome.output


def test_a_failure_of_our_own_while_preparing_is_answered(lab: Lab) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        assignment = msgspec.structs.replace(bench.assignment("Sleeper", 0), log_level="nonsense")
        with pytest.raises(RunError, match="internal error: ValueError: Unknown level"):
            await bench.pool.prepare([0], [assignment])
        await bench.prepare("Sleeper")

    lab.work(work)


def test_a_log_on_a_full_disk_costs_its_lines_and_nothing_else(lab: Lab, tmp_path: Path) -> None:
    lab.write("""
        class Loud(Workflow):
            vus = 1
            duration = "30s"
            iterations = 3

            @step()
            async def speak(self) -> Result:
                print("said")
                return Result()
    """)
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "executor-0.log").symlink_to("/dev/full")

    async def work(bench: Bench) -> None:
        (outcome,) = await bench.run("Loud")
        assert outcome.step("speak").counts.ok == 3
        assert "No space left on device" in outcome.output

    lab.work(work, log_dir=logs)  # closing the pool closes the log
