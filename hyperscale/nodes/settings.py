"""The settings of a node's parts, and the problems that keep a node from starting."""

import msgspec

from hyperscale.config.schema import NodeConfig
from hyperscale.errors import InputError
from hyperscale.membership.discovery import DiscoveryConfig
from hyperscale.membership.settings import MembershipConfig
from hyperscale.nodes.identity import seeds_of
from hyperscale.wire.credentials import security_of


def membership_config(config: NodeConfig) -> MembershipConfig:
    """Return the settings of the membership core."""
    return MembershipConfig(**msgspec.structs.asdict(config.membership))


def discovery_config(config: NodeConfig) -> DiscoveryConfig:
    """Return the settings of the discovery core."""
    section = config.discovery
    return DiscoveryConfig(
        cluster=config.node.cluster,
        environment=config.node.environment,
        seeds=seeds_of(config),
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
