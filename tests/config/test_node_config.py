"""A node's settings: where they come from, what wins, what is refused and with which words."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.config.addresses import format_address, parse_address, split_address
from hyperscale.config.loading import Loaded, load, node_config
from hyperscale.config.schema import ROLES, NodeConfig, settings
from hyperscale.errors import InputError
from hyperscale.membership.discovery import DiscoveryConfig
from hyperscale.membership.settings import MembershipConfig
from hyperscale.wire.certificate_identity import is_name

SEEDS = {"discovery": {"seeds": ["127.0.0.1:9000"]}}


def file_with(directory: Path, text: str) -> Path:
    path = directory / "node.toml"
    path.write_text(text)
    return path


def problems(loaded: Loaded) -> str:
    return "\n".join(str(problem) for problem in loaded.problems)


# Sources.


def test_flags_win_over_the_environment_over_the_file_over_defaults(tmp_path: Path) -> None:
    file = file_with(
        tmp_path,
        """
        [listen]
        port = 1001
        http_port = 1002
        host = "127.0.0.3"
        """,
    )
    loaded = load(
        "manager",
        file=file,
        environment={"HYPERSCALE_LISTEN_PORT": "2001", "HYPERSCALE_LISTEN_HTTP_PORT": "2002"},
        flags={"listen.port": "3001"},
    )
    config = loaded.require()
    assert (config.listen.port, config.listen.http_port) == (3001, 2002)
    assert config.listen.host == "127.0.0.3"
    assert config.node.cluster == "hyperscale"
    sources = {name: value.source for name, value in loaded.values.items()}
    assert sources["listen.port"] == "--port"
    assert sources["listen.http_port"] == "HYPERSCALE_LISTEN_HTTP_PORT"
    assert sources["listen.host"] == str(file)
    assert sources["node.cluster"] == "default"


def test_roles_differ_in_their_ports_so_that_both_fit_one_machine() -> None:
    ports = {
        port
        for role in ROLES
        for listen in (node_config(role, SEEDS).listen,)
        for port in (listen.port, listen.http_port)
    }
    assert len(ports) == 2 * len(ROLES)


@pytest.mark.parametrize(
    ("text", "expected"), [("1.5", 1.5), ("1500ms", 1.5), ("2s", 2.0), ("1m", 60.0)]
)
def test_durations_are_seconds_or_carry_their_unit(text: str, expected: float) -> None:
    config = load("manager", flags={"node.stop_s": text}).require()
    assert config.node.stop_s == expected


def test_lists_are_repeated_flags_or_commas() -> None:
    flags = load("manager", flags={"discovery.seeds": ["a:1", "b:2"]}).require()
    commas = load("manager", environment={"HYPERSCALE_DISCOVERY_SEEDS": "a:1, b:2"}).require()
    assert flags.discovery.seeds == commas.discovery.seeds == ("a:1", "b:2")


@pytest.mark.parametrize(("text", "expected"), [("false", False), ("No", False), ("1", True)])
def test_booleans_are_words(text: str, expected: bool) -> None:
    config = load("manager", environment={"HYPERSCALE_SECURITY_VERIFY_HOSTNAME": text}).require()
    assert config.security.verify_hostname is expected


def test_every_setting_has_names_of_its_own() -> None:
    names = [setting.name for setting in settings()]
    flags = [setting.flag for setting in settings()]
    variables = [variable for setting in settings() for variable in setting.variables]
    for taken in (names, flags, variables):
        assert len(set(taken)) == len(taken)
    assert all(setting.about for setting in settings())


# Refusals.


def test_every_mistake_is_reported_at_once(tmp_path: Path) -> None:
    file = file_with(
        tmp_path,
        """
        [lisen]
        port = 1
        [listen]
        prot = 2
        port = 70000
        [membership]
        suspicion_min_s = 20
        """,
    )
    loaded = load(
        "worker",
        file=file,
        environment={"HYPERSCALE_NODE_CLUSTR": "x", "HYPERSCALE_LOG_LEVEL": "loud"},
        flags={"node.stop_s": "soon"},
    )
    assert loaded.config is None
    text = problems(loaded)
    assert "unknown section [lisen] (hint: did you mean [listen]?)" in text
    assert "unknown setting listen.prot (hint: did you mean listen.port?)" in text
    assert "did you mean HYPERSCALE_NODE_CLUSTER?" in text
    assert f"listen.port ({file}): 70000: expected `int` <= 65535" in text
    assert "log.level (HYPERSCALE_LOG_LEVEL)" in text
    assert "node.stop_s (--stop-s)" in text
    assert "suspicion_min_s = 20.0 must not be above" in text
    assert "a worker needs to know where a manager is" in text
    with pytest.raises(InputError, match="8 settings are wrong"):
        loaded.require()


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"listen": {"port": -1}}, "listen.port"),
        ({"listen": {"port": "x"}}, "listen.port"),
        ({"listen": {"port": 1.5}}, "listen.port"),
        ({"listen": 5}, "must be a table"),
        ({"node": {"cluster": "two words"}}, "node.cluster"),
        ({"node": {"id": "-x"}}, "node.id"),
        ({"node": {"stop_s": 0}}, "node.stop_s"),
        ({"discovery": {"seeds": ["a:b"]}}, "discovery.seeds"),
        ({"discovery": {"seeds": "a:70000"}}, "discovery.seeds"),
        ({"discovery": {"seeds": [7]}}, "discovery.seeds"),
        ({"discovery": {"retry_first_s": 20.0}}, "retry_first_s"),
        ({"discovery": {"name_servers": ["a:1", "b"]}}, "same port"),
        ({"listen": {"advertise": "no spaces here"}}, "listen.advertise"),
        ({"membership": {"probe_timeout_s": 2.0}}, "probe_timeout_s"),
        ({"security": {"certificate": "x.pem"}}, "key and authority missing"),
    ],
)
def test_values_out_of_bounds_are_refused(tables: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        node_config("manager", tables)


@pytest.mark.parametrize(
    ("content", "words"), [(b"[listen\n", "is not TOML"), (b"\xff\xfe", "is not text")]
)
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "node.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        load("manager", file=path).require()


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load("manager", file=tmp_path / "nothing.toml").require()


def test_service_variables_of_an_orchestrator_are_ignored() -> None:
    load(
        "manager",
        environment={
            "HYPERSCALE_MANAGER_SERVICE_HOST": "10.0.0.1",
            "HYPERSCALE_MANAGER_SERVICE_PORT_HTTP": "9001",
            "HYPERSCALE_MANAGER_PORT": "tcp://10.0.0.1:9000",
            "HYPERSCALE_MANAGER_PORT_9000_TCP_ADDR": "10.0.0.1",
            "HYPERSCALE_CONFIG": "x.toml",
            "PATH": "/bin",
        },
    ).require()


# Secrets.


def test_a_secret_is_taken_from_the_environment_and_never_shown() -> None:
    loaded = load("manager", environment={"HYPERSCALE_SECRET": "correct horse battery staple"})
    config = loaded.require()
    assert config.secret is not None
    assert config.secret.reveal() == "correct horse battery staple"
    assert "horse" not in repr(config)
    assert "horse" not in repr(loaded)
    assert "horse" not in str(loaded.values)


@pytest.mark.parametrize("key", ["secret", "previous_secret"])
def test_a_secret_file_can_be_named_by_a_short_variable(key: str) -> None:
    secret = {"HYPERSCALE_SECRET": "x" * 20} if key != "secret" else {}
    for variable in (f"HYPERSCALE_{key}_file".upper(), f"HYPERSCALE_SECURITY_{key}_file".upper()):
        loaded = load("manager", environment={variable: "cluster.secret", **secret})
        assert getattr(loaded.require().security, f"{key}_file") == "cluster.secret"
        assert loaded.values[f"security.{key}_file"].source == variable


def test_a_flag_wins_over_the_short_variable_and_that_over_the_file(tmp_path: Path) -> None:
    file = file_with(tmp_path, '[security]\nsecret_file = "of the file"')
    environment = {"HYPERSCALE_SECRET_FILE": "of the environment"}
    loaded = load("manager", environment=environment, file=file)
    assert loaded.require().security.secret_file == "of the environment"
    flags = {"security.secret_file": "of the flag"}
    loaded = load("manager", environment=environment, file=file, flags=flags)
    assert loaded.require().security.secret_file == "of the flag"


@pytest.mark.parametrize("key", ["secret", "previous_secret"])
def test_a_secret_in_a_configuration_file_is_refused_with_a_hint(key: str) -> None:
    loaded = load("manager", tables={"security": {key: "correct horse battery staple"}})
    text = problems(loaded)
    assert f"security.{key}_file" in text
    assert f"HYPERSCALE_{key.upper()}" in text
    assert "horse" not in text


@pytest.mark.parametrize(
    ("environment", "tables", "words"),
    [
        ({"HYPERSCALE_SECRET": " "}, {}, "set but empty"),
        ({"HYPERSCALE_SECRET": "x" * 20}, {"security": {"secret_file": "f"}}, "both"),
        (
            {"HYPERSCALE_SECRET": "x" * 20, "HYPERSCALE_SECRET_FILE": "f"},
            {},
            "both HYPERSCALE_SECRET and HYPERSCALE_SECRET_FILE are given",
        ),
        (
            {"HYPERSCALE_SECRET_FILE": "f", "HYPERSCALE_SECURITY_SECRET_FILE": "g"},
            {},
            "both HYPERSCALE_SECRET_FILE and HYPERSCALE_SECURITY_SECRET_FILE are given",
        ),
        ({"HYPERSCALE_SECRET_FILE": " "}, {}, "HYPERSCALE_SECRET_FILE is set but empty"),
        ({"HYPERSCALE_PREVIOUS_SECRET": "x" * 20}, {}, "no current one"),
        ({}, {"security": {"previous_secret_file": "f"}}, "no current one"),
    ],
)
def test_secrets_that_contradict_each_other_are_refused(
    environment: dict[str, str], tables: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        load("manager", environment=environment, tables=tables).require()


# The schema beside what it configures.


def test_the_defaults_equal_those_of_membership_and_discovery() -> None:
    config = NodeConfig(role="manager")
    membership = MembershipConfig()
    for name in type(config.membership).__struct_fields__:
        assert getattr(config.membership, name) == getattr(membership, name), name
    discovery = DiscoveryConfig(cluster="c", environment="e")
    assert config.discovery.default_port == discovery.default_port
    assert config.discovery.probe_timeout_s == discovery.probe_timeout_s
    assert config.discovery.dns_timeout_s == discovery.dns_timeout_s
    assert config.discovery.retry_first_s == discovery.backoff_first_s
    assert config.discovery.retry_most_s == discovery.backoff_most_s


@given(st.text(max_size=70))
def test_configured_names_follow_the_rules_of_the_wire(text: str) -> None:
    loaded = load("manager", tables={"node": {"cluster": text}})
    assert (loaded.config is not None) == is_name(text)


def test_a_line_end_is_no_part_of_a_name() -> None:
    assert load("manager", tables={"node": {"cluster": "name\n"}}).config is None


# Addresses.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host", ("host", 9000)),
        ("host:1", ("host", 1)),
        ("a-b.c_d.example", ("a-b.c_d.example", 9000)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("::1", ("::1", 9000)),
        ("[::1]", ("::1", 9000)),
        ("[fe80::1%eth0]:7", ("fe80::1%eth0", 7)),
    ],
)
def test_addresses_are_parsed(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text, default_port=9000, where="x") == expected
    assert split_address(format_address(*expected)) == expected


@pytest.mark.parametrize("text", ["", ":1", "a b:1", "a:0", "a:65536", "a:-1", "a:", "[x]:1", "/"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_address(text, default_port=9000, where="x")


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused_as_input(text: str) -> None:
    try:
        host, port = parse_address(text, default_port=9000, where="x")
    except InputError:
        return
    assert host
    assert 0 < port < 65536


@pytest.mark.parametrize(
    "given",
    [
        {"tables": {"worker": {"labels": {"zone": "a", "rack": "7"}}}},
        {"tables": {"worker": {"labels": ["zone=a", "rack=7"]}}},
        {"environment": {"HYPERSCALE_WORKER_LABELS": "zone=a, rack=7"}},
        {"flags": {"worker.labels": ["zone=a", "rack=7"]}},
    ],
)
def test_labels_are_the_same_from_every_source(given: dict[str, Any]) -> None:
    loaded = load("manager", **given)
    assert loaded.require().worker.labels == ("zone=a", "rack=7")


@pytest.mark.parametrize(
    ("labels", "part"),
    [
        ({"zone": 3.5}, None),
        (["zone"], "'zone' has no '='"),
        ({"arch": "arm64"}, "a worker finds its 'arch' out by itself"),
        (["zone=a", "zone=b"], "'zone' is both 'a' and 'b'"),
        ({"zone": "a b"}, "'a b' is no name and no value of a label"),
    ],
)
def test_wrong_labels_are_refused(labels: object, part: str | None) -> None:
    loaded = load("manager", tables={"worker": {"labels": labels}})
    found = " ".join(problem.message for problem in loaded.problems)
    assert (part in found) if part else not loaded.problems
