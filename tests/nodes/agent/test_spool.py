"""Results on disk: whole or not there."""

from pathlib import Path

from hyperscale.jobs.messages import AttemptId, DeliverResult
from hyperscale.nodes.agent.result_store import ResultStore
from hyperscale.plan.status import PartStatus


def finished(job: str = "dc.1-a", attempt: int = 1) -> DeliverResult:
    return DeliverResult(
        worker="w1",
        group=1,
        run=AttemptId(job, "Load", 0, attempt),
        status=PartStatus.COMPLETED,
        report=None,
        provided=[b"\x00\xff"],
    )


def test_results_are_found_again_until_they_are_erased(tmp_path: Path) -> None:
    spool = ResultStore(tmp_path / "results")
    assert spool.open() == ([], [])
    one, two = finished(), finished(attempt=2)
    spool.store(one)
    spool.store(two)
    spool.store(one)
    results, broken = ResultStore(tmp_path / "results").open()
    assert sorted(each.run.attempt for each in results) == [1, 2]
    assert one in results
    assert broken == []
    spool.erase(one.run)
    spool.erase(one.run)
    assert ResultStore(tmp_path / "results").open() == ([two], [])


def test_a_damaged_result_is_told_and_left_where_it_is(tmp_path: Path) -> None:
    spool = ResultStore(tmp_path)
    spool.store(finished())
    (damaged,) = tmp_path.glob("*.result")
    damaged.write_bytes(damaged.read_bytes()[:-3])
    spool.store(finished("dc.1-b"))
    (tmp_path / "half.part").write_bytes(b"half")
    results, broken = spool.open()
    assert [each.run.job for each in results] == ["dc.1-b"]
    assert broken == [damaged]
    assert not (tmp_path / "half.part").exists()


def test_names_cannot_lead_out_of_the_directory(tmp_path: Path) -> None:
    spool = ResultStore(tmp_path / "results")
    spool.store(finished("../../outside"))
    assert len(list((tmp_path / "results").iterdir())) == 1
