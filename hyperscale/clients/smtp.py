"""`self.client.smtp`: mail through aiosmtplib."""

import uuid
from collections.abc import Mapping
from itertools import count
from typing import Any

import aiosmtplib

from hyperscale.clients.connections import SHARED_MAX, LibraryConnection
from hyperscale.clients.library import (
    Failure,
    LibraryClient,
    Reply,
    classify_os_error,
    root_cause,
)
from hyperscale.clients.service_tls import tls_context, wanted_tls
from hyperscale.testing.mail import AssembledMail, assemble
from hyperscale.testing.protocols import ServiceUrl
from hyperscale.testing.responses import SMTPResponse

_CLOSING = 421  # the server ends the connection after this reply

# Part of every Message-ID, so that no two processes make the same one.
_PROCESS = uuid.uuid4().hex[:16]
_numbers = count(1)


class SMTPConnection(LibraryConnection):
    """A connection of aiosmtplib, logged in."""

    __slots__ = ("link",)

    def __init__(self, link: aiosmtplib.SMTP) -> None:
        self.link = link

    @property
    def is_usable(self) -> bool:
        return self.link.is_connected

    async def close(self) -> None:
        if self.link.is_connected:
            await self.link.quit()

    def abort(self) -> bool:
        transport = self.link.transport
        if transport is not None:
            transport.abort()  # type: ignore[attr-defined]  # of every transport that writes
        self.link.close()
        return True


# --- operations on a connection ------------------------------------------------------------


async def _send(connection: SMTPConnection, mail: AssembledMail, content: bytes) -> Any:
    return await connection.link.sendmail(mail.sender, mail.recipients, content)


async def _ping(connection: SMTPConnection) -> Any:
    await connection.link.noop()
    greeting = connection.link.last_ehlo_response
    first = str(greeting.message).partition("\n")[0] if greeting is not None else ""
    return {}, f"SMTP server {first}".strip()


def _pinged(value: Any, *times: Any) -> SMTPResponse:
    return SMTPResponse(value[1], *times)


class SMTPClient(LibraryClient):
    """The mail client of one virtual user.

    The URL is `smtp://user:password@host:25`, or `smtps://` with TLS from the start;
    `smtp://…?tls=required` encrypts with STARTTLS, `?tls=verify` also checks the certificate.
    """

    __slots__ = ()
    protocol = "smtp"

    def send(
        self,
        url: str,
        email: Mapping[str, Any],
        *,
        timeout: str | float | None = None,
        pool: int = SHARED_MAX,
    ) -> Reply[SMTPResponse]:
        """Send a mail and wait until the server has taken it.

        `email` has the parts `from`, `to`, `cc`, `bcc`, `subject`, `text`, `html`, `headers`,
        `attachments`. An `Email` parameter of a step is assembled once, before the run; every
        sending gets a Message-ID of its own.
        """
        mail = getattr(email, "optimized", None)
        if not isinstance(mail, AssembledMail):
            mail = assemble(email)
        content = b"Message-ID: <%d.%s@hyperscale>\r\n%s" % (
            next(_numbers),
            _PROCESS.encode(),
            mail.content,
        )

        def respond(value: Any, *times: Any) -> SMTPResponse:
            response = SMTPResponse(value[1], *times)
            response.refused = {who: reply.code for who, reply in value[0].items()}
            response.bytes_sent = len(content)
            return response

        return self._call(self._place(url, pool=pool), _send, (mail, content), respond, timeout)

    def ping(self, url: str, *, timeout: str | float | None = None) -> Reply[SMTPResponse]:
        """Send NOOP; the value is the greeting of the server."""
        return self._call(self._place(url), _ping, (), _pinged, timeout)

    def _describe(self, operation: Any, args: tuple[Any, ...]) -> str:
        name = operation.__name__.strip("_")
        return f"{name} {len(args[1]):,} bytes" if args else name

    async def _connect(self, url: ServiceUrl, options: Any) -> LibraryConnection:
        upgrade = wanted_tls(url)
        link = aiosmtplib.SMTP(
            hostname=url.host,
            port=url.port,
            timeout=None,  # the call has a deadline
            use_tls=url.scheme == "smtps",
            start_tls=upgrade is not None,
            tls_context=upgrade or tls_context(verify=True),
        )
        connection = SMTPConnection(link)
        try:
            await link.connect()
            if url.user is not None:
                await link.login(url.user, url.password or "")
        except BaseException:
            connection.abort()
            raise
        return connection

    def _classify(self, error: BaseException) -> Failure | None:
        match error:
            case aiosmtplib.SMTPAuthenticationError():
                return Failure("auth", f"{error.code} {error.message}", str(error.code))
            case aiosmtplib.SMTPTimeoutError():
                return Failure("timeout", str(error))
            case aiosmtplib.SMTPConnectResponseError():
                return Failure("connect", f"{error.code} {error.message}", str(error.code))
            case aiosmtplib.SMTPConnectError():
                return classify_os_error(root_cause(error), is_connecting=True)
            case aiosmtplib.SMTPServerDisconnected():
                return Failure("reset", str(error))
            case aiosmtplib.SMTPRecipientsRefused(recipients=[first, *_]):
                return self._classify(first)
            case aiosmtplib.SMTPResponseException(code=code):
                kind = "reset" if code == _CLOSING or code < 0 else "server"
                return Failure(kind, f"{code} {error.message}", str(code))
            case aiosmtplib.SMTPException():
                return Failure("protocol", str(error))
        return None


CLIENT = SMTPClient
