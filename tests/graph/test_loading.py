"""Errors of a test file while it is imported, and which of its classes run."""

import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

from hyperscale.errors import InputError
from hyperscale.graph import Workflow, build_plan, collect, load_module, step
from hyperscale.graph.loading import find
from hyperscale.testing import HTTPResponse

from .conftest import Files


def refusal(path: Path | str) -> str:
    with pytest.raises(InputError) as caught:
        collect(load_module(path))
    return str(caught.value)


def test_a_missing_file_is_named(files: Files) -> None:
    assert refusal("nowhere.py").startswith("nowhere.py: no such file (hint: ")


def test_a_directory_is_no_test(files: Files) -> None:
    assert refusal(files.directory).startswith(".: is a directory")


def test_a_pipe_is_no_test(files: Files) -> None:
    os.mkfifo("shop.py")
    assert refusal("shop.py") == "shop.py: is a pipe or a device, not a file"


def test_a_path_that_is_not_utf_8_is_refused(files: Files) -> None:
    os.mkdir(b"caf\xe9")
    place = os.fsdecode(b"caf\xe9/shop.py")
    Path(place).write_text("x = 1\n")
    assert refusal(place).startswith("caf\\udce9/shop.py: its path is not UTF-8")


def test_a_syntax_error_is_reported_with_file_and_line(files: Files) -> None:
    path = files.write("x = 1\ndef broken(:\n", "shop.py")
    assert refusal(path) == "shop.py:2: syntax error: invalid syntax"


def test_a_syntax_error_in_a_local_module_names_that_module(files: Files) -> None:
    files.write("def broken(:\n", "helpers_with_error.py")
    path = files.write("import helpers_with_error\n", "shop.py")
    assert refusal(path) == "helpers_with_error.py:1: syntax error: invalid syntax"


@pytest.mark.parametrize("content", [b"\x00\x01", b"x = '\xff'", b"\xff\xfe"])
def test_a_file_that_is_not_python_source_is_refused(files: Files, content: bytes) -> None:
    path = files.directory / "shop.py"
    path.write_bytes(content)
    assert refusal(path).startswith("shop.py:")


def test_a_missing_module_is_named(files: Files) -> None:
    path = files.write("import os\nimport nosuchmodule.sub\n", "shop.py")
    assert refusal(path).startswith("shop.py:2: no module named 'nosuchmodule'")


def test_a_missing_name_in_a_module_is_named(files: Files) -> None:
    path = files.write("from hyperscale.testing import HTTPResponze\n", "shop.py")
    message = refusal(path)
    assert message.startswith("shop.py:1: cannot import: cannot import name 'HTTPResponze'")


def test_a_relative_import_gets_a_hint(files: Files) -> None:
    path = files.write("from .helpers import x\n", "shop.py")
    assert "by their plain name" in refusal(path)


def test_an_exception_at_import_shows_type_message_and_the_users_line(files: Files) -> None:
    path = files.write(
        """
        import json
        def load():
            return json.loads("{")
        load()
        """,
        "shop.py",
    )
    assert refusal(path).startswith("shop.py:4: importing the file raised JSONDecodeError: ")


def test_an_exception_without_a_message_is_reported(files: Files) -> None:
    path = files.write("raise RuntimeError\n", "shop.py")
    assert refusal(path) == "shop.py:1: importing the file raised RuntimeError"


def test_a_file_that_exits_when_imported_is_refused(files: Files) -> None:
    path = files.write("import sys\nsys.exit(0)\n", "shop.py")
    assert refusal(path).startswith("shop.py:2: the file ends the process (exit code 0)")


def test_an_interrupt_during_import_is_raised(files: Files) -> None:
    path = files.write("raise KeyboardInterrupt\n", "shop.py")
    with pytest.raises(KeyboardInterrupt):
        load_module(path)


@pytest.mark.parametrize("decorator", ["step", "action", "metric", "state"])
def test_a_decorator_without_parentheses_is_refused_with_its_place(
    files: Files, decorator: str
) -> None:
    path = files.write(
        f"""
        from hyperscale.graph import *
        class Shop(Workflow):
            @{decorator}
            async def login(self): ...
        """,
        "shop.py",
    )
    assert refusal(path) == f"shop.py:4: Shop.login: write @{decorator}() with parentheses"


def test_depends_on_a_class_instead_of_its_name_is_refused(files: Files) -> None:
    path = files.write(
        """
        from hyperscale.graph import *
        class Seed(Workflow): ...
        @depends(Seed)
        class Shop(Workflow): ...
        """,
        "shop.py",
    )
    assert refusal(path).startswith("shop.py:4: @depends takes the names of workflows")


def test_a_file_without_workflows_is_refused(files: Files) -> None:
    path = files.write("from hyperscale.graph import Workflow\nx = 1\n", "shop.py")
    assert refusal(path).startswith("shop.py: no workflow in the file")


def test_only_workflows_that_the_file_defines_are_collected_in_order(files: Files) -> None:
    files.write(
        """
        from hyperscale.graph import *
        from hyperscale.testing import *
        class Base(Workflow):
            @step()
            async def login(self) -> HTTPResponse: ...
        class Imported(Workflow):
            @step()
            async def other(self) -> HTTPResponse: ...
        """,
        "shop_base.py",
    )
    classes = files.classes(
        """
        from shop_base import Base, Imported
        class Second(Base):
            @step("login")
            async def pay(self) -> HTTPResponse: ...
        class First(Workflow):
            @step()
            async def s(self) -> HTTPResponse: ...
        Alias = First
        """
    )
    assert [cls.__name__ for cls in classes] == ["Second", "First"]


def test_bases_are_not_run(files: Files) -> None:
    classes = files.classes(
        """
        import abc
        class Settings(Workflow):
            vus = 5
        class _Private(Workflow):
            @step()
            async def s(self) -> HTTPResponse: ...
        class Marked(Workflow):
            abstract = True
            @step()
            async def s(self) -> HTTPResponse: ...
        class Formal(Workflow, abc.ABC):
            @step()
            async def s(self) -> HTTPResponse: ...
            @abc.abstractmethod
            def path(self): ...
        class Runs(Settings):
            @step()
            async def s(self) -> HTTPResponse: ...
        class AlsoRuns(Marked):
            pass
        class Varies(Runs):
            vus = 7
        """
    )
    assert [cls.__name__ for cls in classes] == ["Runs", "AlsoRuns", "Varies"]


def test_any_class_of_a_file_is_found_by_name(files: Files) -> None:
    path = files.write("from hyperscale.graph import Workflow\nclass _Base(Workflow): ...\nx = 1\n")
    module = load_module(path)
    assert find(module, "_Base").__name__ == "_Base"
    for name in ("Absent", "x"):
        with pytest.raises(InputError, match=f"has no workflow '{name}'"):
            find(module, name)


def test_local_modules_are_importable_and_a_file_can_be_loaded_again(files: Files) -> None:
    files.write("NAME = 'first'\n", "names_of_shop.py")
    text = """
        import names_of_shop
        class Shop(Workflow):
            tags = [names_of_shop.NAME]
            @step()
            async def s(self) -> HTTPResponse: ...
    """
    first, again = files.plan(text, "shop.py"), files.plan(text, "shop.py")
    assert first == again
    assert first.workflows[0].tags == ("first",)


def test_a_module_beside_the_file_comes_last_once_the_file_is_loaded(files: Files) -> None:
    files.write(
        "hidden = True\n", "this.py"
    )  # the standard library has a module of this name, which is seldom imported
    files.write("name = 'mine'\n", "own_helper.py")
    path = files.write("import sys\nfirst = sys.path[0]\n", "shop.py")
    assert load_module(path).first == str(files.directory)
    assert sys.path[-1] == str(files.directory)
    found = importlib.util.find_spec("this")
    assert found is not None
    assert found.origin != str(files.directory / "this.py")
    assert importlib.import_module("own_helper").name == "mine"  # for example in a reporter


def test_a_failed_import_leaves_no_module_behind(files: Files) -> None:
    path = files.write("1 / 0\n", "shop.py")
    before = set(sys.modules)
    refusal(path)
    assert set(sys.modules) - before == set()


def test_a_file_named_like_a_library_does_not_replace_it(files: Files) -> None:
    path = files.write("class Json: ...\n", "json.py")
    load_module(path)
    assert sys.modules["json"] is json


def test_classes_made_here_can_be_planned_without_a_file(files: Files) -> None:
    class Inline(Workflow):
        @step()
        async def s(self) -> HTTPResponse:
            raise NotImplementedError

    assert build_plan("inline", [Inline]).workflows[0].name == "Inline"


def test_a_class_that_is_no_workflow_is_refused() -> None:
    with pytest.raises(InputError, match="is not a workflow"):
        build_plan("x", [dict])  # type: ignore[list-item]  # what a caller might hand us
