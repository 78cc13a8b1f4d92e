"""Who a node is, according to its configuration: its name, data directory and addresses."""

import os
import secrets
import socket
from pathlib import Path

from hyperscale.config.addresses import format_address, parse_address, split_address
from hyperscale.config.schema import NodeConfig
from hyperscale.errors import InputError
from hyperscale.wire.certificate_identity import is_name

_NAME_FILE = "node-id"

_WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104  recognised, not bound
# Nothing is sent there: asking for a route to it tells which address of ours faces outwards.
_ELSEWHERE = {socket.AF_INET: ("192.0.2.1", 9), socket.AF_INET6: ("2001:db8::1", 9)}


def node_id_of(config: NodeConfig) -> str:
    """The configured name, the one its data directory has, or one made now."""
    if config.node.id:
        return config.node.id
    known = _known_directory(config)
    remembered = None if known is None else _remembered_name(known)
    return remembered or f"{config.role}-{secrets.token_hex(4)}"


def data_directory(config: NodeConfig, name: str) -> Path:
    """Where a node of this name keeps what must survive a restart."""
    return _known_directory(config) or Path("hyperscale-data") / name


def _known_directory(config: NodeConfig) -> Path | None:
    """The directory, as far as it does not depend on a name that is made up."""
    node = config.node
    if node.data_dir:
        return Path(node.data_dir)
    # Without a name the port tells nodes on one machine apart, and one from its restart.
    name = node.id or (f"{config.role}-{config.listen.port}" if config.listen.port else "")
    return Path("hyperscale-data") / name if name else None


def remember_name(directory: Path, name: str) -> None:
    """A node whose name was made up has the same one after a restart, also if it dies here."""
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
    except OSError:
        return None
    if not is_name(name):
        raise InputError(
            f"{path} holds no name of a node",
            hint="give the one it had, which its log has, with --node-id; with another --data-dir "
            "it joins as a new one",
        )
    return name


def advertised_address(config: NodeConfig, bound_host: str, bound_port: int) -> str:
    """`ip:port` at which others reach this node, TCP and UDP."""
    if config.listen.advertise:
        host, port = parse_address(
            config.listen.advertise, default_port=bound_port, where="listen.advertise"
        )
        return format_address(_resolved(host), port)
    host = bound_host if bound_host not in _WILDCARDS else _outward_host(bound_host)
    return format_address(host, bound_port)


def may_move(config: NodeConfig, bound_host: str) -> bool:
    """Whether the address others use was found out, and so may change."""
    return bound_host in _WILDCARDS and not config.listen.advertise


def http_address_of(bound_host: str, bound_port: int, address: str) -> str:
    """`ip:port` of the endpoint as others see it: by the node's own address if it is on all."""
    host = split_address(address)[0] if bound_host in _WILDCARDS else bound_host
    return format_address(host, bound_port)


def seeds_of(config: NodeConfig) -> tuple[str, ...]:
    """The seeds, each with its port."""
    default_port = config.discovery.default_port
    return tuple(
        format_address(*parse_address(seed, default_port=default_port, where="discovery.seeds"))
        for seed in config.discovery.seeds
    )


def _resolved(host: str) -> str:
    """Names are looked up once: a datagram cannot wait for DNS."""
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
                hint="say with --advertise at which address the other nodes reach this one",
            ) from error
    return host
