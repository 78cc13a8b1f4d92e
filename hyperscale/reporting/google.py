"""Access tokens of Google Cloud: from a service account's key file, or given."""

import base64
import json
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import msgspec

from hyperscale.errors import InputError
from hyperscale.reporting.http import (
    HttpBackend,
    HttpRequest,
    HttpSettings,
    exchange,
    raise_for_status,
)
from hyperscale.reporting.settings import check_url, credential, from_environment

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_LIFETIME_S = 3600
_RENEW_BEFORE_S = 300


class GoogleSettings(HttpSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Credentials: the key file of a service account, or an access token. An `endpoint_url`
    of an emulator may need neither."""

    key_file: Annotated[str, from_environment("GOOGLE_APPLICATION_CREDENTIALS")] = ""
    access_token: Annotated[str, credential("GOOGLE_ACCESS_TOKEN")] = ""
    endpoint_url: str = ""  # empty: that of Google

    def check(self) -> None:
        if not self.key_file and not self.access_token and not self.endpoint_url:
            raise InputError(
                f"{type(self).__name__}: no credentials",
                hint="set key_file or GOOGLE_APPLICATION_CREDENTIALS to the key file of a service "
                "account",
            )
        if self.endpoint_url:
            check_url(self, self.endpoint_url, name="endpoint_url")


class _ServiceAccount(msgspec.Struct):
    client_email: str
    private_key: str
    token_uri: str = "https://oauth2.googleapis.com/token"  # noqa: S105  an address, not a secret


class AccessTokens:
    """Gets access tokens and keeps each until shortly before it expires."""

    def __init__(self, settings: GoogleSettings) -> None:
        self._settings = settings
        self._token = settings.access_token
        self._expires_s: float | None = None  # None: a token that was given

    async def header(self) -> dict[str, str]:
        """Return the header that authorizes a request; empty without credentials."""
        is_old = self._expires_s is not None and time.monotonic() > self._expires_s
        if self._settings.key_file and (not self._token or is_old):
            await self._renew()
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    async def _renew(self) -> None:
        account = _read_account(self._settings.key_file)
        assertion = signed_assertion(account.client_email, account.private_key, account.token_uri)
        body = urlencode(
            {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": assertion}
        ).encode()
        request = HttpRequest(
            "POST", account.token_uri, {"Content-Type": "application/x-www-form-urlencoded"}, body
        )
        reply = await exchange(request, ca_file=self._settings.ca_file)
        raise_for_status(request, reply)
        granted = json.loads(reply.body)
        self._token = str(granted["access_token"])
        self._expires_s = (
            time.monotonic() + granted.get("expires_in", _LIFETIME_S) - _RENEW_BEFORE_S
        )


def _read_account(path: str) -> _ServiceAccount:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=_ServiceAccount)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(
            f"key_file={path!r} is not the key of a service account: {error}"
        ) from error


def signed_assertion(email: str, private_key: str, audience: str) -> str:
    """Return the JSON web token that is exchanged for an access token (RFC 7523)."""
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415  20 ms
    from cryptography.hazmat.primitives.asymmetric import padding, rsa  # noqa: PLC0415  as above

    now_s = int(time.time())
    claims = {"iss": email, "scope": _SCOPE, "aud": audience, "iat": now_s}
    signing = ".".join(
        _base64url(json.dumps(part).encode())
        for part in ({"alg": "RS256", "typ": "JWT"}, {**claims, "exp": now_s + _LIFETIME_S})
    )
    key = serialization.load_pem_private_key(private_key.encode(), password=None)
    if not isinstance(key, rsa.RSAPrivateKey):
        raise InputError("the key of the service account is not an RSA key")
    signature = key.sign(signing.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{signing}.{_base64url(signature)}"


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class GoogleBackend(HttpBackend):
    """Authorizes every request with an access token."""

    def __init__(self, settings: GoogleSettings) -> None:
        super().__init__(settings)
        self._tokens = AccessTokens(settings)

    async def prepare(self, request: HttpRequest) -> HttpRequest:
        headers: dict[str, Any] = {**request.headers, **await self._tokens.header()}
        return HttpRequest(request.method, request.url, headers, request.body)
