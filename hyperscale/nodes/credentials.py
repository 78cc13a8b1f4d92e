"""The secrets and certificates of a running node: their validity, and new ones without a restart.

New connections use what the files hold now; connections that are open go on. Files that cannot be
used are refused as a whole, and the node keeps what it has.
"""

import datetime
import logging
from pathlib import Path

from hyperscale.config.schema import NodeConfig
from hyperscale.errors import InputError
from hyperscale.nodes.member import MemberNode, NodeService
from hyperscale.telemetry.metrics import Family, counter, gauge
from hyperscale.wire.security import Security, security_of_node

CHECK_S = 5.0
"""How often the files are looked at. They are read once they have not changed for this long."""
_EXPIRES_SOON = datetime.timedelta(days=14)
_WARN_EVERY_S = 24 * 3600.0

FileStates = tuple[tuple[int, int, int] | None, ...]
"""Inode, size and time of the last change of each file; None: it cannot be read."""

_log = logging.getLogger("hyperscale.nodes")


class NodeCredentials(NodeService):
    """Refuses a certificate that other nodes would refuse, warns before it expires, and reads
    secrets, certificates and the clients file again when they have changed."""

    def __init__(self, member: MemberNode) -> None:
        self._member = member
        self._config = member.config
        self._expires_at = _checked_expiry(member.config)
        self._seen = self._used = _states(member.config)
        self._reloads = {"used": 0, "refused": 0}

    async def start(self) -> None:
        tasks = self._member.tasks
        if self._config.security.certificate:
            self._warn()
            tasks.spawn_every(_WARN_EVERY_S, self._warn, "certificate-watch")
        if self._used:
            tasks.spawn_every(CHECK_S, self.check, "credentials")

    def collect(self) -> list[Family]:
        expiry = [] if self._expires_at is None else [self._expires_at.timestamp()]
        about = (
            "When the certificate of this node expires, in seconds since 1970; absent without one"
        )
        return [
            gauge("hyperscale_certificate_expiry_timestamp_seconds", about, *expiry),
            counter(
                "hyperscale_credentials_reloads_total",
                "Changes of secrets and certificates, by whether this node uses or refused them",
                *(({"outcome": name}, count) for name, count in self._reloads.items()),
            ),
        ]

    def check(self) -> None:
        """Read the files again if they have changed, and not since the last check."""
        now = _states(self._config)
        is_settled, self._seen = now == self._seen, now
        if is_settled and now != self._used:
            self.reload()

    def reload(self) -> None:
        """Use what the files hold now, or say why not and go on with what the node has."""
        self._seen = self._used = _states(self._config)
        try:
            self._use(security_of_node(self._config), _checked_expiry(self._config))
        except InputError as error:
            self._reloads["refused"] += 1
            _log.error("credentials.refused: %s", error, extra={"detail": str(error)})
        else:
            self._reloads["used"] += 1
            _log.info("credentials.reloaded")

    def _use(self, security: Security, expires_at: datetime.datetime | None) -> None:
        server = self._member.server
        if (security.mode, security.secrets is None) != (
            server.security.mode,
            server.security.secrets is None,
        ):
            raise InputError(
                "secrets and certificates cannot be added or removed while a node runs",
                hint="restart the node",
            )
        server.security = security
        if security.secrets is not None:
            self._member.datagrams.sealer.use(security.secrets)
        self._expires_at = expires_at

    def _warn(self) -> None:
        if self._expires_at is not None and self._expires_at - _now() < _EXPIRES_SOON:
            _log.warning(
                "certificate.expires_soon",
                extra={
                    "file": self._config.security.certificate,
                    "expires": self._expires_at.isoformat(),
                },
            )


def _states(config: NodeConfig) -> FileStates:
    section = config.security
    files = (
        *(section.secret_file, section.previous_secret_file, section.clients_file),
        *(section.certificate, section.key, section.authority),
    )
    return tuple(_state(Path(file)) for file in files if file)


def _state(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:  # reading it says what is wrong
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _checked_expiry(config: NodeConfig) -> datetime.datetime | None:
    """Return when the certificate of a node expires; raise if other nodes would refuse it."""
    if not config.security.certificate:
        return None
    # Slow to import, and most nodes have no certificate.
    from hyperscale.wire.certificate_check import CertificateCheck  # noqa: PLC0415

    check = CertificateCheck(config)
    for problem in check.problems(_now()):
        raise problem
    return check.expires_at


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
