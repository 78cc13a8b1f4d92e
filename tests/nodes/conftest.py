"""Where soak tests leave what they found, and where nodes leave what they keep."""

from pathlib import Path

import pytest

from tests.nodes.report import RESULTS, Report


@pytest.fixture
def report() -> Report:
    return Report(RESULTS)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes keep their data below the working directory."""
    monkeypatch.chdir(tmp_path)
