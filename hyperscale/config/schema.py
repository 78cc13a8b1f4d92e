"""The one schema of a node: what can be set, within which bounds, by which names.

Each setting is `section.key` in a TOML file, `HYPERSCALE_SECTION_KEY` in the environment and a
flag of the node commands. Units are the last part of a name: `_s` seconds, `_bytes` bytes.
Values are checked by `loading`, never by these constructors alone: build configurations there.
Secrets have no place in a file of settings: they come from files of their own or from the
environment, and are never shown.
"""

import typing
from functools import cache
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import fields

from hyperscale.config.addresses import DEFAULT_PORT, parse_address
from hyperscale.errors import InputError

ENVIRONMENT_PREFIX = "HYPERSCALE_"
SECRET_VARIABLE = "HYPERSCALE_SECRET"  # noqa: S105  a name, not a secret
PREVIOUS_SECRET_VARIABLE = "HYPERSCALE_PREVIOUS_SECRET"  # noqa: S105  a name, not a secret
SECRET_FILE_VARIABLE = "HYPERSCALE_SECRET_FILE"  # noqa: S105  a name, not a secret
PREVIOUS_SECRET_FILE_VARIABLE = "HYPERSCALE_PREVIOUS_SECRET_FILE"  # noqa: S105  the same
FILE_VARIABLE = "HYPERSCALE_CONFIG"

NodeRole = Literal["manager", "worker"]
ROLES: tuple[NodeRole, ...] = typing.get_args(NodeRole)

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}\Z"  # `$` would let a line end through
_NAME = Meta(pattern=NAME_PATTERN)
_NAME_OR_NONE = Meta(pattern=rf"^\Z|{NAME_PATTERN}")
_PORT = Meta(ge=0, le=65535)
_SECONDS = Meta(gt=0, le=3600)


class _Text(Struct, frozen=True):
    """What a setting means, the flag it has if that is not made of its name, and a variable it
    has besides the one that is."""

    about: str
    flag: str = ""
    variable: str = ""


def _about(text: str, *, flag: str = "", variable: str = "") -> _Text:
    return _Text(text, flag, variable)


class _Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class NodeSection(_Section, frozen=True, kw_only=True):
    id: Annotated[
        str,
        _NAME_OR_NONE,
        _about("name of this node, stable across restarts; if empty, generated"),
    ] = ""
    cluster: Annotated[
        str,
        _NAME,
        _about("name of the cluster; nodes of other clusters are refused", flag="--cluster"),
    ] = "hyperscale"
    environment: Annotated[
        str,
        _NAME,
        _about(
            "environment of the cluster; nodes of other environments are refused",
            flag="--environment",
        ),
    ] = "default"
    datacenter: Annotated[str, _NAME, _about("datacenter of this node", flag="--datacenter")] = (
        "default"
    )
    cores: Annotated[
        int,
        Meta(ge=0, le=4096),
        _about("cores that a worker offers; 0 for all available cores", flag="--cores"),
    ] = 0
    failure_domain: Annotated[
        str,
        _NAME_OR_NONE,
        _about(
            "rack or zone that fails together with this node; if empty, the node itself",
            flag="--failure-domain",
        ),
    ] = ""
    data_dir: Annotated[
        str,
        _about(
            "directory for data that survives a restart: the ledger of a manager, the results of a "
            "worker; if empty, hyperscale-data/NAME",
            flag="--data-dir",
        ),
    ] = ""
    stop_s: Annotated[
        float, _SECONDS, _about("longest time for a graceful shutdown", flag="--stop-s")
    ] = 10.0


class ListenSection(_Section, frozen=True, kw_only=True):
    host: Annotated[str, _about("address to listen on, TCP and UDP", flag="--host")] = "127.0.0.1"
    port: Annotated[
        int, _PORT, _about("port to listen on, TCP and UDP; 0 for any free port", flag="--port")
    ] = DEFAULT_PORT
    advertise: Annotated[
        str,
        _about(
            "HOST or HOST:PORT where other nodes reach this node; if empty, detected",
            flag="--advertise",
        ),
    ] = ""
    http_host: Annotated[
        str,
        _about(
            "address of /metrics, /healthz and /readyz; if empty, listen.host", flag="--http-host"
        ),
    ] = ""
    http_port: Annotated[
        int, _PORT, _about("port of /metrics, /healthz and /readyz", flag="--http-port")
    ] = 9001

    def __post_init__(self) -> None:
        if self.advertise:
            parse_address(self.advertise, default_port=1, where="listen.advertise")


class DiscoverySection(_Section, frozen=True, kw_only=True):
    seeds: Annotated[
        tuple[str, ...],
        _about("HOST[:PORT] of a node to join; one reachable seed is enough", flag="--seed"),
    ] = ()
    dns: Annotated[
        tuple[str, ...],
        _about(
            "DNS name of nodes to join: A and AAAA records, or SRV if it starts with _",
            flag="--dns",
        ),
    ] = ()
    default_port: Annotated[int, Meta(ge=1, le=65535), _about("port of seeds that name none")] = (
        DEFAULT_PORT
    )
    name_servers: Annotated[
        tuple[str, ...],
        _about("HOST[:PORT] of name servers, all on one port; if empty, those of the system"),
    ] = ()
    dns_timeout_s: Annotated[float, _SECONDS, _about("timeout of a DNS lookup")] = 2.0
    probe_timeout_s: Annotated[float, _SECONDS, _about("timeout of one seed")] = 0.5
    retry_first_s: Annotated[
        float,
        _SECONDS,
        _about("first delay before seeds are tried again; it doubles with each failure"),
    ] = 0.5
    retry_most_s: Annotated[
        float, _SECONDS, _about("longest delay before seeds are tried again")
    ] = 15.0

    def __post_init__(self) -> None:
        for seed in self.seeds:
            parse_address(seed, default_port=self.default_port, where="discovery.seeds")
        servers = [
            parse_address(server, default_port=53, where="discovery.name_servers")
            for server in self.name_servers
        ]
        if len({port for _, port in servers}) > 1:
            raise InputError("discovery.name_servers: all must be on the same port")
        if self.retry_first_s > self.retry_most_s:
            raise InputError(
                f"discovery.retry_first_s = {self.retry_first_s} must not be above "
                f"discovery.retry_most_s = {self.retry_most_s}"
            )


class SecuritySection(_Section, frozen=True, kw_only=True):
    secret_file: Annotated[
        str,
        _about(
            f"file with the cluster secret (or its name in {SECRET_FILE_VARIABLE}, or the "
            f"secret in {SECRET_VARIABLE})",
            flag="--secret-file",
            variable=SECRET_FILE_VARIABLE,
        ),
    ] = ""
    previous_secret_file: Annotated[
        str,
        _about(
            f"file with a second secret to accept during a rotation (or "
            f"{PREVIOUS_SECRET_FILE_VARIABLE}, or {PREVIOUS_SECRET_VARIABLE})",
            flag="--previous-secret-file",
            variable=PREVIOUS_SECRET_FILE_VARIABLE,
        ),
    ] = ""
    certificate: Annotated[str, _about("certificate with its chain, PEM", flag="--certificate")] = (
        ""
    )
    key: Annotated[str, _about("private key of the certificate, PEM", flag="--key")] = ""
    authority: Annotated[str, _about("certificate authority to trust, PEM", flag="--authority")] = (
        ""
    )
    verify_hostname: Annotated[
        bool, _about("verify that certificates name the host", flag="--verify-hostname")
    ] = True

    def __post_init__(self) -> None:
        files = {"certificate": self.certificate, "key": self.key, "authority": self.authority}
        missing = [name for name, path in files.items() if not path]
        if 0 < len(missing) < len(files):
            raise InputError(
                f"security: {' and '.join(missing)} missing: certificate, key and authority "
                f"must be given together",
                hint="'hyperscale certs' creates all three",
            )


class MembershipSection(_Section, frozen=True, kw_only=True):
    probe_interval_s: Annotated[float, _SECONDS, _about("interval between probes")] = 1.0
    probe_timeout_s: Annotated[float, _SECONDS, _about("timeout of a probe")] = 0.5
    suspicion_min_s: Annotated[
        float, _SECONDS, _about("time until a suspect that enough members suspect is declared dead")
    ] = 6.0
    suspicion_max_s: Annotated[
        float,
        _SECONDS,
        _about("time until a suspect that no other member suspects is declared dead"),
    ] = 12.0
    push_pull_s: Annotated[
        float, _SECONDS, _about("interval between exchanges of the full member list")
    ] = 30.0
    leave_s: Annotated[
        float, _SECONDS, _about("how long a leaving node announces that it leaves")
    ] = 1.0

    def __post_init__(self) -> None:
        if self.probe_timeout_s >= self.probe_interval_s:
            raise InputError(
                f"membership.probe_timeout_s = {self.probe_timeout_s} must be below "
                f"membership.probe_interval_s = {self.probe_interval_s}",
                hint="set it near the p99 round trip between members",
            )
        if self.suspicion_min_s > self.suspicion_max_s:
            raise InputError(
                f"membership.suspicion_min_s = {self.suspicion_min_s} must not be above "
                f"membership.suspicion_max_s = {self.suspicion_max_s}"
            )


class LedgerSection(_Section, frozen=True, kw_only=True):
    founders: Annotated[
        int,
        Meta(ge=0, le=99),
        _about(
            "number of managers that found a new ledger together; 0: a manager without seeds "
            "founds one alone, a manager with seeds joins an existing one",
            flag="--founders",
        ),
    ] = 0
    snapshot_entries: Annotated[
        int, Meta(ge=100, le=10_000_000), _about("log entries between snapshots")
    ] = 10_000
    trailing_entries: Annotated[
        int,
        Meta(ge=10, le=1_000_000),
        _about("log entries kept before a snapshot, for followers that lag"),
    ] = 1_000
    history_days: Annotated[
        float, Meta(gt=0, le=3650), _about("days to keep the history of jobs")
    ] = 30.0


class QueueSection(_Section, frozen=True, kw_only=True):
    max: Annotated[
        int,
        Meta(ge=1, le=100_000),
        _about("most workflows that may wait for cores; further jobs are refused (managers)"),
    ] = 1_000
    age_s: Annotated[
        float,
        _SECONDS,
        _about(
            "wait after which a workflow rises by one priority; from then on no later workflow "
            "takes the cores it waits for (managers)"
        ),
    ] = 30.0


class LogSection(_Section, frozen=True, kw_only=True):
    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        _about("lowest level to log", flag="--log-level"),
    ] = "info"


class Hidden:
    """A secret on its way from the environment to the wire. Never shown, never compared."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "<hidden>"


class NodeConfig(Struct, frozen=True, kw_only=True):
    """The whole configuration of a node. Made by `loading`."""

    role: NodeRole
    node: NodeSection = NodeSection()
    listen: ListenSection = ListenSection()
    discovery: DiscoverySection = DiscoverySection()
    security: SecuritySection = SecuritySection()
    membership: MembershipSection = MembershipSection()
    ledger: LedgerSection = LedgerSection()
    queue: QueueSection = QueueSection()
    log: LogSection = LogSection()
    secret: Hidden | None = None
    previous_secret: Hidden | None = None


SECTIONS: dict[str, type[_Section]] = {
    "node": NodeSection,
    "listen": ListenSection,
    "discovery": DiscoverySection,
    "security": SecuritySection,
    "membership": MembershipSection,
    "ledger": LedgerSection,
    "queue": QueueSection,
    "log": LogSection,
}

# Defaults that differ by role, so that one node of each role runs on a machine without settings.
ROLE_DEFAULTS: dict[str, dict[tuple[str, str], Any]] = {
    "manager": {},
    "worker": {("listen", "port"): 9100, ("listen", "http_port"): 9101},
}


class Setting(Struct, frozen=True, kw_only=True):
    """One thing that can be set, and the names it has."""

    section: str
    key: str
    type: Any
    default: Any
    about: str
    flag: str
    variables: tuple[str, ...]
    """The one every setting has by its name, and a shorter one."""

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"

    @property
    def is_list(self) -> bool:
        return isinstance(self.default, tuple)

    def default_for(self, role: str) -> Any:
        return ROLE_DEFAULTS.get(role, {}).get((self.section, self.key), self.default)


@cache
def settings() -> tuple[Setting, ...]:
    """All of them, in the order they are shown."""
    return tuple(
        _setting(section, field.name, hints[field.name], field.default)
        for section, struct in SECTIONS.items()
        for hints in (typing.get_type_hints(struct, include_extras=True),)
        for field in fields(struct)
    )


def _setting(section: str, key: str, annotated: Any, default: Any) -> Setting:
    text = next(meta for meta in annotated.__metadata__ if isinstance(meta, _Text))
    metas = tuple(meta for meta in annotated.__metadata__ if isinstance(meta, Meta))
    kind = annotated.__origin__
    return Setting(
        section=section,
        key=key,
        type=Annotated[(kind, *metas)] if metas else kind,
        default=default,
        about=text.about,
        flag=text.flag or f"--{section}-{key}".replace("_", "-"),
        variables=(
            f"{ENVIRONMENT_PREFIX}{section}_{key}".upper(),
            *((text.variable,) if text.variable else ()),
        ),
    )
