"""Flags that change the load and its conditions, and loads that no machine can run."""

from pathlib import Path

import pytest

from tests.conftest import RunningTarget
from tests.lab.command import HEADER, results, run, write

SHOP = """
    class Shop(Workflow):
        vus = 2
        iterations = 6
        duration = "30s"
        thresholds = {{"pay.total": {{"limit": ">=1", "abort_on_fail": True}}}}

        @step()
        async def pay(self, url: URL = "{url}/") -> HTTPResponse:
            return await self.client.http.get(url)

    class Admin(Workflow):
        vus = 1
        iterations = 1
        duration = "30s"

        @step()
        async def list(self, url: URL = "{url}/json") -> HTTPResponse:
            return await self.client.http.get(url)
"""

WRONG_THRESHOLDS = {
    "no limit": (["pay.p99"], ["'pay.p99': not a threshold", "pay.p99<250ms"]),
    "empty": ([""], ["'': not a threshold"]),
    "no unit": (["pay.p99<250"], ["a number without a unit"]),
    "no such step": (["buy.p99<1s"], ["names no step 'buy'", "steps: pay"]),
    "no such workflow": (["Shp:p99<1s"], ["no workflow is called 'Shp'", "Shop, Admin"]),
    "no such step of that workflow": (["Admin:pay.p99<1s"], ["names no step 'pay'"]),
    "of which workflow": (["p99<1s"], ["Shop, Admin could have it", '"Shop:p99<1s"']),
    "more than all": (["Shop:errors<200%"], ["more than 100 %"]),
    "twice": (["pay.p99<1s", "Shop:pay.p99<2s"], ["Shop was given another 'pay.p99'"]),
}


def test_thresholds_of_the_command_line_join_those_of_the_file(
    tmp_path: Path, target: RunningTarget
) -> None:
    write(tmp_path / "shop.py", SHOP.format(url=target.url))
    flags = ("--threshold", "pay.total>=6", "--threshold", "Admin:errors < 1%")
    done = run("run", "shop.py", *flags, "--json", "r.json", "--ui", "none", cwd=tmp_path)
    assert done.code == 0, done.stderr
    judged = results(tmp_path / "r.json")["thresholds"]
    assert [(t["workflow"], t["name"], t["limit"], t["abort_on_fail"]) for t in judged] == [
        ("Shop", "pay.total", ">=6", True),
        ("Admin", "errors", "< 1%", False),
    ]
    done = run("run", "shop.py", "--threshold", "list.total>1", "--ui", "none", cwd=tmp_path)
    assert done.code == 1, done.stderr


@pytest.mark.parametrize("name", WRONG_THRESHOLDS)
def test_a_wrong_threshold_is_refused(name: str, tmp_path: Path) -> None:
    write(tmp_path / "shop.py", SHOP.format(url="http://127.0.0.1:1"))
    texts, says = WRONG_THRESHOLDS[name]
    flags = [word for text in texts for word in ("--threshold", text)]
    for command in ("run", "submit") if name == "no limit" else ("run",):
        done = run(command, "shop.py", *flags, cwd=tmp_path)
        assert (done.code, done.stdout) == (2, "")
        assert all(words in done.stderr for words in ("--threshold", *says)), done.stderr


def test_more_users_than_the_machine_can_run_are_refused_before_anything_starts(
    tmp_path: Path, target: RunningTarget
) -> None:
    write(tmp_path / "shop.py", SHOP.format(url=target.url))
    done = run("run", "shop.py", "--vus", "10000000", cwd=tmp_path)
    assert (done.code, done.stdout) == (2, "")
    for words in (
        "shop.py: Shop.vus: 10,000,000 virtual users are more than this machine can run",
        "memory for at most",
        "descriptors for",
        f"connections to 127.0.0.1:{target.port}",
        "hint: use at most",
        "net.ipv4.ip_local_port_range",
    ):
        assert words in done.stderr
    assert target.counts()["connections"]["total"] == 0


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    shop = SHOP.format(url="http://127.0.0.1:1")
    for text in ("name = 'caf\xe9'\n", "# -*- coding: latin-1 -*-\nname = 'caf\xe9'\n"):
        (tmp_path / "shop.py").write_bytes((text + HEADER + shop).encode("latin-1"))
        done = run("check", "shop.py", cwd=tmp_path)
        line = text.count("\n")
        assert (done.code, done.stdout) == (2, "")
        assert f"shop.py:{line}: not UTF-8: byte 0xe9" in done.stderr
        assert "save the file as UTF-8" in done.stderr
