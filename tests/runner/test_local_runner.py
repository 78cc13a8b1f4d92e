"""`LocalRunner`, and whole runs through the driver, on real executors."""

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from hyperscale import LocalRunner, Workflow, step
from hyperscale.config import GRACE_S
from hyperscale.errors import InputError
from hyperscale.reporting.results import RunResult, RunStatus
from hyperscale.runner.drive import RunOptions, drive, executors_needed
from hyperscale.runner.source import load_test_file
from hyperscale.ui.api import SilentUi
from tests.conftest import RunningTarget
from tests.lab.processes import executors_of
from tests.lab.waiting import until
from tests.runner.workflows import Endless, Quick, Tick

HEADER = """
import os, time
from hyperscale import Provide, Use, Workflow, action, depends, state, step
from hyperscale.testing import CustomResult, HTTPResponse, URL

LOG = os.path.join(os.path.dirname(__file__), "log")

def log(*words):
    with open(LOG, "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")

class Tick(CustomResult):
    pass
"""


def write(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "test.py"
    path.write_text(HEADER + textwrap.dedent(body))
    return path


def run_file(path: Path, *, workers: int = 2) -> RunResult:
    options = RunOptions(workers=workers)
    return asyncio.run(drive(load_test_file(path), options, SilentUi())).result


def logged(path: Path) -> list[list[str]]:
    return [line.split() for line in (path.parent / "log").read_text().splitlines()]


def run_given(*workflows: object, workers: int = 1, timeout: str | None = None) -> RunResult:
    runner = LocalRunner(workers=workers)
    return asyncio.run(
        runner.run(
            test_name="given",
            workflows=workflows,  # type: ignore[arg-type]  # wrong ones are tested too
            terminal_mode="none",
            timeout=timeout,
        )
    )


# --- what LocalRunner takes --------------------------------------------------------------


def test_classes_instances_and_tagged_pairs_are_all_workflows() -> None:
    for given in (Quick, Quick(), (["nightly", "own"], Quick()), (["nightly"], Quick)):
        result = run_given(given)
        assert result.status is RunStatus.COMPLETED
        assert result.file == "given"
        [workflow] = result.workflows
        assert (workflow.name, workflow.total) == ("Quick", 10)
        assert workflow.tags == (["own", "nightly"] if isinstance(given, tuple) else ["own"])
    assert executors_of(os.getpid()) == []


def test_a_single_tag_may_be_a_string() -> None:
    [workflow] = run_given(("nightly", Quick)).workflows
    assert workflow.tags == ["own", "nightly"]


def test_an_unknown_log_level_is_refused() -> None:
    with pytest.raises(InputError, match="log_level: 'loud' is unknown"):
        asyncio.run(LocalRunner().run("given", [Quick], log_level="loud"))


def test_an_instance_may_set_its_own_vus_and_duration_and_nothing_else() -> None:
    mine = Quick()
    mine.vus = 3
    [workflow] = run_given(mine).workflows
    assert workflow.vus == 3
    mine.priority = "low"
    with pytest.raises(InputError, match=r"Quick\.priority: an instance may only set"):
        run_given(mine)


def test_an_object_that_is_no_workflow_is_refused() -> None:
    for wrong in (object, "Quick", (["tag"], object()), ("a", "b", "c")):
        with pytest.raises(InputError, match="is not a workflow"):
            run_given(wrong)
    with pytest.raises(InputError, match="no workflows"):
        run_given()
    with pytest.raises(InputError, match="workers"):
        LocalRunner(workers=0)
    with pytest.raises(InputError, match="timeout"):
        run_given(Quick, timeout="soon")


def test_the_published_signature_is_accepted() -> None:
    runner = LocalRunner(host="localhost", port=8080, workers=4)
    assert (runner.host, runner.port, runner.workers) == ("localhost", 8080, 4)


def test_a_class_without_a_module_is_sent_by_value() -> None:
    class Nowhere(Workflow):
        vus = 2
        duration = "30s"
        iterations = 6

        @step()
        async def go(self) -> Tick:
            return Tick()

    [workflow] = run_given(Nowhere, workers=2).workflows
    assert (workflow.status, workflow.total) == (RunStatus.COMPLETED, 6)


def test_a_notebook_s_classes_have_no_file_and_run(tmp_path: Path) -> None:
    cells = textwrap.dedent(
        """
        import asyncio
        from hyperscale import LocalRunner, Workflow, step
        from hyperscale.testing import CustomResult

        class Tick(CustomResult):
            pass

        class Cell(Workflow):
            vus = 1
            duration = "30s"
            iterations = 3

            @step()
            async def go(self) -> Tick:
                return Tick()

        run = LocalRunner(workers=1).run("cells", [Cell], terminal_mode="none")
        print(asyncio.run(run).workflows[0].total)
        """
    )
    done = subprocess.run(
        [sys.executable, "-"], input=cells, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "3\n", done.stderr


def test_a_script_that_starts_a_run_when_imported_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    text = textwrap.dedent(
        """
        import asyncio
        from hyperscale import LocalRunner
        from hyperscale.graph import Workflow, action

        class Once(Workflow):
            @action()
            async def go(self) -> None:
                pass

        asyncio.run(LocalRunner(workers=1).run("once", [Once], terminal_mode="none"))
        """
    )
    script.write_text(text)
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert "script.py:11: the script starts a run when it is imported" in done.stderr
    guarded = text.replace("asyncio.run(", 'if __name__ == "__main__":\n    asyncio.run(')
    script.write_text(guarded)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_test_may_import_modules_and_read_files_that_lie_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "__init__.py").write_text("from .deep import answer\n")
    (tmp_path / "beside" / "deep.py").write_text("def answer():\n    return 42\n")
    (tmp_path / "rows.csv").write_text("a,b\n")
    file = write(
        tmp_path,
        """
        from pathlib import Path
        from beside import answer

        ROWS = (Path(__file__).parent / "rows.csv").read_text()

        class Import(Workflow):
            vus = 1
            duration = "30s"
            iterations = 1

            @step()
            async def go(self) -> Tick:
                import beside.deep
                log(answer(), ROWS.strip(), beside.deep.__file__)
                return Tick()
        """,
    )
    assert run_file(file, workers=1).status is RunStatus.COMPLETED
    assert logged(file) == [["42", "a,b", str(tmp_path / "beside" / "deep.py")]]


def test_the_code_that_runs_is_the_code_that_was_planned(tmp_path: Path) -> None:
    """An edit between two workflows of a run changes neither."""
    file = write(
        tmp_path,
        """
        class First(Workflow):
            vus = 1
            duration = "30s"

            @action()
            async def edit(self) -> None:
                with open(__file__, "a") as file:
                    file.write("raise SystemError('edited')")

        @depends("First")
        class Second(First):
            vus = 1

            @action()
            async def edit(self) -> None:
                log("ran")
        """,
    )
    result = run_file(file)
    assert result.status is RunStatus.COMPLETED, result.workflows
    assert logged(file) == [["ran"]]
    assert "edited" in file.read_text()


# --- how it ends -------------------------------------------------------------------------


def test_an_endless_workflow_ends_with_the_run_s_timeout_and_leaves_no_process() -> None:
    result = run_given(Endless, timeout="4s")
    assert result.status is RunStatus.TIMEOUT
    assert result.elapsed_seconds < 30
    assert result.workflows[0].total > 0
    assert executors_of(os.getpid()) == []


def test_a_cancelled_run_leaves_no_process() -> None:
    async def cancel() -> None:
        run = LocalRunner(workers=2).run("x", [Endless], terminal_mode="none")
        task = asyncio.create_task(run)
        await asyncio.to_thread(until, lambda: executors_of(os.getpid()), what="executors")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert executors_of(os.getpid()) == []


def test_a_run_works_on_any_thread() -> None:
    results: list[RunResult] = []
    thread = threading.Thread(target=lambda: results.append(run_given(Quick)))
    thread.start()
    thread.join()
    assert results[0].status is RunStatus.COMPLETED


def test_no_more_executors_are_started_than_can_be_busy(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        class Few(Workflow):
            vus = 3
            @step()
            async def go(self) -> Tick:
                return Tick()

        class Seed(Workflow):
            vus = 100
            @action()
            async def go(self) -> None:
                pass
        """,
    )
    plan = load_test_file(file).plan
    assert executors_needed(plan, 64) == 4
    assert executors_needed(plan, 2) == 2


# --- claims of the specification ---------------------------------------------------------


def test_fifty_users_are_fifty_at_once_and_end_within_duration_and_grace(
    tmp_path: Path, target: RunningTarget
) -> None:
    """Claim 10."""
    file = write(
        tmp_path,
        f"""
        class Load(Workflow):
            vus = 50
            duration = "3s"

            @step()
            async def go(self, url: URL = "{target.url}/delay/50") -> HTTPResponse:
                return await self.client.http.get(url)
        """,
    )
    [workflow] = run_file(file).workflows
    counts = target.counts()
    assert counts["in_flight"]["peak"] == 50
    assert counts["connections"]["peak"] == 50
    assert len(counts["seconds"]) <= 3 + GRACE_S + 1  # it may begin in the middle of a second
    assert workflow.failed == 0


def test_a_workflow_begins_after_all_its_dependencies_have_ended(tmp_path: Path) -> None:
    """Claim 20."""
    file = write(
        tmp_path,
        """
        class Base(Workflow):
            abstract = True
            vus = 4
            duration = "300ms"
            interval = "5ms"

            @step()
            async def go(self) -> Tick:
                log(type(self).__name__, time.monotonic())
                return Tick()

        class A(Base):
            pass

        class B(Base):
            duration = "600ms"

        @depends("A", "B")
        class C(Base):
            pass
        """,
    )
    result = run_file(file)
    assert result.status is RunStatus.COMPLETED
    a, b, c = result.workflows
    assert a.began_seconds is not None
    assert b.began_seconds is not None
    assert c.began_seconds is not None
    assert c.began_seconds >= b.began_seconds + b.elapsed_seconds - 0.1  # clocks of two processes
    assert [workflow.series[0].vus for workflow in result.workflows] == [4, 4, 4]
    at: dict[str, list[float]] = {}
    for name, when in logged(file):
        at.setdefault(name, []).append(float(when))
    assert min(at["C"]) > max(at["A"])
    assert min(at["C"]) > max(at["B"])


def test_independent_workflows_run_together_on_one_core_weighed_by_priority(tmp_path: Path) -> None:
    """Each workflow waits until it has seen the others run; an exclusive one runs after them."""
    file = write(
        tmp_path,
        """
        def weights():
            try:
                with open("/proc/self/autogroup") as file:
                    autogroup = file.read().split()[-1]
            except OSError:
                autogroup = "none"
            return os.getpriority(os.PRIO_PROCESS, 0), autogroup

        class Base(Workflow):
            abstract = True
            vus = 1
            iterations = 1
            duration = "20s"

            @step()
            async def meet(self) -> Tick:
                log("began", type(self).__name__)
                while len([line for line in open(LOG) if "began" in line]) < 3:
                    await asyncio.sleep(0.01)
                while weights()[1] == "0":  # the kernel limits how often weights are written
                    await asyncio.sleep(0.01)
                log("met", type(self).__name__, *weights())
                return Tick()

        class Low(Base):
            priority = "low"

        class High(Base):
            priority = "high"

        class Auto(Base):
            pass

        @depends("Auto")
        class Alone(Workflow):
            vus = 1
            iterations = 1
            priority = "exclusive"

            @step()
            async def go(self) -> Tick:
                while weights()[1] not in ("0", "none"):
                    await asyncio.sleep(0.01)
                log("alone", type(self).__name__, *weights())
                return Tick()
        """,
    )
    file.write_text(file.read_text().replace("import os, time", "import asyncio, os, time"))
    result = run_file(file, workers=1)
    assert result.status is RunStatus.COMPLETED
    lines = logged(file)
    own_nice, has_autogroups = os.getpriority(os.PRIO_PROCESS, 0), Path("/proc/self/autogroup")
    seen = [(word, name, int(nice) - own_nice, group) for word, name, nice, group in lines[3:]]
    weights = {("met", "High"): 5, ("met", "Auto"): 10, ("met", "Low"): 15, ("alone", "Alone"): 5}
    assert seen[-1][0] == "alone"  # after all others, and weighed like any executor
    for word, name, nice, group in seen:
        assert nice == weights.pop((word, name))
        expected = "0" if word == "alone" else str(nice)
        assert group == (expected if has_autogroups.exists() else "none")
    assert not weights
    shared = {workflow.name: workflow.shared_cores for workflow in result.workflows}
    assert shared == {"Low": 1, "High": 1, "Auto": 1, "Alone": 0}
    [note] = result.warnings
    assert note.startswith("3 workflows on 1 core: Low, High and Auto run together")


PROVIDER = """
        class Provider(Workflow):
            vus = 1
            duration = "5s"

            @action()
            async def make(self) -> None:
                self.context["made"] = {{"id": [1, 2.5, "three"], "nested": {{"deep": True}}}}

            @state({to})
            def token(self) -> Provide[dict]:
                return {{"id": [1, 2.5, "three"], "nested": {{"deep": True}}}}
"""
CONSUMER = """
        @depends("Provider")
        class Consumer(Workflow):
            vus = 2
            duration = "200ms"

            @state({of})
            def take(self, {parameter}="the default") -> Use[object]:
                log("took", repr({parameter}).replace(" ", ""))
                return {parameter}

            @step()
            async def go(self) -> Tick:
                log("saw", repr(self.take()).replace(" ", ""))
                return Tick()
"""
VALUE = "{'id':[1,2.5,'three'],'nested':{'deep':True}}"
DEFAULT = "'thedefault'"


@pytest.mark.parametrize(
    ("to", "of", "parameter", "expected"),
    [
        ('"Consumer"', '"Provider"', "token", VALUE),
        ('"Consumer"', '"Provider"', "another", DEFAULT),  # claim 22: the key is the method's name
        ("", '"Provider"', "token", DEFAULT),
        ('"Consumer"', "", "token", DEFAULT),
    ],
    ids=["both sides", "another key", "no reader named", "no provider named"],
)
def test_a_value_is_passed_only_between_workflows_that_name_each_other(
    tmp_path: Path, to: str, of: str, parameter: str, expected: str
) -> None:
    """Claims 21 and 22."""
    body = PROVIDER.format(to=to) + CONSUMER.format(of=of, parameter=parameter)
    file = write(tmp_path, body)
    result = run_file(file, workers=1)
    assert result.status is RunStatus.COMPLETED, result.workflows
    seen = {value for kind, value in logged(file) if kind == "saw"}
    assert seen == {expected}
