"""What a node takes from its configuration: name, data directory, addresses, settings of parts."""

import os
import secrets
import socket
from pathlib import Path

from msgspec.structs import asdict

from hyperscale.config.addresses import format_address, parse_address, split_address
from hyperscale.config.schema import NodeConfig
from hyperscale.errors import InputError
from hyperscale.membership.discovery import DiscoveryConfig
from hyperscale.membership.settings import MembershipConfig
from hyperscale.wire.certificate_identity import is_name
from hyperscale.wire.security import security_of

_NAME_FILE = "node-id"

WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104  recognised, not bound
# Nothing is sent there: the route to it tells which address of this machine faces outwards.
_ELSEWHERE = {socket.AF_INET: ("192.0.2.1", 9), socket.AF_INET6: ("2001:db8::1", 9)}


def node_id_of(config: NodeConfig) -> str:
    """Return the configured name, the name stored in the data directory, or a new random one."""
    if config.node.id:
        return config.node.id
    known = _known_directory(config)
    remembered = None if known is None else _remembered_name(known)
    return remembered or f"{config.role}-{secrets.token_hex(4)}"


def data_directory(config: NodeConfig, name: str) -> Path:
    """Return the directory in which a node of this name keeps its data."""
    return _known_directory(config) or Path("hyperscale-data") / name


def _known_directory(config: NodeConfig) -> Path | None:
    """Return the data directory; None if its path depends on a random name."""
    node = config.node
    if node.data_dir:
        return Path(node.data_dir)
    # Without a name, the port identifies a node on its machine, also after a restart.
    name = node.id or (f"{config.role}-{config.listen.port}" if config.listen.port else "")
    return Path("hyperscale-data") / name if name else None


def remember_name(directory: Path, name: str) -> None:
    """Store the name of a node in its data directory, so that it keeps it after a restart."""
    partial = directory / f".{_NAME_FILE}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8") as file:
            file.write(f"{name}\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(directory / _NAME_FILE)
    except OSError as error:
        raise InputError(
            f"the data directory {directory} cannot be written: {error.strerror or error}",
            hint="give another one with --data-dir",
        ) from error


def _remembered_name(directory: Path) -> str | None:
    path = directory / _NAME_FILE
    try:
        name = path.read_text("utf-8", "replace").strip()
    except OSError:  # the node is new; an unreadable directory is refused when it is written
        return None
    if not is_name(name):
        raise InputError(
            f"{path} does not hold the name of a node",
            hint="give the name that the node had with --node-id (its log shows it); with another "
            "--data-dir it joins as a new node",
        )
    return name


def advertised_address(config: NodeConfig, bound_host: str, bound_port: int) -> str:
    """Return the `ip:port` at which other nodes reach this one, TCP and UDP."""
    if config.listen.advertise:
        host, port = parse_address(
            config.listen.advertise, default_port=bound_port, where="listen.advertise"
        )
        return format_address(_resolved(host), port)
    host = bound_host if bound_host not in WILDCARDS else _outward_host(bound_host)
    return format_address(host, bound_port)


def http_address_of(bound_host: str, bound_port: int, address: str) -> str:
    """Return the `ip:port` at which others reach the HTTP endpoint."""
    host = split_address(address)[0] if bound_host in WILDCARDS else bound_host
    return format_address(host, bound_port)


def _resolved(host: str) -> str:
    """Resolve a host once: sending a datagram cannot wait for DNS."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise InputError(
            f"listen.advertise: {host} does not resolve: {error.strerror or error}",
            hint="give the IP address at which the other nodes reach this one",
        ) from error
    return str(found[0][4][0])


def _outward_host(bound_host: str) -> str:
    family = socket.AF_INET6 if ":" in bound_host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE[family])
            host: str = probe.getsockname()[0]
        except OSError as error:
            raise InputError(
                f"listening on {bound_host}, but no address of this machine faces outwards",
                hint="give the address at which the other nodes reach this one with --advertise",
            ) from error
    return host


def membership_config(config: NodeConfig) -> MembershipConfig:
    """Return the settings of the membership core."""
    return MembershipConfig(**asdict(config.membership))


def discovery_config(config: NodeConfig) -> DiscoveryConfig:
    """Return the settings of the discovery core."""
    section = config.discovery
    seeds = [
        parse_address(seed, default_port=section.default_port, where="discovery.seeds")
        for seed in section.seeds
    ]
    return DiscoveryConfig(
        cluster=config.node.cluster,
        environment=config.node.environment,
        seeds=tuple(format_address(*seed) for seed in seeds),
        dns_names=section.dns,
        default_port=section.default_port,
        probe_timeout_s=section.probe_timeout_s,
        backoff_first_s=section.retry_first_s,
        backoff_most_s=section.retry_most_s,
        dns_timeout_s=section.dns_timeout_s,
    )


def problems_of(config: NodeConfig) -> list[InputError]:
    """Return the problems of a configuration that keep a node from starting."""
    found: list[InputError] = []
    for part in (membership_config, discovery_config, _check_security):
        try:
            part(config)
        except InputError as problem:
            found.append(problem)
    return found


def _check_security(config: NodeConfig) -> None:
    security = security_of(config)
    security.check_bind(config.listen.host)
    security.check_datagrams(config.listen.host)
