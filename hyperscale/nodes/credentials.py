"""Refuses a certificate that other nodes would refuse; warns before it expires."""

import datetime
import logging

from hyperscale.nodes.member import MemberNode, NodeService
from hyperscale.telemetry.metrics import Family, gauge

_EXPIRES_SOON = datetime.timedelta(days=14)
_WARN_EVERY_S = 24 * 3600.0

_log = logging.getLogger("hyperscale.nodes")


class CertificateWatch(NodeService):
    """The validity of this node's certificate, in the log and as a metric."""

    def __init__(self, member: MemberNode) -> None:
        self._member = member
        self._file = member.config.security.certificate
        self._expires_at: datetime.datetime | None = None
        if self._file:
            # Slow to import, and most nodes have no certificate.
            from hyperscale.wire.certificate_check import CertificateCheck  # noqa: PLC0415

            check = CertificateCheck(member.config)
            for problem in check.problems(_now()):
                raise problem
            self._expires_at = check.expires_at

    async def start(self) -> None:
        if self._expires_at is not None:
            self._warn()
            self._member.tasks.spawn_every(_WARN_EVERY_S, self._warn, "certificate-watch")

    def collect(self) -> list[Family]:
        expiry = [] if self._expires_at is None else [self._expires_at.timestamp()]
        about = (
            "When the certificate of this node expires, in seconds since 1970; absent without one"
        )
        return [gauge("hyperscale_certificate_expiry_timestamp_seconds", about, *expiry)]

    def _warn(self) -> None:
        if self._expires_at is not None and self._expires_at - _now() < _EXPIRES_SOON:
            _log.warning(
                "certificate.expires_soon",
                extra={"file": self._file, "expires": self._expires_at.isoformat()},
            )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
