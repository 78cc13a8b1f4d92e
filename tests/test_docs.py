"""The documents point to files that exist."""

import re
from pathlib import Path

import pytest

from tests.figures import ROOT

QUESTIONS = re.compile(r"^\| (\d+) \| (.+\?) \| `([^`]+)` \|$", re.MULTILINE)
LINKS = re.compile(r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_twenty_questions_have_one_existing_file_each() -> None:
    rows = QUESTIONS.findall((ROOT / "docs" / "finding-your-way.md").read_text())
    assert [int(number) for number, _, _ in rows] == list(range(1, 21))
    assert not [file for _, _, file in rows if not (ROOT / file).is_file()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_document_leads_to_a_file(page: Path) -> None:
    links = LINKS.findall(FENCED.sub("", page.read_text()))
    assert not [link for link in links if not (page.parent / link).exists()]


def test_the_map_names_existing_modules() -> None:
    """`jobs.leader.core` in ARCHITECTURE.md is a module or package of hyperscale."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = {path.name for path in (ROOT / "hyperscale").iterdir() if path.is_dir()}
    named = {
        name
        for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", text)
        if name.split(".")[0] in rooms
    }
    assert named, "the map names no module"
    missing = [
        name
        for name in sorted(named)
        if not (ROOT / "hyperscale" / f"{name.replace('.', '/')}.py").is_file()
        and not (ROOT / "hyperscale" / name.replace(".", "/")).is_dir()
    ]
    assert not missing
