"""`self.client.smtp` beyond the contract: parts of mails, refusals, TLS."""

import mailbox
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any, cast

import pytest

from hyperscale.clients import ClientError
from hyperscale.errors import InputError
from hyperscale.testing.arguments import EmailValue
from hyperscale.testing.mail import assemble
from tests.clients.test_contract import opened, play
from tests.lab.command import run
from tests.services.fixtures import GetService
from tests.services.mail import MailServer

pytestmark = pytest.mark.service("smtp")

MAIL = {
    "from": "Ada <ada@x.test>",
    "to": ["Bob <bob@x.test>", "eve@x.test"],
    "bcc": "log@x.test",
    "subject": "Grüße",
    "text": "plain\n.\nend",
    "html": "<b>rich</b>",
    "headers": {"X-Run": "7"},
    "attachments": {"a.pdf": b"%PDF", "b.txt": "text"},
}


def test_a_mail_arrives_with_all_its_parts(service: GetService) -> None:
    server = cast(MailServer, service("smtp"))

    async def main() -> None:
        async with opened() as (hub, _):
            smtp = hub.client(0).smtp
            sent = await smtp.send(server.client_url, EmailValue.wrap(MAIL))
            assert sent.refused == {}
            assert sent.bytes_sent > 500
            await smtp.send(server.client_url, EmailValue.wrap(MAIL))

    play(main)
    found = [
        message_from_bytes(mail.as_bytes(), policy=policy.default)
        for mail in mailbox.Maildir(server.spool)
        if mail["X-Run"] == "7"
    ]
    assert len({mail["Message-ID"] for mail in found}) == len(found) == 2
    mail: Any = found[0]
    assert mail["Subject"] == "Grüße"
    assert mail["To"] == "Bob <bob@x.test>, eve@x.test"
    assert mail["Bcc"] is None
    assert mail["X-RcptTo"] == "bob@x.test, eve@x.test, log@x.test"
    assert mail.get_body(("plain",)).get_content().splitlines() == ["plain", ".", "end"]
    assert mail.get_body(("html",)).get_content().strip() == "<b>rich</b>"
    names = {part.get_filename(): part.get_content() for part in mail.iter_attachments()}
    assert names == {"a.pdf": b"%PDF", "b.txt": "text"}


def test_refused_recipients_are_named_and_the_connection_is_kept(service: GetService) -> None:
    url = service("smtp").client_url

    async def main() -> None:
        async with opened() as (hub, _):
            smtp = hub.client(0).smtp
            both = {**MAIL, "to": ["nobody@x.test", "bob@x.test"], "bcc": None}
            assert (await smtp.send(url, both)).refused == {"nobody@x.test": 550}
            with pytest.raises(ClientError) as refused:
                await smtp.send(url, {**MAIL, "to": "nobody@x.test", "bcc": None})
            assert (refused.value.error, refused.value.code) == ("server", "550")
            after = await smtp.send(url, MAIL)
            assert after.connect_ns is None

    play(main)


def test_a_server_without_tls_fails_a_test_that_requires_it(service: GetService) -> None:
    url = service("smtp").client_url

    async def main() -> None:
        async with opened() as (hub, _):
            with pytest.raises(ClientError) as refused:
                await hub.client(0).smtp.send(f"{url}?tls=required", MAIL)
            assert refused.value.error == "protocol"
            with pytest.raises(InputError, match="tls='maybe' is unknown"):
                await hub.client(0).smtp.send(f"{url}?tls=maybe", MAIL)

    play(main)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"form": "x"}, "no part 'form'"),
        ({"to": [], "bcc": None}, "needs an address"),
        ({"to": "a b"}, "not an address"),
        ({"from": None}, "one address in 'from', not 0"),
        ({"attachments": ["a.pdf"]}, "'attachments' of a mail is a list"),
        ({"attachments": {"a": 7}}, "attachment 'a' is a int"),
        ({"subject": "a\nBcc: b@x.test"}, "cannot be assembled"),
    ],
)
def test_a_wrong_mail_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        assemble({**MAIL, **change})
    assert said in refused.value.message


def test_a_wrong_mail_of_a_step_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "from hyperscale import Workflow, step\n"
        "from hyperscale.testing import Email, SMTPResponse\n\n\n"
        "class Mails(Workflow):\n"
        "    @step()\n"
        "    async def mail(self, mail: Email = {'from': 'a@x.test'}) -> SMTPResponse:\n"
        "        return await self.client.smtp.send('smtp://127.0.0.1', mail)\n"
    )
    done = run("run", "wrong.py", cwd=tmp_path)
    assert done.code == 2, done.stdout + done.stderr
    assert "Mails.mail: mail: a mail needs an address" in done.stderr
