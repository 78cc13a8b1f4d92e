"""Kinds of `Auth` that need more than a fixed header: each says who the caller is, as data.

    auth: Auth = OAuth2("https://id.test/token", client_id="load", client_secret=SECRET)

`hyperscale.clients.auth` makes the headers of a request from them.
"""

from dataclasses import dataclass, field

from hyperscale.errors import InputError
from hyperscale.testing.arguments import AuthScheme, split_url


@dataclass(frozen=True, eq=False)
class OAuth2(AuthScheme):
    """A bearer token of an OAuth 2 server: by client credentials, or by a refresh token.

    A process fetches one token for all its users when it is first needed, and another before it
    expires or when a request is answered with 401.
    """

    token_url: str
    client_id: str
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    audience: str = ""
    refresh_token: str = field(default="", repr=False)
    in_body: bool = False  # send id and secret as form fields, not as a Basic header

    def __post_init__(self) -> None:
        split_url(self.token_url)
        if not self.client_id:
            raise InputError("OAuth2: client_id is empty")


@dataclass(frozen=True, eq=False)
class SigV4(AuthScheme):
    """AWS Signature Version 4: `SigV4(key, secret, region="eu-west-1", service="execute-api")`."""

    access_key: str
    secret_key: str = field(repr=False)
    region: str = "us-east-1"
    service: str = "execute-api"
    session_token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key", "region", "service"):
            if not getattr(self, name):
                raise InputError(f"SigV4: {name} is empty")


@dataclass(frozen=True, eq=False)
class Digest(AuthScheme):
    """HTTP Digest (RFC 7616) with MD5 or SHA-256. A user's first request gets the challenge."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, eq=False)
class Bearer(AuthScheme):
    """A bearer token that another step or workflow put into the context: `Bearer("token")` sends
    `self.context["token"]`."""

    key: str
