"""Setup and teardown hooks: what they see, do and report."""

import pytest

from hyperscale.errors import RunError
from tests.lab.executors import Bench, Lab


def test_setup_and_teardown_run_once_around_the_users_and_share_the_context(lab: Lab) -> None:
    lab.write("""
        class Framed(Workflow):
            vus = 4
            duration = "30s"
            iterations = 8

            @setup(per="executor")
            async def open(self):
                self.context["token"] = "t-1"
                log("setup")

            @step()
            async def use(self, token=None) -> Result:
                self.context["own"] = id(self)
                return Result(ok=token == "t-1")

            @teardown(per="executor")
            def close(self):
                log("teardown", self.context["token"])
    """)
    (outcome,) = lab.run("Framed")
    assert lab.log() == ["setup", "teardown t-1"]
    assert outcome.step("use").counts.ok == 8
    assert outcome.step("open").counts.ok == 1
    assert outcome.step("close").counts.ok == 1


def test_a_failing_setup_hook_refuses_the_slot_and_teardown_hooks_run(lab: Lab) -> None:
    lab.write("""
        class Broken(Workflow):
            vus = 1
            duration = "30s"

            @setup(per="executor")
            async def open(self):
                raise ConnectionError("no database")

            @step()
            async def use(self) -> Result:
                return Result()

            @teardown(per="executor")
            async def close(self):
                log("teardown")
    """)

    async def work(bench: Bench) -> None:
        with pytest.raises(RunError, match=r"Broken\.open failed: ConnectionError: no database"):
            await bench.prepare("Broken")
        (outcome,) = bench.outcomes
        assert outcome.output.count("ConnectionError: no database") == 1
        # The requests of the hooks are reported although the slot failed.
        (report,) = outcome.reports
        counts = {step.name: step.counts for step in report.steps}
        assert (counts["open"].failed, counts["use"].total, counts["close"].ok) == (1, 0, 1)

    lab.work(work)
    assert lab.log() == ["teardown"]


def test_requests_of_setup_hooks_are_reported_if_another_slot_fails_to_prepare(lab: Lab) -> None:
    lab.write("""
        class Picky(Workflow):
            vus = 2
            duration = "30s"

            @setup(per="executor")
            async def open(self):
                try:
                    os.mkdir(LOG + ".first")
                    return
                except FileExistsError:
                    raise RuntimeError("second")

            @step()
            async def one(self) -> Result:
                return Result()
    """)

    async def work(bench: Bench) -> None:
        with pytest.raises(RunError, match="second"):
            await bench.prepare("Picky")
        last = [outcome.reports[-1].steps[0].counts for outcome in bench.outcomes]
        assert sorted((counts.ok, counts.failed) for counts in last) == [(0, 1), (1, 0)]
        assert not any(outcome.is_over for outcome in bench.outcomes)

    lab.work(work, executors=2)


@pytest.mark.parametrize(
    ("body", "counted", "said"),
    [
        ("asyncio.current_task().cancel(); await asyncio.sleep(9)", (0, 1), "cancelled themselves"),
        ("t = asyncio.ensure_future(asyncio.sleep(9)); t.cancel(); await t", (1, 0), "Cancelled"),
    ],
)
def test_a_teardown_hook_that_cancels_itself_does_not_keep_the_slot_from_ending(
    lab: Lab, body: str, counted: tuple[int, int], said: str
) -> None:
    lab.write(f"""
        class Fickle(Workflow):
            vus = 1
            duration = "30s"
            iterations = 1

            @step()
            async def one(self) -> Result:
                return Result()

            @teardown(per="executor")
            async def close(self):
                {body}
    """)
    (outcome,) = lab.run("Fickle")
    counts = outcome.step("close").counts
    assert (counts.failed, counts.cut) == counted
    assert said in outcome.output
