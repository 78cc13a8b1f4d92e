"""Executors follow changes of their load while they run, natively and in Python."""

import pytest

from hyperscale.plan.changes import AppliedChange, ChangeKind
from tests.conftest import RunningTarget
from tests.lab.executors import Bench, Lab

PAUSE = AppliedChange(kind=ChangeKind.PAUSE, at_s=0.0)


def scale(target: float) -> AppliedChange:
    return AppliedChange(kind=ChangeKind.SCALE, at_s=0.0, target=target)


def write(lab: Lab, target: RunningTarget, settings: str) -> None:
    lab.write(f"""
        class Load(Workflow):
            {settings}

            @step()
            async def get(
                self, url: URL = "{target.url}/delay/5"
            ) -> HTTPResponse:
                return await self.client.http.get(url)
    """)


def at(bench: Bench, change: AppliedChange) -> AppliedChange:
    """Return the change as made at the time of the last report."""
    elapsed_s = bench.outcomes[0].reports[-1].elapsed_s
    return AppliedChange(kind=change.kind, at_s=elapsed_s, target=change.target)


async def quiet(bench: Bench) -> int:
    """Wait until three reports in a row have the same count; return it."""
    reports = bench.outcomes[0].reports

    def is_quiet() -> bool:
        counts = [report.iterations for report in reports[-3:]]
        return len(counts) == 3 and len(set(counts)) == 1

    await bench.until(is_quiet)
    return reports[-1].iterations


@pytest.mark.parametrize("static", [True, False], ids=["native", "python"])
@pytest.mark.parametrize(
    "settings",
    ["vus = 3; duration = '2s'", "rate = '100/s'; duration = '2s'; max_vus = 20"],
    ids=["users", "rate"],
)
def test_a_paused_slot_sends_nothing_and_makes_the_time_up(
    lab: Lab, target: RunningTarget, settings: str, static: bool
) -> None:
    write(lab, target, settings)

    async def work(bench: Bench) -> None:
        await bench.prepare("Load", static=static)
        bench.pool.start(bench.ids)
        outcome = bench.outcomes[0]
        await bench.until(lambda: any(report.iterations > 5 for report in outcome.reports))
        changes = [at(bench, PAUSE)]
        bench.pool.change(bench.ids, changes)
        before = await quiet(bench)
        assert not outcome.is_over
        changes.append(at(bench, AppliedChange(kind=ChangeKind.RESUME, at_s=0.0)))
        bench.pool.change(bench.ids, changes)
        await bench.until(lambda: outcome.reports[-1].iterations > before)
        (ended,) = await bench.ended()
        paused_s = changes[1].at_s - changes[0].at_s
        assert ended.report.elapsed_s >= 2.0 + paused_s - 0.05
        if "rate" in settings:  # every arrival of the two seconds came, before and after the pause
            begun = (
                ended.metric("hyperscale.begun").count + ended.metric("hyperscale.dropped").count
            )
            assert begun == 200

    lab.work(work)


@pytest.mark.parametrize("static", [True, False], ids=["native", "python"])
def test_users_are_added_and_leave_while_the_slot_runs(
    lab: Lab, target: RunningTarget, static: bool
) -> None:
    write(lab, target, "vus = 2; duration = '20s'")

    async def work(bench: Bench) -> None:
        await bench.prepare("Load", static=static)
        bench.pool.start(bench.ids)
        outcome = bench.outcomes[0]
        await bench.until(lambda: any(report.vus == 2 for report in outcome.reports))
        changes: list[AppliedChange] = []
        for users in (7, 1, 0, 4):
            changes.append(at(bench, scale(users)))
            bench.pool.change(bench.ids, changes)
            await bench.until(lambda: outcome.reports[-1].vus == users)  # noqa: B023 - awaited here
        before = outcome.reports[-1].iterations
        await bench.until(lambda: outcome.reports[-1].iterations > before)
        bench.pool.stop(bench.ids, "enough")
        (ended,) = await bench.ended()
        assert ended.step("get").counts.failed == 0

    lab.work(work)


def test_users_that_come_later_are_set_up_and_torn_down(lab: Lab) -> None:
    lab.write("""
        class Load(Workflow):
            vus = 1
            duration = "20s"

            @setup(per="vu")
            async def login(self):
                log("login", self.vu)

            @step()
            async def one(self) -> Result:
                await asyncio.sleep(0.01)
                return Result()

            @teardown(per="vu")
            async def logout(self):
                log("logout", self.vu)
    """)

    async def work(bench: Bench) -> None:
        await bench.prepare("Load")
        bench.pool.start(bench.ids)
        outcome = bench.outcomes[0]
        await bench.until(lambda: any(report.vus == 1 for report in outcome.reports))
        bench.pool.change(bench.ids, [at(bench, scale(3))])
        await bench.until(lambda: outcome.reports[-1].vus == 3)
        bench.pool.stop(bench.ids, "enough")
        await bench.ended()
        assert sorted(lab.log()) == [
            f"{what} {vu}" for what in ("login", "logout") for vu in range(3)
        ]

    lab.work(work)


@pytest.mark.parametrize("static", [True, False], ids=["native", "python"])
def test_a_slot_that_begins_in_the_middle_drops_what_it_missed_and_ends_in_time(
    lab: Lab, target: RunningTarget, static: bool
) -> None:
    write(lab, target, "rate = '100/s'; duration = '3s'; max_vus = 20")

    async def work(bench: Bench) -> None:
        await bench.prepare("Load", static=static)
        bench.pool.start(bench.ids, since_s=2.5)
        (ended,) = await bench.ended()
        begun = ended.metric("hyperscale.begun").count
        assert begun + ended.metric("hyperscale.dropped").count == 300
        assert 0 < begun <= 50
        assert ended.report.elapsed_s >= 3.0

    lab.work(work)


@pytest.mark.parametrize("static", [True, False], ids=["native", "python"])
def test_a_slot_with_stages_begins_with_the_users_of_its_place(
    lab: Lab, target: RunningTarget, static: bool
) -> None:
    write(lab, target, "stages = [('10s', 20), ('20s', 20)]")

    async def work(bench: Bench) -> None:
        await bench.prepare("Load", static=static)
        bench.pool.start(bench.ids, since_s=12.0)
        outcome = bench.outcomes[0]
        await bench.until(lambda: any(report.vus == 20 for report in outcome.reports))
        bench.pool.stop(bench.ids, "enough")
        await bench.ended()

    lab.work(work)
