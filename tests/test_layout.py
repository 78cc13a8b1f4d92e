"""Style as tests: what a reviewer should never have to say.

Each limit has a table of exceptions with a reason for each entry. `python -m tests.figures`
prints the figures behind the limits.
"""

import re
import subprocess
from pathlib import Path

import pytest

from tests import figures

ROOT = figures.ROOT

LINES_MAX = 600
# A larger mark needs a reason beside it.
MARKS: dict[str, int] = {}
MODULES_PENDING: set[str] = set()

# Budgets of lines: the rebuilt house had 47,500 and 15,000. Each capability raises them by what it
# needs, in its own commit.
PACKAGE_LINES_MAX = 88_500  # many datacenters, load shapes, wire protocols, services, roles
JOB_LINES_MAX = 24_800  # many datacenters, changes of a running job, reports of managers

CLASS_LINES_MAX = 350
LARGER_CLASSES: dict[str, str] = {}  # class -> reason
CLASS_LINES_PENDING: set[str] = set()

ATTRIBUTES_MAX = 15
WIDER_CLASSES = {  # class -> reason
    "Workflow": "the settings of a test",
    "GlobalJob": "the committed record of a job over many datacenters",
    "HookCall": "all that a call needs, computed before the load",
    "DatacenterAssignment": "the committed record of a datacenter's part",
    "DiscoveryConfig": "configuration",
    "Job": "the committed record of a job",
    "JobSubmission": "options of a submission",
    "LeaderTimeouts": "configuration",
    "MembershipConfig": "configuration",
    "NodeConfig": "configuration, a field for each section",
    "PreparePart": "a message",
    "PrepareSlot": "a message",
    "RequestCores": "a message",
    "RunResult": "a result",
    "StepResult": "a result",
    "WorkflowPlan": "a plan",
    "WorkflowResult": "a result",
    "WorkflowView": "a view",
}
ATTRIBUTES_PENDING: set[str] = set()

INFINITIES: dict[str, tuple[int, str]] = {}  # module -> number of uses, reason
INFINITIES_PENDING: dict[str, int] = {}

# Public class names that more than one module still defines.
NAMES_PENDING: set[str] = set()

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
        if lines > MARKS.get(name, LINES_MAX) and name not in MODULES_PENDING:
            grown[name] = lines
    assert not grown, f"split it, or raise its mark with a reason: {grown}"


def test_every_mark_is_still_needed() -> None:
    assert not [
        name
        for name in MARKS
        if not (ROOT / name).is_file() or (ROOT / name).read_text().count("\n") <= LINES_MAX
    ]


def test_the_package_stays_within_its_budget() -> None:
    assert figures.lines_below() <= PACKAGE_LINES_MAX
    assert figures.lines_below(*figures.JOB_ROOMS) <= JOB_LINES_MAX


def test_no_class_outgrew_its_limit() -> None:
    allowed = LARGER_CLASSES.keys() | CLASS_LINES_PENDING
    grown = {
        each.label: each.lines
        for each in figures.classes()
        if each.lines > CLASS_LINES_MAX and each.name not in allowed
    }
    assert not grown, f"split the class along its state: more than {CLASS_LINES_MAX} lines: {grown}"


def test_no_class_has_too_many_attributes() -> None:
    allowed = WIDER_CLASSES.keys() | ATTRIBUTES_PENDING
    wide = {
        each.label: each.attributes
        for each in figures.classes()
        if each.attributes > ATTRIBUTES_MAX and each.name not in allowed
    }
    assert not wide, f"split the class along its state: more than {ATTRIBUTES_MAX}: {wide}"


def test_infinity_marks_no_state() -> None:
    """A time that is not known or not scheduled is None."""
    allowed = {module: count for module, (count, _) in INFINITIES.items()} | INFINITIES_PENDING
    found = {
        module: count
        for module, count in figures.infinities().items()
        if count > allowed.get(module, 0)
    }
    assert not found, f"use None, or name the reason in INFINITIES: {found}"


def test_a_public_class_name_exists_once_in_the_package() -> None:
    repeated = {
        name: places
        for name, places in figures.repeated_class_names().items()
        if name not in NAMES_PENDING
    }
    assert not repeated, f"rename the class whose name is less apt: {repeated}"


def test_tests_share_one_lab() -> None:
    """What several test packages need is in `tests/lab`."""
    assert not figures.test_labs()


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


def test_every_exception_is_still_needed() -> None:
    found = figures.classes()
    wide = {each.name for each in found if each.attributes > ATTRIBUTES_MAX}
    large = {each.name for each in found if each.lines > CLASS_LINES_MAX}
    assert not WIDER_CLASSES.keys() - wide
    assert not LARGER_CLASSES.keys() - large
    assert not INFINITIES.keys() - figures.infinities().keys()
