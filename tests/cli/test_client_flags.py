"""What client commands say of the cluster they ask."""

import argparse
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from hyperscale.cli.client_flags import add_client_flags, where
from hyperscale.cli.follow import stale
from hyperscale.cli.node_queries import table, telling_of
from hyperscale.client.cluster_file import ClusterFile, NodeRow, read_cluster, write_cluster
from hyperscale.client.manager_connections import NoManagerError, WrongSecretError
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
def test_a_command_that_is_suggested_reaches_the_same_cluster(line: str) -> None:
    parser = argparse.ArgumentParser()
    add_client_flags(parser)
    assert where(parser.parse_args(shlex.split(line))) == line


@pytest.mark.parametrize(
    ("error", "told", "advice"),
    [
        (NoManagerError("nobody"), RunError, "is it still running? "),
        (WrongSecretError("refused"), InputError, "another cluster has its ports now? "),
    ],
)
def test_of_a_local_cluster_it_is_told_how_it_is_started_again(
    error: Exception, told: type[RunError | InputError], advice: str
) -> None:
    with pytest.raises(told) as raised, telling_of(Path("my lab")):
        raise error
    assert raised.value.hint == f"{advice}'hyperscale cluster up --dir 'my lab'' starts it again"
    with pytest.raises(type(error)), telling_of(None):
        raise error


def test_a_cluster_whose_directory_was_moved_finds_its_secret_there(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    address = "127.0.0.1:1"
    manager = NodeRow(id="manager-1", pid=1, tcp=address, udp=address, http=address)
    (before / "secret").write_text("a secret of the cluster")
    write_cluster(before, ClusterFile(secret_file=str(before / "secret"), managers=[manager]))
    assert read_cluster(before).secret_file == str(before / "secret")
    before.rename(after)
    assert read_cluster(after).secret_file == str(after / "secret")


def test_a_view_that_stands_still_says_since_when_and_why() -> None:
    view = replace(scenes.shop(20.0), warnings=("Shop: saturated",))
    frozen = stale(view, "no manager can be reached")
    assert frozen.warnings == (
        "nothing new since 00:20: no manager can be reached",
        "Shop: saturated",
    )
    assert frozen.workflows == view.workflows


def test_columns_stand_below_each_other_in_any_script() -> None:
    lines = table(("FILE", "AGE"), [("日本.py", "3s"), ("shop.py", "12s"), ("a\tb", "")]).split(
        "\n"
    )
    assert lines == ["FILE     AGE", "日本.py  3s", "shop.py  12s", "a?b      -"]
