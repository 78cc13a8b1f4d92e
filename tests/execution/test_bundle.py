"""Bundles: their contents, that they are reproducible, and how their modules are imported."""

import inspect
import io
import os
import random
import sys
import traceback
import zipfile
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.errors import InputError
from hyperscale.execution import bundle as bundling
from hyperscale.execution.bundle import OpenBundle, bundle_classes, bundle_file, mount, unmount
from hyperscale.graph.loading import module_name


@pytest.fixture(autouse=True)
def _leave_no_module() -> Iterator[None]:
    before = set(sys.modules)
    yield
    unmount()
    assert not {name for name in set(sys.modules) - before if name.startswith("bt_")}


def tree(root: Path, files: dict[str, str]) -> Path:
    """Write files by relative path and return the first."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return root / next(iter(files))


def entries(payload: bytes) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        return archive.namelist()


def test_a_bundle_has_the_test_file_and_its_local_modules_and_nothing_else(tmp_path: Path) -> None:
    file = tree(
        tmp_path,
        {
            "bt_shop.py": "import json, msgspec\nimport bt_helpers\n",
            "bt_helpers.py": "from bt_pkg import deep\n",
            "bt_pkg/__init__.py": "",
            "bt_pkg/deep.py": "def later():\n    import bt_lazy\n",
            "bt_lazy.py": "",
            "bt_unrelated.py": "",
            "bt_pkg/unrelated.py": "",
        },
    )
    assert entries(bundle_file(file).payload) == [
        "manifest.json",
        "src/bt_helpers.py",
        "src/bt_lazy.py",
        "src/bt_pkg/__init__.py",
        "src/bt_pkg/deep.py",
        "src/bt_shop.py",
    ]


def test_a_bundle_does_not_depend_on_directory_time_or_order_of_files(
    tmp_path: Path,
) -> None:
    files = {
        "bt_a.py": "import bt_b, bt_c\nfrom bt_p.q import r\n",
        "bt_b.py": "import bt_c\n",
        "bt_c.py": "import bt_b\n",
        "bt_p/q/r.py": "x = 1\n",
    }
    digests = set()
    for seed in range(5):
        order = list(files)
        random.Random(seed).shuffle(order)
        root = tmp_path / f"copy-{seed}"
        tree(root, {name: files[name] for name in order})
        os.utime(root / "bt_b.py", (seed, seed))
        (root / "bt_c.py").chmod(0o600 if seed % 2 else 0o755)
        digests.add(bundle_file(root / "bt_a.py").name)
    assert len(digests) == 1


@given(
    names=st.sets(st.from_regex(r"\Abt_[a-z]{1,6}\Z"), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
)
def test_any_graph_of_modules_is_bundled_completely_and_reproducibly(
    tmp_path_factory: pytest.TempPathFactory, names: set[str], seed: int
) -> None:
    root = tmp_path_factory.mktemp("web")
    rng = random.Random(seed)
    ordered = sorted(names)
    wanted: dict[str, list[str]] = {
        name: rng.sample(ordered, rng.randint(0, len(ordered))) for name in ordered
    }
    for name, imports in wanted.items():
        (root / f"{name}.py").write_text("".join(f"import {other}\n" for other in imports))
    first = root / f"{ordered[0]}.py"
    reached, waiting = {ordered[0]}, [ordered[0]]
    while waiting:
        for other in wanted[waiting.pop()]:
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    made = bundle_file(first)
    assert set(entries(made.payload)) == {"manifest.json", *(f"src/{name}.py" for name in reached)}
    assert bundle_file(first).payload == made.payload


def test_one_changed_byte_changes_the_name_of_a_bundle(tmp_path: Path) -> None:
    file = tree(tmp_path, {"bt_a.py": "x = 1\n"})
    before = bundle_file(file).name
    file.write_text("x = 2\n")
    assert bundle_file(file).name != before


def test_a_mounted_bundle_imports_the_bundled_source_not_the_file_on_disk(
    tmp_path: Path,
) -> None:
    file = tree(
        tmp_path / "test",
        {"bt_a.py": "import bt_b\ndef value():\n    return bt_b.x\n", "bt_b.py": "x = 1\n"},
    )
    path = bundle_file(file).write(tmp_path)
    tree(tmp_path / "test", {"bt_a.py": "raise SystemError", "bt_b.py": "raise SystemError"})
    module = mount(path, str(file))
    assert module.__name__ == module_name(file)
    assert module.value() == 1
    assert inspect.getsource(module.value) == "def value():\n    return bt_b.x\n"
    assert mount(path, str(file)) is module


def test_a_mounted_module_and_its_tracebacks_have_the_path_of_the_file(tmp_path: Path) -> None:
    file = tree(tmp_path, {"bt_a.py": "def fail():\n    raise ValueError('no')\n"})
    module = mount(bundle_file(file).write(tmp_path), str(file))
    assert module.__file__ == str(file)
    with pytest.raises(ValueError, match="no") as caught:
        module.fail()
    text = "".join(traceback.format_exception(caught.value))
    assert f'File "{file}", line 2, in fail' in text
    assert "raise ValueError('no')" in text


def test_mounting_a_bundle_unmounts_the_one_before(tmp_path: Path) -> None:
    modules = []
    for value in (1, 2):
        root = tmp_path / str(value)
        file = tree(root, {"bt_a.py": "from bt_b import x\n", "bt_b.py": f"x = {value}\n"})
        modules.append(mount(bundle_file(file).write(tmp_path), str(file)))
    assert [module.x for module in modules] == [1, 2]


def test_each_job_imports_the_modules_of_a_bundle_again(tmp_path: Path) -> None:
    file = tree(tmp_path, {"bt_a.py": "import bt_b\n", "bt_b.py": "seen = []\n"})
    path = bundle_file(file).write(tmp_path)
    mount(path, str(file), job="one").bt_b.seen.append("one")
    assert mount(path, str(file), job="one").bt_b.seen == ["one"]
    assert mount(path, str(file), job="two").bt_b.seen == []


def test_a_bundled_module_replaces_an_imported_module_of_the_same_name(tmp_path: Path) -> None:
    file = tree(tmp_path, {"bt_a.py": "from bt_b import x\n", "bt_b.py": "x = 1\n"})
    sys.modules["bt_b"] = sys.modules[module_name(file)] = ModuleType("somebody else's")
    assert mount(bundle_file(file).write(tmp_path), str(file)).x == 1


def test_an_import_that_fails_leaves_nothing_mounted(tmp_path: Path) -> None:
    file = tree(tmp_path, {"bt_a.py": "import bt_b\n1 / 0\n", "bt_b.py": ""})
    path = bundle_file(file).write(tmp_path)
    finders = list(sys.meta_path)
    with pytest.raises(ZeroDivisionError):
        mount(path, str(file))
    assert sys.meta_path == finders


def test_packages_import_relatively_and_by_star_and_through_directories_without_init(
    tmp_path: Path,
) -> None:
    file = tree(
        tmp_path,
        {
            "bt_a.py": """
                from bt_p.sub.mod import up, side
                from bt_star import *
                from bt_ns.inner import thing
            """,
            "bt_p/__init__.py": "from . import base\n",
            "bt_p/base.py": "b = 'base'\n",
            "bt_p/sub/__init__.py": "",
            "bt_p/sub/mod.py": "from ..base import b as up\nfrom .other import side\n",
            "bt_p/sub/other.py": "side = 'side'\n",
            "bt_star/__init__.py": "__all__ = ['one']\n",
            "bt_star/one.py": "value = 1\n",
            "bt_ns/inner.py": "thing = 'thing'\n",
        },
    )
    module = mount(bundle_file(file).write(tmp_path), str(file))
    assert (module.up, module.side, module.thing) == ("base", "side", "thing")
    assert module.one.value == 1


def test_a_module_of_a_package_keeps_its_dotted_name(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "bt_p/__init__.py": "",
            "bt_p/load.py": "from .shared import y\nfrom bt_top import z\n",
            "bt_p/shared.py": "y = 1\n",
            "bt_top.py": "z = 2\n",
        },
    )
    file = tmp_path / "bt_p" / "load.py"
    module = mount(bundle_file(file, module="bt_p.load").write(tmp_path), str(file))
    assert (module.__name__, module.y, module.z) == ("bt_p.load", 1, 2)
    assert module.__file__ == str(file)


def test_a_module_of_an_installed_package_is_imported_where_it_is_installed(
    tmp_path: Path,
) -> None:
    import email.charset  # noqa: PLC0415

    file = Path(email.charset.__file__)
    made = bundle_file(file, module="email.charset")
    assert entries(made.payload) == ["manifest.json"]
    assert mount(made.write(tmp_path), str(file)) is email.charset


@pytest.mark.parametrize("name", ["test.py", "load-test.py", "json.py", "class.py", "1st.py"])
def test_a_test_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    file = tree(tmp_path, {name: "x = 7\n"})
    module = mount(bundle_file(file).write(tmp_path), str(file))
    assert module.x == 7
    assert module.__name__ == module_name(file)
    assert sys.modules.get("json") is not module


def test_links_are_bundled_under_the_name_they_are_imported_by(tmp_path: Path) -> None:
    tree(tmp_path / "elsewhere", {"real.py": "x = 5\n", "pkg/__init__.py": "", "pkg/m.py": "y=6\n"})
    file = tree(tmp_path / "test", {"bt_a.py": "from bt_link import x\nfrom bt_dir.m import y\n"})
    (tmp_path / "test" / "bt_link.py").symlink_to(tmp_path / "elsewhere" / "real.py")
    (tmp_path / "test" / "bt_dir").symlink_to(tmp_path / "elsewhere" / "pkg")
    made = bundle_file(file)
    assert "src/bt_link.py" in entries(made.payload)
    module = mount(made.write(tmp_path), str(file))
    assert (module.x, module.y) == (5, 6)


def test_a_local_file_hiding_a_standard_module_is_refused_by_name(tmp_path: Path) -> None:
    file = tree(tmp_path, {"bt_a.py": "\nimport random\n", "random.py": ""})
    with pytest.raises(InputError, match=r"bt_a\.py:2: .*random\.py hides the standard library's"):
        bundle_file(file)
    file = tree(tmp_path, {"bt_a.py": "from hyperscale import step\n", "hyperscale.py": ""})
    with pytest.raises(InputError, match=r"hyperscale\.py hides Hyperscale's own"):
        bundle_file(file)


def test_a_checkout_of_hyperscale_beside_the_test_is_not_bundled(tmp_path: Path) -> None:
    file = tree(
        tmp_path, {"bt_a.py": "from hyperscale.graph import step\n", "hyperscale/__init__.py": ""}
    )
    assert entries(bundle_file(file).payload) == ["manifest.json", "src/bt_a.py"]


def test_modules_that_cannot_be_bundled_are_refused_with_the_line_that_imports_them(
    tmp_path: Path,
) -> None:
    file = tree(tmp_path, {"bt_a.py": "import bt_fast\n"})
    (tmp_path / "bt_fast.abi3.so").write_bytes(b"")
    with pytest.raises(InputError, match=r"bt_a\.py:1: module 'bt_fast' is a native extension"):
        bundle_file(file)
    (tmp_path / "bt_fast.abi3.so").rename(tmp_path / "bt_fast.pyc")
    with pytest.raises(InputError, match=r"bt_a\.py:1: module 'bt_fast' has no source"):
        bundle_file(file)


def test_modules_imported_only_for_type_checkers_are_not_bundled(tmp_path: Path) -> None:
    file = tree(
        tmp_path,
        {
            "bt_a.py": """
                from typing import TYPE_CHECKING
                if TYPE_CHECKING:
                    import bt_types
                else:
                    import bt_b
            """,
            "bt_types.py": "",
            "bt_b.py": "",
        },
    )
    assert entries(bundle_file(file).payload) == ["manifest.json", "src/bt_a.py", "src/bt_b.py"]


def test_modules_imported_by_a_computed_name_are_bundled_if_they_were_loaded(
    tmp_path: Path,
) -> None:
    file = tree(
        tmp_path,
        {
            "bt_a.py": "from importlib import import_module\nimport_module('bt_' + 'b')\n",
            "bt_b.py": "import bt_c\n",
            "bt_c.py": "",
            "bt_d.py": "",
        },
    )
    made = bundle_file(file, loaded=["bt_b", "json", "bt_a"])
    assert entries(made.payload)[1:] == ["src/bt_a.py", "src/bt_b.py", "src/bt_c.py"]


def test_a_helper_may_import_the_test_file_by_its_own_name(tmp_path: Path) -> None:
    file = tree(
        tmp_path,
        {
            "bt_a.py": "base = 'http://x'\nimport bt_b\n",
            "bt_b.py": "def url():\n    from bt_a import base\n    return base\n",
        },
    )
    made = bundle_file(file)
    assert entries(made.payload)[1:] == ["src/bt_a.py", "src/bt_b.py"]
    assert mount(made.write(tmp_path), str(file)).bt_b.url() == "http://x"


def test_literal_import_calls_are_seen(tmp_path: Path) -> None:
    file = tree(
        tmp_path,
        {"bt_a.py": "import importlib\nimportlib.import_module('bt_p.m')\n", "bt_p/m.py": ""},
    )
    assert "src/bt_p/m.py" in entries(bundle_file(file).payload)


def test_files_that_the_test_names_are_bundled_by_content(tmp_path: Path) -> None:
    file = tree(tmp_path, {"bt_a.py": ""})
    upload = tmp_path / "upload.bin"
    upload.write_bytes(b"\x00content")
    made = bundle_file(file, files={"upload.bin": str(upload), "../again.bin": str(upload)})
    opened = OpenBundle(made.write(tmp_path))
    assert opened.files == {"upload.bin": b"\x00content", "../again.bin": b"\x00content"}
    assert len(entries(made.payload)) == 3
    upload.unlink()
    with pytest.raises(InputError, match=r"upload\.bin: cannot be read"):
        bundle_file(file, files={"upload.bin": str(upload)})


def test_a_bundle_over_the_size_limit_is_refused_with_its_largest_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundling, "BUNDLE_BYTES_MAX", 1024)
    file = tree(tmp_path, {"bt_a.py": "import bt_b\n", "bt_b.py": f"x = {'9' * 2000}\n"})
    with pytest.raises(InputError, match=r"over the limit .*src/bt_b\.py"):
        bundle_file(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def broken(:\n", r"bt_a\.py:1: syntax error"),
        ("from . import helper\n", r"bt_a\.py:1: relative import outside of a package"),
        ("# coding: latin-99\n", r"bt_a\.py: cannot be read as Python"),
        ("x = '\0'\n", r"bt_a\.py(:1)?: .*null"),
    ],
)
def test_a_file_that_is_no_module_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        bundle_file(tree(tmp_path, {"bt_a.py": text}))


def test_sources_keep_their_declared_encoding(tmp_path: Path) -> None:
    file = tmp_path / "bt_a.py"
    file.write_bytes("# coding: latin-1\nx = 'é'\n".encode("latin-1"))
    assert mount(bundle_file(file).write(tmp_path), str(file)).x == "é"


def test_classes_without_a_file_are_sent_by_value_under_a_random_name(
    tmp_path: Path,
) -> None:
    namespace: dict[str, type] = {}
    exec("class Loose:\n    value = 3\n", {"__name__": "__main__"}, namespace)
    loose = namespace["Loose"]
    loose.__module__ = "__main__"
    first, second = bundle_classes([loose]), bundle_classes([loose])
    assert first.name != second.name
    module = mount(first.write(tmp_path), "")
    assert module.Loose.value == 3


def test_a_class_that_cannot_be_pickled_is_refused_by_name(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as handle:
        stuck = type("Stuck", (), {"handle": handle, "__module__": "__main__"})
        with pytest.raises(InputError, match="Stuck: cannot be sent to executors"):
            bundle_classes([stuck])
