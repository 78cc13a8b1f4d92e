"""The documents point to files that exist."""

import re
from pathlib import Path

import pytest

from hyperscale.clients.http import HTTPClient
from hyperscale.clients.templates import (
    BODY_BYTES_MAX,
    CONNECT_TIMEOUT_S,
    REDIRECTS_MAX,
    BodyCall,
    PlainCall,
)
from hyperscale.graph.loading import collect, load_module
from hyperscale.graph.planning import build_plan
from hyperscale.graph.settings import ATTRIBUTES
from hyperscale.testing import HTTPResponse
from tests.figures import ROOT

QUESTIONS = re.compile(r"^\| (\d+) \| (.+\?) \| `([^`]+)` \|$", re.MULTILINE)
LINKS = re.compile(r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_twenty_questions_have_one_existing_file_each() -> None:
    rows = QUESTIONS.findall((ROOT / "docs" / "finding-your-way.md").read_text())
    assert [int(number) for number, _, _ in rows] == list(range(1, 21))
    assert not [file for _, _, file in rows if not (ROOT / file).is_file()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_document_leads_to_a_file(page: Path) -> None:
    links = LINKS.findall(FENCED.sub("", page.read_text()))
    assert not [link for link in links if not (page.parent / link).exists()]


GUIDE = [
    block
    for page in ("writing-tests.md", "load.md", "http.md", "streams.md")
    for block in PYTHON.findall((ROOT / "docs" / page).read_text())
]


@pytest.mark.parametrize("number", range(len(GUIDE)))
def test_every_code_block_of_the_guides_is_a_valid_test_file(number: int, tmp_path: Path) -> None:
    file = tmp_path / f"block_{number}.py"
    file.write_text(GUIDE[number])
    module = load_module(file)
    plan = build_plan(file, collect(module), mix=getattr(module, "mix", None))
    assert any(workflow.is_test for workflow in plan.workflows)
    assert not plan.warnings


def test_the_guide_lists_every_attribute_of_a_workflow() -> None:
    text = (ROOT / "docs" / "writing-tests.md").read_text()
    section = text.partition("## Attributes of a workflow")[2].partition("## Decorators")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(listed) == sorted([*ATTRIBUTES, "abstract"])


def test_the_http_page_lists_every_argument_and_every_property_of_a_response() -> None:
    text = (ROOT / "docs" / "http.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)(?:\(.*?\))?`", row)}
    arguments = {*PlainCall.__annotations__, *BodyCall.__annotations__}
    response = {name for name in vars(HTTPResponse) if not name.startswith("_")}
    methods = {name for name in vars(HTTPClient) if not name.startswith("_")}
    assert arguments <= listed
    assert response - {"exchange", "protocol"} <= listed
    assert methods <= {name for row in rows for name in re.findall(r"`(\w+)\(", row)}
    defaults = (
        f"| {REDIRECTS_MAX} |",
        f"| {BODY_BYTES_MAX} (64 MiB) |",
        f'| `"{CONNECT_TIMEOUT_S:g}s"`',
    )
    assert not [default for default in defaults if default not in text]


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
