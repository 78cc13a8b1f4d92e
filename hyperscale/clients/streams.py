"""Calls on streams through the native engine: what the clients of streams have in common.

A stream is opened by the first call of a virtual user that needs it, and stays open for the next
ones; `connections="per-request"` opens one for every call.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar, cast

from hyperscale._native import Template
from hyperscale.clients.bodies import encode_json
from hyperscale.clients.http import EngineCalls
from hyperscale.clients.library import Reply
from hyperscale.errors import InputError
from hyperscale.testing.streams import MessageTimes

_R = TypeVar("_R", bound=MessageTimes)

_MESSAGE_KEPT_BYTES_MAX = 1024


class StreamClient(Generic[_R]):
    """Base of the clients of streams of one virtual user."""

    __slots__ = ("_calls",)
    response_type: ClassVar[type[Any]]
    schemes: ClassVar[tuple[str, ...]]  # of its URLs

    def __init__(self, calls: EngineCalls) -> None:
        self._calls = calls

    def _call(
        self,
        verb: str,
        url: str,
        call: Mapping[str, Any],
        message: str | bytes | None = None,
        **stream: Any,
    ) -> Reply[_R]:
        """Make a call; `call` has its options, `stream` what it asks of its stream."""
        template = self._template(verb, url, call, message, stream)
        # Its response is of `response_type`, which the template was made with.
        return cast(Reply[_R], self._calls.send_template(template))

    def _template(
        self,
        verb: str,
        url: str,
        call: Mapping[str, Any],
        message: str | bytes | None,
        stream: Mapping[str, Any],
    ) -> Template:
        book = self._calls.book
        options = {**call, **stream}
        key: tuple[object, ...] | None = (verb, url, *options.items())
        is_kept = message is None or len(message) <= _MESSAGE_KEPT_BYTES_MAX
        try:
            found = book.kept((*key, message)) if key is not None and is_kept else None
        except TypeError:  # an option that cannot be looked up, such as a dict of headers
            key = found = None
        if found is not None:
            return found
        bare = None if key is None else book.kept(key)
        if bare is None:
            scheme, mark, _ = url.partition("://")
            if not mark or scheme.lower() not in self.schemes:
                known = " or ".join(self.schemes)
                hint = f"write {self.schemes[0]}://host:port"
                raise InputError(f"{verb.lower()} {url}: the scheme is not {known}", hint=hint)
            bare = book.stream_template(verb, url, call, self.response_type, stream)
            if key is not None:
                book.keep(key, bare)
        if message is None:
            return bare
        payload = message.encode() if isinstance(message, str) else bytes(message)
        made = bare.with_message(payload, isinstance(message, str))
        if key is not None and is_kept:
            book.keep((*key, message), made)
        return made


def message_of(where: str, text: object, data: object, json: object) -> str | bytes:
    """Return the one message that was given. Raises InputError if none or several were."""
    given = [each for each in (text, data, json) if each is not None]
    if len(given) != 1:
        what = "no message is given" if not given else "several messages are given"
        raise InputError(f"{where}: {what}", hint='give one of text="…", data=b"…" and json={…}')
    if json is not None:
        return encode_json(json).content.decode()
    if text is not None and not isinstance(text, str):
        raise InputError(f"{where}: text is a {type(text).__name__}, not a str")
    if data is not None and not isinstance(data, bytes | bytearray | memoryview):
        raise InputError(f"{where}: data is a {type(data).__name__}, not bytes", hint="or use text")
    if text is not None:
        return str(text)
    return bytes(data)  # type: ignore[arg-type]  # one of the three
