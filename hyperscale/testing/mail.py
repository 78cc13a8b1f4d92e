"""Mails: a mapping with the parts of a mail becomes the bytes that SMTP carries."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate, parseaddr
from typing import Any

from hyperscale.errors import InputError
from hyperscale.testing.arguments import FileContent

_PARTS = ("from", "to", "cc", "bcc", "subject", "text", "html", "headers", "attachments")
_HINT = f"parts of a mail: {', '.join(_PARTS)}"


@dataclass(frozen=True, slots=True)
class AssembledMail:
    """A mail as it travels. Each sending adds a Message-ID of its own in front of `content`."""

    sender: str
    recipients: tuple[str, ...]
    content: bytes


def assemble(parts: Mapping[str, Any]) -> AssembledMail:
    """Return the mail that these parts make. Raises InputError."""
    for name in parts:
        if name not in _PARTS:
            raise InputError(f"a mail has no part {name!r}", hint=_HINT)
    sender = _addresses(parts, "from")
    receivers = {name: _addresses(parts, name) for name in ("to", "cc", "bcc")}
    recipients = tuple(address for each in receivers.values() for address in each)
    if len(sender) != 1:
        raise InputError(f"a mail has one address in 'from', not {len(sender)}", hint=_HINT)
    if not recipients:
        raise InputError("a mail needs an address in 'to', 'cc' or 'bcc'", hint=_HINT)
    message = EmailMessage(policy=SMTP)
    try:
        message["From"] = _listed(parts["from"])
        for name in ("to", "cc"):  # not bcc: nobody may see those
            if parts.get(name):
                message[name.title()] = _listed(parts[name])
        message["Subject"] = str(parts.get("subject", ""))
        message["Date"] = formatdate()
        for name, value in dict(parts.get("headers", {})).items():
            message[name] = str(value)
        message.set_content(str(parts.get("text", "")))
        if parts.get("html") is not None:
            message.add_alternative(str(parts["html"]), subtype="html")
        _attach(message, parts.get("attachments", {}))
        content = message.as_bytes()
    except (ValueError, TypeError) as error:
        raise InputError(f"a mail cannot be assembled: {error}", hint=_HINT) from error
    return AssembledMail(sender[0], recipients, content)


def _attach(message: EmailMessage, attachments: Mapping[str, Any]) -> None:
    if not isinstance(attachments, Mapping):
        raise InputError(
            f"'attachments' of a mail is a {type(attachments).__name__}",
            hint='write {"invoice.pdf": content}',
        )
    for name, value in attachments.items():
        content = value.encode() if isinstance(value, str) else value
        if not isinstance(content, bytes):
            raise InputError(
                f"the attachment {name!r} is a {type(value).__name__}, neither text nor bytes"
            )
        kind = FileContent.of(name, b"").content_type
        main, _, sub = kind.partition("/")
        message.add_attachment(content, maintype=main, subtype=sub, filename=name)


def _addresses(parts: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return the bare addresses of a part: `Ada <ada@x.test>` is `ada@x.test`."""
    found = []
    for text in _each(parts.get(name)):
        address = parseaddr(text)[1] if isinstance(text, str) else ""
        if "@" not in address or not address.isascii():
            raise InputError(f"{text!r} in {name!r} of a mail is not an address", hint=_HINT)
        found.append(address)
    return tuple(found)


def _each(value: object) -> Iterable[object]:
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


def _listed(value: object) -> str:
    return ", ".join(str(each) for each in _each(value))
