"""What a node takes from its configuration: addresses, settings of its parts."""

import socket

from msgspec.structs import asdict

from hyperscale.config.addresses import format_address, parse_address, split_address
from hyperscale.config.schema import NodeConfig
from hyperscale.errors import InputError
from hyperscale.membership.discovery import DiscoveryConfig
from hyperscale.membership.settings import MembershipConfig

WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104  recognised, not bound
# Nothing is sent there: the route to it tells which address of this machine faces outwards.
_ELSEWHERE = {socket.AF_INET: ("192.0.2.1", 9), socket.AF_INET6: ("2001:db8::1", 9)}


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
