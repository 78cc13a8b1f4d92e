"""Measure the package: sizes, classes, names. `python -m tests.figures` prints the figures.

`tests/test_layout.py` holds the limits; this module only counts.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "hyperscale"
JOB_ROOMS = ("jobs", "nodes", "client", "lab")


class ClassFigures(NamedTuple):
    """Size of one class."""

    module: str  # path below the repository, with forward slashes
    name: str
    lines: int
    attributes: int  # fields of the class body and attributes that its methods assign to self
    is_data: bool  # a dataclass, a Struct, a NamedTuple or an enum

    @property
    def label(self) -> str:
        return f"{self.module}:{self.name}"


def modules() -> list[Path]:
    """Return every Python file of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def line_count(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def lines_below(*rooms: str) -> int:
    """Count the lines of these subpackages; without names, of the whole package."""
    wanted = [PACKAGE / room for room in rooms] or [PACKAGE]
    return sum(
        line_count(path) for path in modules() if any(path.is_relative_to(room) for room in wanted)
    )


def classes() -> list[ClassFigures]:
    """Return the figures of every class, nested ones included."""
    found = []
    for path in modules():
        for node in ast.walk(_parsed(path)):
            if isinstance(node, ast.ClassDef):
                found.append(
                    ClassFigures(
                        module=name_of(path),
                        name=node.name,
                        lines=(node.end_lineno or node.lineno) - node.lineno + 1,
                        attributes=len(_attributes(node)),
                        is_data=_is_data(node),
                    )
                )
    return found


def repeated_class_names() -> dict[str, list[str]]:
    """Return public class names that more than one module defines, with those modules."""
    places: dict[str, list[str]] = {}
    for path in modules():
        for node in _parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name_of(path))
    return {name: found for name, found in places.items() if len(found) > 1}


def infinities() -> Counter[str]:
    """Count `float("inf")`, `float("-inf")` and `math.inf` in each module that has any."""
    found: Counter[str] = Counter()
    for path in modules():
        for node in ast.walk(_parsed(path)):
            if _is_infinity(node):
                found[name_of(path)] += 1
    return found


def test_labs() -> list[str]:
    """Return the `lab.py` files below `tests`."""
    return sorted(name_of(path) for path in (ROOT / "tests").rglob("lab.py"))


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _attributes(node: ast.ClassDef) -> set[str]:
    fields = {
        statement.target.id
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and "ClassVar" not in ast.unparse(statement.annotation)
    }
    return fields | {name for method in node.body for name in _assigned_to_self(method)}


def _assigned_to_self(method: ast.stmt) -> Iterator[str]:
    if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    for node in ast.walk(method):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ):
            yield node.attr


def _is_data(node: ast.ClassDef) -> bool:
    above = [ast.unparse(each) for each in (*node.bases, *node.decorator_list)]
    words = ("Struct", "dataclass", "NamedTuple", "Enum", "Message", "TypedDict")
    return any(word in text for text in above for word in words)


def _is_infinity(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(text))]):
            return "inf" in text
        case ast.Attribute(value=ast.Name(id="math"), attr="inf"):
            return True
    return False


def main() -> None:
    by_lines = sorted(classes(), key=lambda each: each.lines, reverse=True)
    largest_module = max(modules(), key=line_count)
    wide = [each for each in by_lines if each.attributes > 15]
    lines = [
        f"package: {lines_below():,} lines in {len(modules())} modules",
        f"{' + '.join(JOB_ROOMS)}: {lines_below(*JOB_ROOMS):,} lines",
        *(
            f"  {room.name}: {lines_below(room.name):,}"
            for room in sorted(PACKAGE.iterdir())
            if room.is_dir() and room.name != "__pycache__"
        ),
        f"largest module: {name_of(largest_module)}, {line_count(largest_module)} lines",
        "largest classes:",
        *(f"  {each.label}: {each.lines} lines" for each in by_lines[:5]),
        f"classes of more than 15 attributes: {len(wide)}",
        *(f"  {each.label}: {each.attributes}" for each in wide),
        f"infinities: {infinities().total()}",
        *(f"  {module}: {count}" for module, count in infinities().items()),
        f"public class names defined more than once: {len(repeated_class_names())}",
        *(f"  {name}: {', '.join(places)}" for name, places in repeated_class_names().items()),
        f"lab.py files in tests: {len(test_labs())}",
        *(f"  {name}" for name in test_labs()),
    ]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
