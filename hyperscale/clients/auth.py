"""Makes the headers that `AuthScheme` credentials need, and keeps what servers gave for them.

One `Authorizer` serves all virtual users of a process: tokens and challenges are fetched once.
"""

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from hyperscale.clients.library import ClientError
from hyperscale.errors import InputError
from hyperscale.testing.arguments import AuthScheme, authorization
from hyperscale.testing.auth import Bearer, Digest, OAuth2, SigV4
from hyperscale.testing.http import HTTPResponse

_EARLY_S = 30.0
"""A token is replaced this long before it expires, or after half its time if that is shorter."""

Headers = Mapping[str, str]
SendWith = Callable[[Headers], Awaitable[HTTPResponse]]
"""Sends a request with further headers."""
Fetch = Callable[[str, Mapping[str, str], Headers], Awaitable[HTTPResponse]]
"""Posts a form."""


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """What a signature or a digest covers."""

    method: str
    url: str  # with its query
    body: bytes


@dataclass(slots=True)
class _Token:
    value: str
    replace_at_s: float
    refresh: str


class Authorizer:
    """The credentials of one process."""

    def __init__(self) -> None:
        self._tokens: dict[OAuth2, _Token] = {}
        self._fetching: dict[OAuth2, asyncio.Lock] = {}
        self._challenges: dict[tuple[Digest, str], Challenge] = {}

    async def send(
        self,
        scheme: AuthScheme,
        request: SignedRequest,
        send: SendWith,
        fetch: Fetch,
        context: Mapping[str, Any],
    ) -> HTTPResponse:
        """Send a request with the headers of its credentials; once more if that may help.

        `context` is that of the virtual user.
        """
        match scheme:
            case SigV4():
                return await send(sign(scheme, request, datetime.now(UTC)))
            case Bearer():
                if scheme.key not in context:
                    raise InputError(
                        f"Bearer: the context has no {scheme.key!r}",
                        hint="a setup hook or an earlier workflow has to provide it",
                    )
                return await send({"Authorization": authorization(context[scheme.key])})
            case OAuth2():
                return await self._with_token(scheme, send, fetch)
            case Digest():
                return await self._with_digest(scheme, request, send)
        raise InputError(f"a {type(scheme).__name__} is not a credential")

    async def _with_token(self, scheme: OAuth2, send: SendWith, fetch: Fetch) -> HTTPResponse:
        token = await self._token(scheme, fetch, instead_of=None)
        response = await send({"Authorization": f"Bearer {token.value}"})
        if response.status != 401:
            return response
        token = await self._token(scheme, fetch, instead_of=token)
        return await send({"Authorization": f"Bearer {token.value}"})

    async def _token(self, scheme: OAuth2, fetch: Fetch, *, instead_of: _Token | None) -> _Token:
        """Return a token that is valid; `instead_of` is one that the server refused."""

        def known() -> _Token | None:
            token = self._tokens.get(scheme)
            if token is None or token is instead_of or time.monotonic() >= token.replace_at_s:
                return None
            return token

        if (token := known()) is not None:
            return token
        async with self._fetching.setdefault(scheme, asyncio.Lock()):
            if (token := known()) is None:  # no other user fetched it meanwhile
                token = self._tokens[scheme] = await self._fetch_token(scheme, fetch)
        return token

    async def _fetch_token(self, scheme: OAuth2, fetch: Fetch) -> _Token:
        old = self._tokens.get(scheme)
        refresh = (old.refresh if old is not None else "") or scheme.refresh_token
        form = {"grant_type": "refresh_token", "refresh_token": refresh}
        if not refresh:
            form = {"grant_type": "client_credentials"}
        for name in ("scope", "audience"):
            if value := getattr(scheme, name):
                form[name] = value
        headers = {}
        if scheme.in_body:
            form |= {"client_id": scheme.client_id, "client_secret": scheme.client_secret}
        else:
            # RFC 6749 §2.3.1: both are form-encoded before they become a Basic credential.
            pair = (quote(scheme.client_id, safe=""), quote(scheme.client_secret, safe=""))
            headers["Authorization"] = authorization(pair)
        response = await fetch(scheme.token_url, form, headers)
        try:
            reply = response.json()
        except ValueError:
            reply = None
        reply = reply if isinstance(reply, dict) else {}
        if response.status >= 400 or not isinstance(reply.get("access_token"), str):
            why = reply.get("error_description") or reply.get("error") or "no access_token"
            detail = f"no token: status {response.status}, {why}"
            raise ClientError("auth", detail, request=f"POST {scheme.token_url}")
        expires = reply.get("expires_in")
        valid_s = float(expires) if isinstance(expires, int | float) else 3600.0
        replace_at_s = time.monotonic() + valid_s - min(_EARLY_S, valid_s / 2)
        return _Token(reply["access_token"], replace_at_s, str(reply.get("refresh_token") or ""))

    async def _with_digest(
        self, scheme: Digest, request: SignedRequest, send: SendWith
    ) -> HTTPResponse:
        place = (scheme, urlsplit(request.url).netloc)
        known = self._challenges.get(place)
        headers = {} if known is None else {"Authorization": known.answer(scheme, request)}
        response = await send(headers)
        if response.status != 401:
            return response
        challenge = Challenge.read(response.headers.get_list("www-authenticate"))
        if challenge is None:
            return response
        self._challenges[place] = challenge
        return await send({"Authorization": challenge.answer(scheme, request)})


# --- Digest ------------------------------------------------------------------------------

_PAIR = re.compile(r'([A-Za-z-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,]+))')
_HASHES = {"md5": hashlib.md5, "sha-256": hashlib.sha256}


@dataclass(slots=True)
class Challenge:
    """What a server asked of a digest (RFC 7616 §3.3)."""

    realm: str
    nonce: str
    algorithm: str  # as the server wrote it
    opaque: str | None
    has_qop: bool
    count: int = 0  # answers with this nonce

    @classmethod
    def read(cls, values: list[str]) -> "Challenge | None":
        """Return the first challenge that can be answered."""
        for value in values:
            scheme, _, rest = value.strip().partition(" ")
            if scheme.lower() != "digest":
                continue
            found = {name.lower(): quoted or bare for name, quoted, bare in _PAIR.findall(rest)}
            algorithm = found.get("algorithm", "MD5")
            qops = [each.strip() for each in found.get("qop", "").split(",") if each.strip()]
            known = algorithm.lower().removesuffix("-sess") in _HASHES
            if known and "nonce" in found and (not qops or "auth" in qops):
                return cls(
                    found.get("realm", ""),
                    found["nonce"],
                    algorithm,
                    found.get("opaque"),
                    has_qop=bool(qops),
                )
        return None

    def answer(self, scheme: Digest, request: SignedRequest, cnonce: str | None = None) -> str:
        """Return the value of the `Authorization` header."""
        self.count += 1
        cnonce = cnonce or secrets.token_hex(8)
        name = self.algorithm.lower()
        made = _HASHES[name.removesuffix("-sess")]

        def digest(*parts: str) -> str:
            return made(":".join(parts).encode()).hexdigest()

        url = urlsplit(request.url)
        uri = (url.path or "/") + (f"?{url.query}" if url.query else "")
        first = digest(scheme.user, self.realm, scheme.password)
        if name.endswith("-sess"):
            first = digest(first, self.nonce, cnonce)
        second = digest(request.method, uri)
        count = f"{self.count:08x}"
        between = (count, cnonce, "auth") if self.has_qop else ()
        fields = {
            "username": scheme.user,
            "realm": self.realm,
            "nonce": self.nonce,
            "uri": uri,
            "response": digest(first, self.nonce, *between, second),
        }
        if self.opaque is not None:
            fields["opaque"] = self.opaque
        text = ", ".join(f'{name}="{_escaped(value)}"' for name, value in fields.items())
        text += f", algorithm={self.algorithm}"
        if self.has_qop:
            text += f', qop=auth, nc={count}, cnonce="{cnonce}"'
        return f"Digest {text}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


# --- AWS Signature Version 4 ---------------------------------------------------------------


def sign(scheme: SigV4, request: SignedRequest, at: datetime) -> dict[str, str]:
    """Return the headers of a signed request."""
    url = urlsplit(request.url)
    stamp = at.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{stamp[:8]}/{scheme.region}/{scheme.service}/aws4_request"
    payload = hashlib.sha256(request.body).hexdigest()
    default = {"http": 80, "https": 443}.get(url.scheme)
    host = url.hostname or ""
    host = f"[{host}]" if ":" in host else host
    if url.port is not None and url.port != default:
        host = f"{host}:{url.port}"
    headers = {"X-Amz-Date": stamp}
    if scheme.service == "s3":
        headers["X-Amz-Content-Sha256"] = payload
    if scheme.session_token:
        headers["X-Amz-Security-Token"] = scheme.session_token
    signed = {"host": host, **{name.lower(): value for name, value in headers.items()}}
    names = ";".join(sorted(signed))
    path = url.path or "/"
    # Every service but S3 encodes the path of the URL once more.
    canonical = "\n".join(
        (
            request.method,
            path if scheme.service == "s3" else quote(path, safe="/-_.~"),
            _canonical_query(url.query),
            *(f"{name}:{signed[name].strip()}" for name in sorted(signed)),
            "",
            names,
            payload,
        )
    )
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{scheme.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
    signature = hmac.new(key, text.encode(), "sha256").hexdigest()
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={scheme.access_key}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return headers


def _canonical_query(query: str) -> str:
    pairs = [
        (quote(name, safe="-_.~"), quote(value, safe="-_.~"))
        for name, value in parse_qsl(query, keep_blank_values=True)
    ]
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))
