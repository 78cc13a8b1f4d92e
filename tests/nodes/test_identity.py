"""Names and addresses of a node."""

from typing import Any

import pytest

from hyperscale.config.loading import node_config
from hyperscale.config.schema import NodeConfig
from hyperscale.errors import InputError
from hyperscale.nodes.data_directory import node_id_of
from hyperscale.nodes.settings import advertised_address, http_address_of


def identity_config(**listen: Any) -> NodeConfig:
    return node_config("manager", {"listen": listen})


@pytest.mark.parametrize(
    ("advertise", "bound", "expected"),
    [
        ("", ("127.0.0.1", 5), "127.0.0.1:5"),
        ("", ("::1", 5), "[::1]:5"),
        ("10.1.2.3", ("0.0.0.0", 5), "10.1.2.3:5"),
        ("10.1.2.3:77", ("0.0.0.0", 5), "10.1.2.3:77"),
        ("localhost:77", ("127.0.0.1", 5), "127.0.0.1:77"),
    ],
)
def test_the_advertised_address_follows_the_configuration(
    advertise: str, bound: tuple[str, int], expected: str
) -> None:
    found = advertised_address(identity_config(advertise=advertise), *bound)
    assert found in (expected, expected.replace("127.0.0.1", "[::1]"))


def test_a_wildcard_listener_advertises_an_outward_address() -> None:
    try:
        found = advertised_address(identity_config(), "0.0.0.0", 5)
    except InputError:
        pytest.skip("this machine has no network")
    assert not found.startswith("0.0.0.0")
    assert http_address_of("0.0.0.0", 6, found) == found.replace(":5", ":6")


def test_an_advertised_name_that_does_not_resolve_is_an_input_error() -> None:
    with pytest.raises(InputError, match="does not resolve"):
        advertised_address(identity_config(advertise="nothing.invalid"), "0.0.0.0", 5)


def test_a_node_without_a_name_gets_a_random_one() -> None:
    names = {node_id_of(identity_config()) for _ in range(10)}
    assert len(names) == 10
    assert all(name.startswith("manager-") for name in names)
