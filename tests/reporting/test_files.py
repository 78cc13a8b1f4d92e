import json
import os
import stat
import threading
from pathlib import Path

import pytest

from hyperscale.errors import InputError
from hyperscale.reporting.files import OutputError, ensure_writable, write_file
from hyperscale.reporting.outputs import planned_outputs, write_outputs
from tests.reporting.runs import shop_result


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "results.json"
    write_file(path, b"old and longer")
    write_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert [p.name for p in path.parent.iterdir()] == ["results.json"]


def test_the_umask_decides_who_may_read_a_report(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "x", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_a_link_keeps_pointing_where_it_did(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    write_file(tmp_path / "link", b"content")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"content"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_file(pipe, b"content")
    reader.join(timeout=10)
    assert read == [b"content"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_an_interrupted_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.json"
    write_file(path, b"old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OutputError, match="No space left on device"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    """A path that not even root can write to: its directory is a file."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "results.json"


def test_an_unwritable_path_is_named_with_the_reason(blocked: Path) -> None:
    with pytest.raises(OutputError) as caught:
        write_file(blocked, b"x")
    assert str(blocked) in str(caught.value)


def test_an_unwritable_path_is_refused_before_anything_runs(blocked: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^--json: cannot write"):
        ensure_writable(blocked, where="--json")
    with pytest.raises(InputError, match=r"^--json: .* is a directory"):
        ensure_writable(tmp_path, where="--json")


def test_checking_that_a_path_is_writable_leaves_no_file(tmp_path: Path) -> None:
    ensure_writable(tmp_path / "new" / "results.json", where="--json")
    assert list((tmp_path / "new").iterdir()) == []
    ensure_writable("/dev/null", where="--json")


def test_all_files_of_a_run_are_written(tmp_path: Path) -> None:
    extra = tmp_path / "extra.json"
    outputs = write_outputs(shop_result(), out_dir=tmp_path / "out", json_path=extra)
    assert outputs.failures == []
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        path.name for _, path in planned_outputs(tmp_path, None)
    }
    document = json.loads(extra.read_bytes())
    assert document == json.loads((tmp_path / "out" / "results.json").read_bytes())
    assert document["outputs"] == {kind: str(path) for kind, path in outputs.written.items()}
    assert outputs.written["json"] == extra
    assert outputs.result.outputs == document["outputs"]


def test_the_file_of_user_output_is_named_in_the_result_if_it_exists(tmp_path: Path) -> None:
    printed = tmp_path / "output.log"
    assert "output" not in write_outputs(shop_result(), output_file=printed).written
    printed.write_text("said\n")
    outputs = write_outputs(shop_result(), out_dir=tmp_path, output_file=printed)
    assert outputs.written["output"] == printed
    document = json.loads((tmp_path / "results.json").read_bytes())
    assert document["outputs"]["output"] == str(printed)


def test_without_output_options_no_file_is_written() -> None:
    outputs = write_outputs(shop_result())
    assert (outputs.written, outputs.failures, outputs.result.outputs) == ({}, [], {})


def test_the_other_files_are_written_if_one_is_unwritable(blocked: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "report.html").mkdir(parents=True)
    outputs = write_outputs(shop_result(), out_dir=out, json_path=blocked)
    assert {failure.kind for failure in outputs.failures} == {"json", "html"}
    assert outputs.written == {
        "json": out / "results.json",
        "csv": out / "steps.csv",
        "junit": out / "junit.xml",
    }
    document = json.loads((out / "results.json").read_bytes())
    assert set(document["outputs"]) == {"json", "csv", "junit"}
