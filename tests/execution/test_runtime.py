"""Virtual users run the steps of a workflow: order, arguments, records."""

import pytest

from hyperscale._native import Histogram
from hyperscale.errors import InputError
from hyperscale.plan.status import PartStatus
from tests.lab.executors import Lab


def test_a_diamond_runs_in_order_and_its_middle_overlaps(lab: Lab) -> None:
    lab.write("""
        class Diamond(Workflow):
            vus = 5
            duration = "30s"
            iterations = 50

            async def trace(self, name):
                self.context.setdefault("trace", []).append(("begin", name))
                await asyncio.sleep(0.001)
                self.context["trace"].append(("end", name))
                return Result()

            @step()
            async def a(self) -> Result:
                self.context["trace"] = []
                return await self.trace("a")

            @step("a")
            async def b(self) -> Result:
                return await self.trace("b")

            @step("a")
            async def c(self) -> Result:
                return await self.trace("c")

            @step("b", "c")
            async def d(self) -> Result:
                result = await self.trace("d")
                trace = self.context["trace"]
                order = [name for what, name in trace if what == "begin"]
                place = {item: place for place, item in enumerate(trace)}
                assert order == ["a", "b", "c", "d"], order
                assert place["end", "a"] < place["begin", "b"]
                assert place["begin", "c"] < place["end", "b"]
                assert place["begin", "b"] < place["end", "c"]
                assert max(place["end", "b"], place["end", "c"]) < place["begin", "d"]
                return result
    """)
    (outcome,) = lab.run("Diamond")
    counts = outcome.step("d").counts
    assert (counts.total, counts.ok, counts.failed) == (50, 50, 0), outcome.output
    assert outcome.report.iterations == 50


def test_results_are_not_shared_between_users_or_iterations(lab: Lab) -> None:
    lab.write("""
        class Islands(Workflow):
            vus = 100
            duration = "60s"
            iterations = 10_000

            @step()
            async def give(self) -> Result:
                await asyncio.sleep(0)
                return Result((id(self), self.iteration))

            @step("give")
            async def take(self, give: Result | None = None, late=None) -> Result:
                await asyncio.sleep(0)
                return Result(ok=give.value == (id(self), self.iteration) and late is None)

            @step("take")
            async def late(self) -> Result:
                return Result("only for whoever comes after me")
    """)
    (outcome,) = lab.run("Islands")
    counts = outcome.step("take").counts
    assert (counts.total, counts.ok, counts.failed) == (10_000, 10_000, 0), outcome.output


def test_a_raising_step_fails_once_and_skips_what_depends_on_it(lab: Lab) -> None:
    lab.write("""
        class Raising(Workflow):
            vus = 2
            duration = "30s"
            iterations = 10

            @step()
            async def bad(self) -> Result:
                raise ValueError("no luck")

            @step("bad")
            async def after(self) -> Result:
                return Result()

            @step("after")
            async def later(self) -> Result:
                return Result()

            @step()
            async def other(self) -> Result:
                return Result()
    """)
    (outcome,) = lab.run("Raising")
    bad, after, later, other = (outcome.step(n).counts for n in ("bad", "after", "later", "other"))
    assert (bad.total, bad.failed, bad.errors) == (10, 10, {"exception": 10})
    assert (after.total, after.skipped) == (0, 10)
    assert (later.total, later.skipped) == (0, 10)
    assert (other.total, other.ok, other.skipped) == (10, 10, 0)
    assert outcome.finished is not None
    assert outcome.finished.status is PartStatus.COMPLETED
    # Printed once, with the user's line and no frame of Hyperscale, then counted.
    assert outcome.output.count("ValueError: no luck") == 1
    assert 'raise ValueError("no luck")' in outcome.output
    assert "hyperscale/execution" not in outcome.output
    assert "bad raised ValueError" in outcome.output
    assert "10 times in this process" in outcome.output


def test_a_raising_step_beside_another_in_its_layer_skips_only_its_own_dependents(
    lab: Lab,
) -> None:
    lab.write("""
        class Layer(Workflow):
            vus = 1
            duration = "30s"
            iterations = 4

            @step()
            async def left(self) -> Result:
                await asyncio.sleep(0)
                raise RuntimeError

            @step()
            async def right(self) -> Result:
                await asyncio.sleep(0)
                return Result(7)

            @step("left", "right")
            async def both(self) -> Result:
                return Result()

            @step("right")
            async def one(self, right=None) -> Result:
                return Result(ok=right.value == 7)
    """)
    (outcome,) = lab.run("Layer")
    assert outcome.step("left").counts.failed == 4
    assert outcome.step("both").counts.skipped == 4
    assert outcome.step("one").counts.ok == 4


def test_a_custom_result_is_timed_and_recorded_with_its_error_class(lab: Lab) -> None:
    lab.write("""
        class Custom(Workflow):
            vus = 1
            duration = "30s"
            iterations = 3

            @step()
            async def slow(self) -> Result:
                await asyncio.sleep(0.02)
                return Result()

            @step()
            async def poor(self) -> Result:
                result = Result(ok=False)
                result.error = "stale"
                return result

            @action()
            async def quiet(self):
                await asyncio.sleep(0.02)
    """)
    (outcome,) = lab.run("Custom")
    slow, poor, quiet = (outcome.step(name) for name in ("slow", "poor", "quiet"))
    latency = Histogram.decode(slow.latency or b"")
    assert latency.count == 3
    assert latency.min_ns >= 19_000_000
    assert poor.counts.failed == 3
    assert poor.counts.errors == {"stale": 3}
    assert quiet.counts.ok == 3
    assert Histogram.decode(quiet.latency or b"").count == 0


def test_arguments_come_from_ancestors_then_context_then_defaults(lab: Lab) -> None:
    lab.write("""
        class Arguments(Workflow):
            vus = 1
            duration = "30s"
            iterations = 2

            @setup(per="executor")
            async def prepare(self):
                self.context.update(token="t-1", first="from the context", url="http://wrong")

            @step()
            async def first(self) -> Result:
                return Result("step")

            @step("first")
            async def second(
                self,
                url: URL = "http://localhost:1/right",
                first=None,
                token="default",
                missing="default",
                fresh: list = [],
            ) -> Result:
                fresh.append(1)
                log(url, first.value, token, missing, len(fresh))
                return Result()
    """)
    lab.run("Arguments")
    assert lab.log() == ["http://localhost:1/right step t-1 default 1"] * 2


@pytest.mark.parametrize("define", ["async def", "def"])
def test_checks_and_metrics_see_the_results_of_their_iteration(lab: Lab, define: str) -> None:
    text = """
        class Judged(Workflow):
            vus = 2
            duration = "30s"
            iterations = 8

            @step()
            async def number(self) -> Result:
                if self.iteration == 1:
                    raise ValueError
                return Result(self.iteration + 1)

            @check()
            def is_small(self, number):
                return number.value < 4

            @check()
            DEFINE asserts(self, number):
                assert number.value != 3, "three"

            @metric("distribution")
            def width(self, number):
                return number.value

            @metric("count")
            def none(self, number):
                return None
    """
    lab.write(text.replace("DEFINE", define))
    (outcome,) = lab.run("Judged")
    # Two users share eight iterations; the second iteration of each raised.
    small, asserts = outcome.check("is_small"), outcome.check("asserts")
    judged = outcome.step("number").counts.ok
    assert small.passed + small.failed == judged
    assert small.failed >= 1
    assert small.first_failure == "returned False"
    assert asserts.first_failure is not None
    assert asserts.first_failure.startswith("AssertionError: three")
    width = outcome.metric("width")
    assert width.count == judged
    assert width.min == 1.0
    assert width.distribution is not None
    assert outcome.metric("none").count == 0


def test_an_executor_without_a_free_descriptor_keeps_reporting(lab: Lab) -> None:
    lab.write("""
        import resource

        class Starved(Workflow):
            vus = 1
            duration = "30s"
            iterations = 20

            @step()
            async def one(self) -> Result:
                if self.iteration == 0:
                    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
                    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
                    held = self.context["held"] = []
                    try:
                        while True:
                            held.append(os.open("/dev/null", os.O_RDONLY))
                    except OSError:
                        pass
                await asyncio.sleep(0.02)
                return Result()
    """)
    (outcome,) = lab.run("Starved")
    assert outcome.step("one").counts.ok == 20
    assert len(outcome.reports) > 2


def test_an_action_workflow_that_raises_has_failed(lab: Lab) -> None:
    lab.write("""
        class Seed(Workflow):
            vus = 1
            duration = "30s"

            @action()
            async def make(self):
                raise OSError("disk is full")
    """)
    (outcome,) = lab.run("Seed")
    assert outcome.finished is not None
    assert outcome.finished.status is PartStatus.FAILED
    assert outcome.finished.error is not None
    assert outcome.finished.error.startswith("Seed.make: OSError: disk is full")


def test_one_executor_runs_one_slot_after_another(lab: Lab) -> None:
    lab.write("""
        class First(Workflow):
            vus = 2
            duration = "30s"
            iterations = 4

            @step()
            async def one(self) -> Result:
                log("first", os.getpid())
                return Result()

        class Second(Workflow):
            vus = 1
            duration = "30s"
            iterations = 3

            @step()
            async def two(self) -> Result:
                log("second", os.getpid())
                return Result()
    """)

    async def work(bench) -> None:
        (first,) = await bench.run("First")
        (second,) = await bench.run("Second")
        assert first.report.iterations == 4
        assert second.report.iterations == 3
        assert [step.name for step in second.report.steps] == ["two"]

    lab.work(work)
    assert len({line.split()[1] for line in lab.log()}) == 1


def test_reports_are_sequenced_cumulative_and_carry_the_executor_state(lab: Lab) -> None:
    lab.write("""
        class Steady(Workflow):
            vus = 3
            duration = "1200ms"

            @step()
            async def one(self) -> Result:
                await asyncio.sleep(0.01)
                return Result()
    """)
    (outcome,) = lab.run("Steady")
    sequences = [report.sequence for report in outcome.reports] + [outcome.report.sequence]
    totals = [report.steps[0].counts.total for report in [*outcome.reports, outcome.report]]
    assert sequences == sorted(set(sequences))
    assert totals == sorted(totals)
    assert outcome.reports[0].vus == 3
    assert outcome.report.users[:2] == [0, 3]
    assert outcome.report.rss_bytes > 1_000_000
    assert outcome.report.cpu_s > 0
    assert any(report.steps[0].latency is not None for report in outcome.reports)
    assert sum(point.total for point in outcome.report.steps[0].series) == totals[-1]


@pytest.mark.parametrize(
    ("annotation", "body", "said"),
    [
        ("Result", "return asyncio.sleep(0)", "is an `await` missing?"),
        ("Result", "return asyncio.ensure_future(asyncio.sleep(0))", "is an `await` missing?"),
        ("Result", "await asyncio.sleep(0)", "is a `return` missing?"),
        ("Result", "return 5", "it returned int, not its Result"),
    ],
)
def test_a_step_that_does_not_return_its_annotated_result_has_failed(
    lab: Lab, annotation: str, body: str, said: str
) -> None:
    lab.write(f"""
        class Forgetful(Workflow):
            vus = 1
            duration = "30s"
            iterations = 2

            @step()
            async def forget(self) -> {annotation}:
                {body}
    """)
    (outcome,) = lab.run("Forgetful")
    counts = outcome.step("forget").counts
    assert (counts.ok, counts.failed, counts.errors) == (0, 2, {"exception": 2})
    assert said in outcome.output
    assert "never awaited" not in outcome.output


@pytest.mark.parametrize(
    ("annotation", "body", "ok", "none"),
    [
        ("Result | None", "await asyncio.sleep(0)", 0, 2),
        ("Result | dict", "return {}", 0, 2),
    ],
)
def test_a_call_that_returns_no_result_where_none_is_owed_is_neither_ok_nor_failed(
    lab: Lab, annotation: str, body: str, ok: int, none: int
) -> None:
    lab.write(f"""
        class Idle(Workflow):
            vus = 1
            duration = "30s"
            iterations = 2

            @step()
            async def rest(self) -> {annotation}:
                {body}
    """)
    (outcome,) = lab.run("Idle")
    counts = outcome.step("rest").counts
    assert (counts.total, counts.ok, counts.failed, counts.none) == (ok, ok, 0, none)


def test_more_users_than_descriptors_are_refused_before_the_run(lab: Lab) -> None:
    lab.write("""
        class Many(Workflow):
            vus = 50
            duration = "30s"
            iterations = 1

            @setup(per="executor")
            async def tighten(self):
                import resource
                _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
                resource.setrlimit(resource.RLIMIT_NOFILE, (48, hard))

            @step()
            async def one(self) -> HTTPResponse:
                return await self.client.http.get("http://127.0.0.1:1/")
    """)
    with pytest.raises(InputError, match=r"Many.vus: 50 virtual users are more .*ulimit -n"):
        lab.run("Many")


def test_a_request_part_that_cannot_be_encoded_is_refused_with_its_place(lab: Lab) -> None:
    lab.write("""
        from hyperscale.testing import Data

        class Odd(Workflow):
            vus = 1

            @step()
            async def send(self, body: Data = {"a": object()}) -> HTTPResponse:
                return await self.client.http.post("http://127.0.0.1:1/", data=body)
    """)
    with pytest.raises(InputError, match=r"flows\.py: Odd\.send: body: .* cannot be sent as JSON"):
        lab.run("Odd")
