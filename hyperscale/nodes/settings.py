"""The parts' own settings from a node's configuration, and whether a node would start with it."""

import msgspec

from hyperscale.config.schema import NodeConfig
from hyperscale.errors import InputError
from hyperscale.membership.discovery import DiscoveryConfig
from hyperscale.membership.settings import MembershipConfig
from hyperscale.nodes.identity import seeds_of
from hyperscale.wire.credentials import security_of


def membership_config(config: NodeConfig) -> MembershipConfig:
    return MembershipConfig(**msgspec.structs.asdict(config.membership))


def discovery_config(config: NodeConfig) -> DiscoveryConfig:
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
    """Everything that would keep this node from starting, as far as files can tell."""
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
