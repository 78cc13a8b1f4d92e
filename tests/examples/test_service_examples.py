"""Every example for a server runs as it is, against a real one."""

from pathlib import Path

import pytest

from tests.lab.command import results, run
from tests.services.fixtures import GetService

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples" / "services"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_an_example_passes_on_its_server(
    name: str,
    tmp_path: Path,
    service: GetService,
) -> None:
    file = str(EXAMPLES / f"{name}.py")
    url = service(name).client_url
    length = "10s" if name == "browser" else "1s"  # a page takes seconds on a busy machine
    flags = ("--set", f"url={url}", "--duration", length, "--json", "r.json")
    done = run("run", file, *flags, cwd=tmp_path)
    assert done.code == 0, done.stdout + done.stderr
    assert "sesame" not in done.stdout + done.stderr
    for workflow in results(tmp_path / "r.json")["workflows"]:
        assert workflow["status"] == "completed"
        assert not any(step["failed"] for step in workflow["steps"]), workflow["steps"]
        assert all(step["ok"] for step in workflow["steps"]), workflow["steps"]
        assert not any(check["failed"] for check in workflow["checks"])
