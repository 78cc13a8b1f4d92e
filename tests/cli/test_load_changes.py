"""`hyperscale scale`, `pause` and `resume` of a run on this machine."""

import stat
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunningTarget
from tests.lab.command import finish, results, run, start, write
from tests.lab.waiting import until

TEST = """
    class Load(Workflow):
        vus = 2
        duration = "{duration}"

        @step()
        async def get(self, url: URL = "{url}/delay/5") -> HTTPResponse:
            return await self.client.http.get(url)
"""


def running(target: RunningTarget) -> bool:
    return bool(target.counts()["total"] > 5)


def test_a_run_is_paused_scaled_and_resumed_through_its_results_directory(
    tmp_path: Path, target: RunningTarget
) -> None:
    write(tmp_path / "shop.py", TEST.format(url=target.url, duration="4s"))
    process = start("run", "shop.py", "--out", "out", "--workers", "2", cwd=tmp_path)
    until(lambda: running(target), what="the run has begun")
    socket = tmp_path / "out" / "control.sock"
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert run("pause", "--run", "out", cwd=tmp_path).stdout == "the load is paused\n"
    again = run("pause", "--run", "out", cwd=tmp_path)
    assert (again.code, again.stderr.count("the load is paused already")) == (2, 1)
    assert run("scale", "--run", "out", "--vus", "6", cwd=tmp_path).code == 0
    assert run("resume", "--run", "out", cwd=tmp_path).stdout == "the load goes on\n"
    until(lambda: peak(target) == 6, what="six users are connected")
    assert finish(process).code == 0
    (load,) = results(tmp_path / "out" / "results.json")["workflows"]
    assert [each["kind"] for each in load["changes"]] == ["pause", "scale", "resume"]
    assert load["changes"][1]["target"] == 6
    assert load["paused_seconds"] > 0
    assert load["sent"] == target.counts()["total"]
    assert not socket.exists()
    assert "6 users" in (tmp_path / "out" / "report.html").read_text()


def peak(target: RunningTarget) -> Any:
    return target.counts()["connections"]["peak"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("scale", "--run", "nowhere", "--vus", "5"), "--run: there is no directory nowhere"),
        (("pause", "--run", "."), "--run: no run writes to . now"),
        (("pause",), "give a job or --run, and not both"),
        (("scale", "--run", "."), "give --vus or --rate, and not both"),
        (("scale", "--run", ".", "--vus", "5", "--rate", "5/s"), "give --vus or --rate"),
        (("scale", "--run", ".", "--vus", "-1"), "--vus: '-1' must be at least 0"),
        (("scale", "--run", ".", "--vus", "1.5"), "--vus: '1.5' is not a whole number"),
        (("scale", "--run", ".", "--rate", "fast"), "--rate: 'fast' is not a rate"),
        (("scale", "--run", ".", "--vus", "5", "--over", "soon"), "--over: "),
    ],
)
def test_wrong_values_exit_with_2(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    done = run(*words, cwd=tmp_path)
    assert done.code == 2, done
    assert message in done.stderr
    assert "Traceback" not in done.stderr
