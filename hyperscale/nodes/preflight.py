"""What would keep a node from starting or from being accepted, found without starting it.

`hyperscale config check` shows all of it at once. The check changes nothing and talks to no peer.
"""

import datetime
from collections.abc import Iterator

from hyperscale.config.schema import NodeConfig
from hyperscale.errors import InputError
from hyperscale.execution.cores import default_executors
from hyperscale.nodes.agent.machine import offered_cores
from hyperscale.nodes.data_directory import problem_of_data_directory
from hyperscale.nodes.settings import discovery_config, membership_config
from hyperscale.telemetry.http import bind_http
from hyperscale.wire.datagrams import bind_datagrams
from hyperscale.wire.listener import bind_stream
from hyperscale.wire.security import security_of_node


def problems_of(config: NodeConfig) -> list[InputError]:
    """Return every problem of a configuration on this machine."""
    found: list[InputError] = []
    for check in (
        membership_config,
        discovery_config,
        _check_security,
        _check_founders,
        _check_cores,
        _check_ports,
        _check_http_port,
    ):
        try:
            check(config)
        except InputError as problem:
            found.append(problem)
    found += _certificate_problems(config)
    directory = problem_of_data_directory(config)
    return found if directory is None else [*found, directory]


def _check_security(config: NodeConfig) -> None:
    security = security_of_node(config)
    security.check_bind(config.listen.host)
    security.check_datagrams(config.listen.host)


def _certificate_problems(config: NodeConfig) -> Iterator[InputError]:
    if not config.security.certificate:
        return
    # Slow to import, and most configurations have no certificate.
    from hyperscale.wire.certificate_check import CertificateCheck  # noqa: PLC0415

    try:
        yield from CertificateCheck(config).problems(datetime.datetime.now(datetime.UTC))
    except InputError as problem:
        yield problem


def _check_founders(config: NodeConfig) -> None:
    founders, discovery = config.ledger.founders, config.discovery
    if config.role == "manager" and founders > 1 and not (discovery.seeds or discovery.dns):
        raise InputError(
            f"ledger.founders = {founders}, but no discovery.seeds and no discovery.dns: this "
            "manager would wait for the others for ever",
            hint="name the other founders with --seed HOST:PORT",
        )


def _check_cores(config: NodeConfig) -> None:
    if config.role != "worker":
        return
    available, cores = default_executors(), offered_cores(config)
    if cores > available:
        raise InputError(
            f"node.cores = {cores}, but this process may use {available}",
            hint="executors that share a core measure each other; 0 offers all available cores",
        )


def _check_ports(config: NodeConfig) -> None:
    host, port = config.listen.host, config.listen.port
    bind_datagrams(host, port).close()
    bind_stream(host, port).close()


def _check_http_port(config: NodeConfig) -> None:
    listen = config.listen
    if listen.http_port and listen.http_port == listen.port:
        raise InputError(
            f"listen.http_port and listen.port are both {listen.port}",
            hint="choose another --http-port",
        )
    bind_http(listen.http_host or listen.host, listen.http_port).close()
