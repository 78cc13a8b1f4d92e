"""What client commands say of how they were called."""

import argparse
import shlex

import pytest

from hyperscale.cli.client_flags import add_client_flags, where


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
