"""A mail server: aiosmtpd with a login, which keeps every mail in a Maildir."""

import asyncio
import mailbox
import sys
from pathlib import Path

from tests.services.base import PASSWORD, QUOTED, Service


class MailServer(Service):
    """A server that takes mail for everybody but `nobody@…`."""

    name = "smtp"

    @property
    def url(self) -> str:
        return f"smtp://load:{QUOTED}@127.0.0.1:{self.port}"

    @property
    def spool(self) -> Path:
        return self.directory / "mail"

    def install(self) -> None:
        mailbox.Maildir(self.spool)

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.services.mail", str(self.port), str(self.spool)]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(Path(__file__).resolve().parent.parent.parent)}

    def mails(self) -> int:
        """Return how many mails the server has taken."""
        return sum(1 for _ in (self.spool / "new").iterdir())


def main() -> None:
    import warnings  # noqa: PLC0415 - only the server process needs it

    from aiosmtpd.handlers import Mailbox  # noqa: PLC0415
    from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session  # noqa: PLC0415

    warnings.simplefilter("ignore")  # a login without TLS

    class Spool(Mailbox):
        async def handle_RCPT(
            self, server: SMTP, session: Session, envelope: Envelope, address: str, options: object
        ) -> str:
            if address.startswith("nobody@"):
                return "550 no such user"
            envelope.rcpt_tos.append(address)
            return "250 OK"

    def log_in(
        server: SMTP, session: Session, envelope: Envelope, mechanism: str, given: object
    ) -> AuthResult:
        assert isinstance(given, LoginPassword)
        is_known = (given.login, given.password) == (b"load", PASSWORD.encode())
        return AuthResult(success=is_known, handled=False)

    async def serve() -> None:
        handler = Spool(sys.argv[2])
        server = await asyncio.get_running_loop().create_server(
            lambda: SMTP(
                handler,
                authenticator=log_in,
                auth_required=True,
                auth_require_tls=False,
                hostname="mail.test",
            ),
            "127.0.0.1",
            int(sys.argv[1]),
        )
        await server.serve_forever()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
