"""The settings of a node: their names, types, bounds, defaults and meanings.

Each setting is `section.key` in a TOML file, `HYPERSCALE_SECTION_KEY` in the environment and a
flag of the node commands. Units are the last part of a name: `_s` seconds, `_bytes` bytes.
Values are checked by `loading`, never by these constructors alone: build configurations there.
Secrets have no place in a file of settings: they come from files of their own or from the
environment, and are never shown.
"""

import re
import typing
from functools import cache
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import fields

from hyperscale.config.addresses import DEFAULT_PORT, parse_address
from hyperscale.config.labels import parse_labels
from hyperscale.errors import InputError

ENVIRONMENT_PREFIX = "HYPERSCALE_"
SECRET_VARIABLE = "HYPERSCALE_SECRET"  # noqa: S105  a name, not a secret
PREVIOUS_SECRET_VARIABLE = "HYPERSCALE_PREVIOUS_SECRET"  # noqa: S105  a name, not a secret
SECRET_FILE_VARIABLE = "HYPERSCALE_SECRET_FILE"  # noqa: S105  a name, not a secret
PREVIOUS_SECRET_FILE_VARIABLE = "HYPERSCALE_PREVIOUS_SECRET_FILE"  # noqa: S105  the same
FILE_VARIABLE = "HYPERSCALE_CONFIG"

GATE_PORT = 9300

NodeRole = Literal["manager", "worker", "gate"]
ROLES: tuple[NodeRole, ...] = typing.get_args(NodeRole)

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}\Z"  # `$` would let a line end through
Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
NameOrEmpty = Annotated[str, Meta(pattern=rf"^\Z|{NAME_PATTERN}")]
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]


class _Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class NodeSection(_Section, frozen=True, kw_only=True):
    id: NameOrEmpty = ""
    cluster: Name = "hyperscale"
    environment: Name = "default"
    datacenter: Name = "default"
    cores: Annotated[int, Meta(ge=0, le=4096)] = 0
    failure_domain: NameOrEmpty = ""
    data_dir: str = ""
    stop_s: Seconds = 10.0


class ListenSection(_Section, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: Port = DEFAULT_PORT
    advertise: str = ""
    http_host: str = ""
    http_port: Port = 9001

    def __post_init__(self) -> None:
        if self.advertise:
            parse_address(self.advertise, default_port=1, where="listen.advertise")


class DiscoverySection(_Section, frozen=True, kw_only=True):
    seeds: tuple[str, ...] = ()
    dns: tuple[str, ...] = ()
    default_port: Annotated[int, Meta(ge=1, le=65535)] = DEFAULT_PORT
    name_servers: tuple[str, ...] = ()
    dns_timeout_s: Seconds = 2.0
    probe_timeout_s: Seconds = 0.5
    retry_first_s: Seconds = 0.5
    retry_most_s: Seconds = 15.0

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
    secret_file: str = ""
    previous_secret_file: str = ""
    certificate: str = ""
    key: str = ""
    authority: str = ""
    clients_file: str = ""
    verify_hostname: bool = True
    insecure_files: bool = False

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
    probe_interval_s: Seconds = 1.0
    probe_timeout_s: Seconds = 0.5
    suspicion_min_s: Seconds = 6.0
    suspicion_max_s: Seconds = 12.0
    push_pull_s: Seconds = 30.0
    leave_s: Seconds = 1.0

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
    founders: Annotated[int, Meta(ge=0, le=99)] = 0
    admit: Literal["auto", "approve"] = "auto"
    snapshot_entries: Annotated[int, Meta(ge=100, le=10_000_000)] = 10_000
    trailing_entries: Annotated[int, Meta(ge=10, le=1_000_000)] = 1_000
    history_days: Annotated[float, Meta(gt=0, le=3650)] = 30.0
    upgrade_hold_s: Annotated[float, Meta(ge=0, le=30 * 24 * 3600)] = 600.0


_VARIABLE_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")


class ExecutorsSection(_Section, frozen=True, kw_only=True):
    env: tuple[str, ...] = ()
    sandbox: Literal["auto", "required", "off"] = "auto"
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    memory_mib: Annotated[int, Meta(ge=0, le=16_777_216)] = 0
    processes: Annotated[int, Meta(ge=0, le=1_000_000)] = 1_024
    open_files: Annotated[int, Meta(ge=0, le=16_777_216)] = 0

    def __post_init__(self) -> None:
        for name, paths in (("read", self.read), ("write", self.write)):
            for path in paths:
                if not path.startswith("/"):
                    raise InputError(
                        f"executors.{name}: {path!r} is not an absolute path",
                        hint="as /srv/test-data",
                    )
        for name in self.env:
            if not _VARIABLE_PATTERN.fullmatch(name):
                raise InputError(
                    f"executors.env: {name!r} is not the name of a variable",
                    hint="a name, or the beginning of names and a *: AWS_REGION, SHOP_*",
                )
            if ENVIRONMENT_PREFIX.startswith(name.rstrip("*")) or name.startswith(
                ENVIRONMENT_PREFIX
            ):
                raise InputError(
                    f"executors.env: {name!r} would show tests the settings of this worker",
                    hint=f"{ENVIRONMENT_PREFIX}* may hold the cluster secret",
                )


class WorkerSection(_Section, frozen=True, kw_only=True):
    labels: tuple[str, ...] = ()
    reserved_cores: Annotated[int, Meta(ge=0, le=4096)] = 0

    def __post_init__(self) -> None:
        parse_labels(self.labels, where="worker.labels")


class QueueSection(_Section, frozen=True, kw_only=True):
    max: Annotated[int, Meta(ge=1, le=100_000)] = 1_000
    age_s: Seconds = 30.0


class BundlesSection(_Section, frozen=True, kw_only=True):
    keep: Annotated[int, Meta(ge=1, le=100_000)] = 64


class RetriesSection(_Section, frozen=True, kw_only=True):
    max: Annotated[int, Meta(ge=0, le=100)] = 3
    window_s: Annotated[float, Meta(gt=0, le=86_400)] = 300.0


class GatesSection(_Section, frozen=True, kw_only=True):
    seeds: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for seed in self.seeds:
            parse_address(seed, default_port=GATE_PORT, where="gates.seeds")


class ReportingSection(_Section, frozen=True, kw_only=True):
    config: str = ""
    stream_interval_s: Annotated[float, Meta(ge=0.5, le=3600)] = 5.0


class LogSection(_Section, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"


class Hidden:
    """A secret from the environment, which `repr` does not show."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "<hidden>"


class NodeConfig(Struct, frozen=True, kw_only=True):
    """The whole configuration of a node, made by `loading`."""

    role: NodeRole
    node: NodeSection = NodeSection()
    listen: ListenSection = ListenSection()
    discovery: DiscoverySection = DiscoverySection()
    security: SecuritySection = SecuritySection()
    membership: MembershipSection = MembershipSection()
    ledger: LedgerSection = LedgerSection()
    queue: QueueSection = QueueSection()
    retries: RetriesSection = RetriesSection()
    worker: WorkerSection = WorkerSection()
    executors: ExecutorsSection = ExecutorsSection()
    bundles: BundlesSection = BundlesSection()
    gates: GatesSection = GatesSection()
    reporting: ReportingSection = ReportingSection()
    log: LogSection = LogSection()
    secret: Hidden | None = None
    previous_secret: Hidden | None = None


SECTIONS: dict[str, type[_Section]] = {
    field.name: field.type for field in fields(NodeConfig) if isinstance(field.default, _Section)
}

_MEANINGS = {
    "node.id": "name of this node, stable across restarts; if empty, generated",
    "node.cluster": "name of the cluster; nodes of other clusters are refused",
    "node.environment": "environment of the cluster; nodes of other environments are refused",
    "node.datacenter": "datacenter of this node",
    "node.cores": "cores that a worker offers; 0 for all available cores",
    "node.failure_domain": "rack or zone that fails together with this node; if empty, the node "
    "itself",
    "node.data_dir": "directory for data that survives a restart: the ledger of a manager, the "
    "results of a worker; if empty, hyperscale-data/NAME",
    "node.stop_s": "longest time for a graceful shutdown",
    "listen.host": "address to listen on, TCP and UDP",
    "listen.port": "port to listen on, TCP and UDP; 0 for any free port",
    "listen.advertise": "HOST or HOST:PORT where other nodes reach this node; if empty, detected",
    "listen.http_host": "address of /metrics, /healthz and /readyz; if empty, listen.host",
    "listen.http_port": "port of /metrics, /healthz and /readyz",
    "discovery.seeds": "HOST[:PORT] of a node to join; one reachable seed is enough",
    "discovery.dns": "DNS name of nodes to join: A and AAAA records, or SRV if it starts with _",
    "discovery.default_port": "port of seeds that name none",
    "discovery.name_servers": "HOST[:PORT] of name servers, all on one port; if empty, those of "
    "the system",
    "discovery.dns_timeout_s": "timeout of a DNS lookup",
    "discovery.probe_timeout_s": "timeout of one seed",
    "discovery.retry_first_s": "first delay before seeds are tried again; it doubles with each "
    "failure",
    "discovery.retry_most_s": "longest delay before seeds are tried again",
    "security.secret_file": f"file with the cluster secret (or its name in "
    f"{SECRET_FILE_VARIABLE}, or the secret in {SECRET_VARIABLE})",
    "security.previous_secret_file": f"file with a second secret to accept during a rotation (or "
    f"{PREVIOUS_SECRET_FILE_VARIABLE}, or {PREVIOUS_SECRET_VARIABLE})",
    "security.certificate": "certificate with its chain, PEM",
    "security.key": "private key of the certificate, PEM",
    "security.authority": "certificate authority to trust, PEM",
    "security.clients_file": "TOML file with the names, roles and secrets of clients (managers and "
    "gates; the same on all of them); if empty, everyone with the secret or a certificate of the "
    "role client may do all that clients can",
    "security.verify_hostname": "verify that certificates name the host",
    "security.insecure_files": "accept secret and key files that others can read, and a data "
    "directory that others can write or that has symbolic links",
    "membership.probe_interval_s": "interval between probes",
    "membership.probe_timeout_s": "timeout of a probe",
    "membership.suspicion_min_s": "time until a suspect that enough members suspect is declared "
    "dead",
    "membership.suspicion_max_s": "time until a suspect that no other member suspects is declared "
    "dead",
    "membership.push_pull_s": "interval between exchanges of the full member list",
    "membership.leave_s": "how long a leaving node announces that it leaves",
    "ledger.founders": "number of managers that found a new ledger together; 0: a manager without "
    "seeds founds one alone, a manager with seeds joins an existing one",
    "ledger.admit": "auto: a new manager takes part at once; approve: it waits for 'hyperscale "
    "ledger members approve' (managers; the same on all of them)",
    "ledger.snapshot_entries": "log entries between snapshots",
    "ledger.trailing_entries": "log entries kept before a snapshot, for followers that lag",
    "ledger.history_days": "days to keep the history of jobs",
    "ledger.upgrade_hold_s": "time from when all nodes announce a higher version until the cluster "
    "version rises; until then nodes can go back to the older version (managers and gates; the "
    "same on all of them)",
    "gates.seeds": "HOST[:PORT] of a gate that this datacenter registers with (managers)",
    "queue.max": "most workflows that may wait for cores; further jobs are refused (managers)",
    "queue.age_s": "wait after which a workflow rises by one priority; from then on no later "
    "workflow takes the cores it waits for (managers)",
    "retries.max": "most new attempts of a part of a workflow within retries.window_s of its load "
    "(managers)",
    "retries.window_s": "load after which a failed attempt of a part no longer counts; a worker on "
    "which a part failed gets it again after this time, or if no other worker could (managers)",
    "worker.labels": "NAME=VALUE that a workflow may ask for with `constraints` or `spread`; in a "
    'file also a table, {zone = "a"} (workers)',
    "worker.reserved_cores": "cores of the machine that a worker with node.cores = 0 does not "
    "offer: for the worker itself and what else runs there (workers)",
    "executors.env": "environment variable of the worker that tests may see, beside PATH, LANG, "
    "TZ and those that begin with LC_ or PYTHON; a name that ends with * stands for all that begin "
    "so (workers)",
    "executors.sandbox": "confine the code of tests: auto as far as the kernel can, required or "
    "refuse to run tests, off (workers)",
    "executors.read": "path that tests may read, beside Python and the libraries of the system "
    "(workers)",
    "executors.write": "path that tests may read and write, beside a temporary directory of their "
    "own (workers)",
    "executors.memory_mib": "memory in MiB of an executor and the processes that it starts, beyond "
    "which its job is ended; 0: no limit (workers)",
    "executors.processes": "processes and threads of an executor; 0: no limit (workers)",
    "executors.open_files": "open files of an executor; 0: the limit of the worker (workers)",
    "bundles.keep": "tests that a node keeps on its disk, of at most 64 MiB each; beyond that the "
    "least recently used are removed, but none that a job needs",
    "reporting.config": "TOML file with reporters, for the results of jobs that ask for them, and "
    "streams, for the live statistics of all jobs (managers and gates; the same names on all of "
    "them)",
    "reporting.stream_interval_s": "interval between updates of live streams (managers and gates)",
    "log.level": "lowest level to log",
}

# The flag of a setting is `--key` in these sections and `--section-key` in the others.
_SHORT_FLAG_SECTIONS = frozenset({"node", "listen", "security"})
_OTHER_FLAGS = {
    "node.id": "--node-id",
    "discovery.seeds": "--seed",
    "discovery.dns": "--dns",
    "ledger.founders": "--founders",
    "worker.labels": "--label",
    "worker.reserved_cores": "--reserved-cores",
}
_SHORT_VARIABLES = {
    "security.secret_file": SECRET_FILE_VARIABLE,
    "security.previous_secret_file": PREVIOUS_SECRET_FILE_VARIABLE,
}

# Defaults that differ by role, so that one node of each role runs on a machine without settings.
ROLE_DEFAULTS: dict[str, dict[tuple[str, str], Any]] = {
    "manager": {},
    "worker": {("listen", "port"): 9100, ("listen", "http_port"): 9101},
    "gate": {
        ("node", "datacenter"): "global",
        ("listen", "port"): GATE_PORT,
        ("listen", "http_port"): GATE_PORT + 1,
    },
}


class Setting(Struct, frozen=True, kw_only=True):
    """One setting with its names."""

    section: str
    key: str
    type: Any
    default: Any
    about: str
    flag: str
    variables: tuple[str, ...]
    """Its environment variables: the one made of its name and, for some, a shorter one."""

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"

    @property
    def is_labels(self) -> bool:
        """True if a file may also have it as a table of names and values."""
        return self.key == "labels"

    @property
    def is_list(self) -> bool:
        return isinstance(self.default, tuple)

    def default_for(self, role: str) -> Any:
        return ROLE_DEFAULTS.get(role, {}).get((self.section, self.key), self.default)


@cache
def settings() -> tuple[Setting, ...]:
    """Return every setting, in the order in which they are shown."""
    return tuple(
        _setting(section, field.name, hints[field.name], field.default)
        for section, struct in SECTIONS.items()
        for hints in (typing.get_type_hints(struct, include_extras=True),)
        for field in fields(struct)
    )


def _setting(section: str, key: str, kind: Any, default: Any) -> Setting:
    name = f"{section}.{key}"
    flag = key if section in _SHORT_FLAG_SECTIONS else f"{section}-{key}"
    variable = f"{ENVIRONMENT_PREFIX}{section}_{key}".upper()
    short = _SHORT_VARIABLES.get(name)
    return Setting(
        section=section,
        key=key,
        type=kind,
        default=default,
        about=_MEANINGS[name],
        flag=_OTHER_FLAGS.get(name) or f"--{flag}".replace("_", "-"),
        variables=(variable,) if short is None else (variable, short),
    )
