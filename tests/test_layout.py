"""Style as tests: what a reviewer should never have to say."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

LINES_MAX = 600
# A larger mark needs a reason beside it.
MARKS: dict[str, int] = {}

# Tests say what must be refused, so they may write it down.
MACHINE_PATHS = re.compile(r"/(?:home|root|Users|work)/[a-z]")
LEFTOVERS = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b|unimplemented!|todo!\(")
SILENCED = re.compile(
    r"#\s*(?:type:\s*ignore\[[^]]*\]|noqa:[ A-Z0-9,]*\d)(?:\s*[#-]?\s*)(?P<reason>\S?)"
)


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    names = [name for name in listed.decode().split("\0") if name]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


CODE = tracked("*.py", "*.rs")
PACKAGE = [path for path in CODE if path.relative_to(ROOT).parts[0] in ("hyperscale", "native")]
# The bindings only convert, and Rust keeps long tests of a module in a file beside it.
OWNERS = [
    path
    for path in PACKAGE
    if "native/py" not in path.as_posix() and not path.name.endswith("_tests.rs")
]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_module_outgrew_its_mark() -> None:
    grown = {}
    for path in CODE:
        name = name_of(path)
        lines = path.read_text().count("\n")
        if lines > MARKS.get(name, LINES_MAX):
            grown[name] = lines
    assert not grown, f"split it, or raise its mark with a reason: {grown}"


def test_every_mark_is_still_needed() -> None:
    assert not [
        name
        for name in MARKS
        if not (ROOT / name).is_file() or (ROOT / name).read_text().count("\n") <= LINES_MAX
    ]


@pytest.mark.parametrize("path", OWNERS, ids=name_of)
def test_a_module_says_what_it_owns(path: Path) -> None:
    text = path.read_text()
    if not text.strip():
        return
    start = '"""' if path.suffix == ".py" else "//!"
    assert text.startswith(start), "begin with what the module owns and what it refuses to know"


def test_nothing_names_a_machine() -> None:
    texts = tracked("*.py", "*.rs", "*.md", "*.toml", "*.txt", "*.yml", "Makefile", ".ci/*")
    found = [
        f"{name_of(path)}:{number}"
        for path in texts
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if MACHINE_PATHS.search(line)
    ]
    assert not found


def test_nothing_is_left_for_later() -> None:
    found = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in PACKAGE
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if LEFTOVERS.search(line)
    ]
    assert not found


def test_every_silenced_warning_says_why() -> None:
    """In words behind it, or in a comment right above it."""
    found = []
    for path in PACKAGE:
        if path.suffix == ".py":
            lines = path.read_text().splitlines()
            for above, line in zip(["", *lines], lines, strict=False):
                silenced = SILENCED.search(line)
                if silenced and not silenced["reason"] and not above.lstrip().startswith("#"):
                    found.append(f"{name_of(path)}: {line.strip()}")
    assert not found


def test_lock_files_name_no_host_and_no_path() -> None:
    for path in tracked("requirements/*.txt", "Cargo.lock"):
        lines = path.read_text().splitlines()
        foreign = [
            line
            for line in lines
            if "://" in line and "github.com/rust-lang/crates.io-index" not in line
        ]
        assert not foreign, name_of(path)
        assert not [line for line in lines if line.startswith(("-f", "-i", "--find", "--index"))]
