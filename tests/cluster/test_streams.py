"""`submit` makes its job and waits for its end, whether or not its output is read."""

import json
import subprocess
from pathlib import Path

from tests.lab.cluster import Cluster
from tests.lab.command import HYPERSCALE
from tests.lab.waiting import WAIT_S


def test_a_submission_does_not_depend_on_the_reader_of_its_output(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = str(cluster.paced(duration="300ms"))
    words = (*HYPERSCALE, "submit", file, "--dir", str(cluster.directory), "--json", "r.json")
    for flags, code, said in (
        ((), 0, ""),
        (("--detach",), 3, " was submitted, but its id could not be written"),
    ):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [*words, *flags],
                cwd=tmp_path,
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=WAIT_S,
                check=False,
            )
        assert done.returncode == code
        assert said in done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["status"] == "completed"


def test_the_output_of_each_executor_is_written_on_the_users_machine(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = cluster.write(
        """
        class Talker(Workflow):
            vus = 2
            duration = "200ms"

            @setup(per="executor")
            async def talk(self) -> None:
                print("hello")

            @step()
            async def get(self, url: URL = "URL_/delay/20") -> HTTPResponse:
                return await self.client.http.get(url)
        """
    )
    where = ("--dir", str(cluster.directory))
    done, cwd = cluster.run_undisturbed(
        *("submit", str(file), "--log-dir", "logs", *where), inside=tmp_path
    )
    assert done.returncode == 0, done.stderr
    written = {log.name: log.read_text() for log in (cwd / "logs").iterdir()}
    assert set(written.values()) == {"hello\n"}
    assert sorted(name.partition("-executor-")[2] for name in written) == ["0.log", "1.log"]
