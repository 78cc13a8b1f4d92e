"""A worker says how many rows its slots have used, and hands limits to executors."""

from hyperscale.jobs.agent.events import GrantAttemptRows, PlaceReported
from hyperscale.jobs.messages import AnnounceRows, GrantRows
from hyperscale.plan.rows import RowBounds
from hyperscale.plan.status import PartStatus
from tests.lab.agent_world import AgentWorld, attempt_id, report


def fed(*, cores: int = 2) -> AgentWorld:
    world = AgentWorld()
    world.runs(cores=cores, rows=RowBounds(first=100, limit=200))
    return world


def use(world: AgentWorld, place: int, drawn: int) -> list[AnnounceRows]:
    """Let an executor report; return what the job leader is told of it."""
    made = report(drawn, slot=place, sequence=drawn)
    return world.sent(
        AnnounceRows, world.feed(PlaceReported(attempt_id(), place, made, drawn=drawn))
    )


def grant(limit: int) -> GrantRows:
    return GrantRows(attempt_id=attempt_id(), group=1, term=1, limit=limit)


def test_use_is_announced_each_second_and_often_when_little_is_left() -> None:
    world = fed()
    (first,) = use(world, 0, 110)
    assert (first.used, first.limit) == ([110, 100], 200)
    assert use(world, 1, 105) == []
    world.wait(1.0)
    assert [each.used for each in use(world, 1, 106)] == [[110, 106]]
    world.wait(0.2)
    assert [each.used for each in use(world, 0, 150)] == [[150, 106]]  # half of it is used
    world.wait(0.2)
    assert len(use(world, 0, 150)) == 1  # it waits, and says so again


def test_a_limit_goes_to_the_executors_once() -> None:
    world = fed()
    use(world, 0, 190)
    world.effects.clear()
    assert world.part(grant(400)).accepted
    assert world.part(grant(400)).accepted
    assert world.part(grant(300)).accepted
    granted = [each for each in world.effects if isinstance(each, GrantAttemptRows)]
    assert [(each.places, each.limit) for each in granted] == [((0, 1), 400)]
    world.wait(0.2)
    assert use(world, 0, 200) == []  # enough is left


def test_a_new_job_leader_hears_of_the_use_at_once() -> None:
    world = fed()
    use(world, 0, 110)
    world.command(grant(200), sender="m2")
    assert [each.used for each in use(world, 1, 101)] == [[110, 101]]


def test_the_result_says_how_many_rows_were_used() -> None:
    world = fed()
    use(world, 0, 110)
    world.end(status=PartStatus.COMPLETED, report=report(5), drawn=120)
    assert world.result().rows_used == [120, 120]
