"""How client commands find their cluster, and their advice when it does not answer."""

import argparse
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from hyperscale.cli.cluster_flags import add_client_flags, cluster_hints, cluster_words
from hyperscale.cli.follow import stale
from hyperscale.cli.printing import table
from hyperscale.client.cluster_connection import UnknownJobError
from hyperscale.client.cluster_file import ClusterFile, ClusterNode, read_cluster, write_cluster
from hyperscale.client.manager_connections import NoAnswerError, NoManagerError, WrongSecretError
from hyperscale.errors import InputError, RunError
from tests.ui import scenes


@pytest.mark.parametrize(
    "line",
    [
        "",
        " --dir 'my lab'",
        " --manager m1:9000 --manager m2:9000 --secret-file 'a b.secret'",
        " --manager m1 --cluster acme --environment prod --certificate c.pem"
        " --certificate-key k.pem --authority ca.pem --config node.toml",
    ],
)
def test_a_suggested_command_reaches_the_same_cluster(line: str) -> None:
    parser = argparse.ArgumentParser()
    add_client_flags(parser)
    assert cluster_words(parser.parse_args(shlex.split(line))) == line


@pytest.mark.parametrize(
    ("error", "raised", "advice"),
    [
        (NoManagerError("nobody"), RunError, "is the cluster still running? "),
        (WrongSecretError("refused"), InputError, "does another cluster use these ports now? "),
    ],
)
def test_a_local_cluster_that_does_not_answer_gets_a_restart_hint(
    error: Exception, raised: type[RunError | InputError], advice: str
) -> None:
    with pytest.raises(raised) as caught, cluster_hints(Path("my lab")):
        raise error
    assert caught.value.hint == f"{advice}'hyperscale cluster up --dir 'my lab'' starts it again"
    with pytest.raises(type(error)), cluster_hints(None):
        raise error


@pytest.mark.parametrize("error", [UnknownJobError("j"), NoAnswerError("no answer")])
def test_a_command_in_a_hint_reaches_the_same_cluster(error: Exception) -> None:
    flags = " --dir 'my lab'"
    command = f"'hyperscale [a-z]+{flags}'"
    with pytest.raises(type(error), match=command), cluster_hints(Path("my lab"), flags):
        raise error


def test_a_moved_cluster_directory_still_finds_its_secret(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    address = "127.0.0.1:1"
    manager = ClusterNode(id="manager-1", pid=1, tcp=address, udp=address, http=address)
    (before / "secret").touch(mode=0o600)
    (before / "secret").write_text("a secret of the cluster")
    write_cluster(before, ClusterFile(secret_file=str(before / "secret"), managers=[manager]))
    assert read_cluster(before).secret_file == str(before / "secret")
    before.rename(after)
    assert read_cluster(after).secret_file == str(after / "secret")


def test_a_stale_view_shows_the_time_of_its_last_update_and_the_reason() -> None:
    view = replace(scenes.shop(20.0), warnings=("Shop: saturated",))
    frozen = stale(view, "no manager can be reached")
    assert frozen.warnings == (
        "no update since 00:20: no manager can be reached",
        "Shop: saturated",
    )
    assert frozen.workflows == view.workflows


def test_table_columns_are_aligned_in_any_script() -> None:
    lines = table(("FILE", "AGE"), [("日本.py", "3s"), ("shop.py", "12s"), ("a\tb", "")]).split(
        "\n"
    )
    assert lines == ["FILE     AGE", "日本.py  3s", "shop.py  12s", "a?b      -"]
