"""Credentials whose header depends on the request, on a reply or on the time."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.clients import ClientError
from hyperscale.clients.auth import Challenge, SignedRequest, sign
from hyperscale.errors import InputError
from hyperscale.testing import Bearer, Digest, HTTPResponse, OAuth2, SigV4
from tests.conftest import RunningTarget
from tests.lab.asgi import serving
from tests.lab.clients import Lab, in_lab

# --- AWS Signature Version 4: botocore signs the same ------------------------------------------

paths = st.lists(st.sampled_from(["a", "b c", "ü", "x+y", "1~2", "%2F"]), max_size=3)
queries = st.lists(st.tuples(st.sampled_from("abZ-_"), st.text("xy &=+/ü", max_size=4)), max_size=4)


@given(
    method=st.sampled_from(["GET", "POST"]),
    path=paths,
    query=queries,
    body=st.binary(max_size=20),
    service=st.sampled_from(["execute-api", "s3", "dynamodb"]),
    token=st.sampled_from(["", "session"]),
)
def test_a_signature_is_that_of_botocore(
    method: str,
    path: list[str],
    query: list[tuple[str, str]],
    body: bytes,
    service: str,
    token: str,
) -> None:
    url = "https://api.test:8443/" + "/".join(quote(part, safe="~%") for part in path)
    url += "?" + urlencode(query, quote_via=quote) if query else ""
    at = datetime.now(UTC).replace(microsecond=0)
    scheme = SigV4("AKID", "secret", region="eu-west-1", service=service, session_token=token)
    ours = sign(scheme, SignedRequest(method, url, body), at)

    request = AWSRequest(method=method, url=url, data=body)
    kind = S3SigV4Auth if service == "s3" else SigV4Auth
    theirs = kind(Credentials("AKID", "secret", token or None), service, "eu-west-1")
    stamp = at.strftime("%Y%m%dT%H%M%SZ")
    request.context["timestamp"] = stamp
    if token:
        request.headers["X-Amz-Security-Token"] = token
    request.headers["X-Amz-Date"] = stamp
    if service == "s3":
        request.headers["X-Amz-Content-SHA256"] = theirs.payload(request)
    canonical = theirs.canonical_request(request)
    signature = theirs.signature(theirs.string_to_sign(request, canonical), request)
    assert ours["Authorization"].endswith(f"Signature={signature}"), canonical


def test_a_signed_request_arrives_with_its_query_and_body(target: RunningTarget) -> None:
    async def work(lab: Lab) -> HTTPResponse:
        scheme = SigV4("AKID", "secret", service="execute-api")
        url = f"{target.url}/echo"
        return await lab.http.post(url, params={"q": "a b"}, json={"n": 1}, auth=scheme)

    echoed = in_lab(work).json()
    headers = {name.lower(): value for name, value in echoed["headers"]}
    assert echoed["body"] == '{"n":1}'
    assert headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKID/")
    assert "x-amz-date" in headers


# --- Digest: the examples of RFC 7616 §3.9.1 ----------------------------------------------------

NONCE = "7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v"
CNONCE = "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ"


@pytest.mark.parametrize(
    ("algorithm", "response"),
    [
        ("MD5", "8ca523f5e9506fed4657c9700eebdbec"),
        ("SHA-256", "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"),
    ],
)
def test_a_digest_is_that_of_the_standard(algorithm: str, response: str) -> None:
    challenge = Challenge.read(
        [
            "Basic realm=x",
            f'Digest realm="http-auth@example.org", qop="auth, auth-int", algorithm={algorithm}, '
            f'nonce="{NONCE}", opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS"',
        ]
    )
    assert challenge is not None
    request = SignedRequest("GET", "http://www.example.org/dir/index.html", b"")
    answer = challenge.answer(Digest("Mufasa", "Circle of Life"), request, CNONCE)
    assert f'response="{response}"' in answer
    assert "nc=00000001" in answer
    assert 'uri="/dir/index.html"' in answer


def test_challenges_that_cannot_be_answered_are_left_alone() -> None:
    assert Challenge.read(["Basic realm=x", 'Digest realm="r", algorithm=MD5']) is None
    assert Challenge.read(['Digest realm="r", nonce="n", algorithm=SHA-512-256']) is None
    assert Challenge.read(['Digest realm="r", nonce="n", qop="auth-int"']) is None


# --- servers ------------------------------------------------------------------------------------


@dataclass
class Door:
    """A server that gives tokens at /token and asks for them, or for a digest, elsewhere."""

    port: int = 0
    valid: str = ""
    expires_s: int = 3600
    forms: list[dict[str, str]] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        given = headers.get("authorization", "")
        status, reply, extra = 200, {}, []
        if scope["path"] == "/token":
            form = {name: each[0] for name, each in parse_qs((await receive())["body"]).items()}
            fields = {name.decode(): value.decode() for name, value in form.items()}
            self.forms.append({**fields, "authorization": given})
            self.valid = f"token-{len(self.forms)}"
            reply = {"access_token": self.valid, "expires_in": self.expires_s}
            if fields["grant_type"] == "refresh_token":
                reply["refresh_token"] = "next"
            if given == "Basic YmFkOnM=":  # bad:s
                status, reply = 401, {"error": "invalid_client"}
        else:
            self.seen.append(given)
            challenged = scope["path"] == "/digest" and "response=" not in given
            if challenged:
                nonce = b'Digest realm="r", nonce="n1", qop="auth"'
                status, extra = 401, [(b"www-authenticate", nonce)]
            elif scope["path"] == "/token-only" and given != f"Bearer {self.valid}":
                status = 401
        await send({"type": "http.response.start", "status": status, "headers": extra})
        await send({"type": "http.response.body", "body": json.dumps(reply).encode()})


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door()
    with serving(door) as port:
        door.port = port
        yield door


def test_one_token_serves_all_users_until_it_is_refused(door: Door) -> None:
    async def work(lab: Lab) -> list[int]:
        scheme = OAuth2(f"{door.url}/token", "id", "s p", scope="read")
        url = f"{door.url}/token-only"
        users = [lab.user(number).get(url, auth=scheme) for number in range(5)]
        first = [each.status for each in await asyncio.gather(*users)]
        door.valid = "revoked"
        return [*first, (await lab.http.get(url, auth=scheme)).status]

    assert in_lab(work) == [200] * 6
    assert [form["grant_type"] for form in door.forms] == ["client_credentials"] * 2
    assert door.forms[0]["scope"] == "read"
    assert door.forms[0]["authorization"] == "Basic aWQ6cyUyMHA="  # id:s%20p
    assert door.seen[-2:] == ["Bearer token-1", "Bearer token-2"]


def test_a_refresh_token_is_used_and_replaced(door: Door) -> None:
    door.expires_s = 0

    async def work(lab: Lab) -> list[int]:
        scheme = OAuth2(f"{door.url}/token", "id", "s", refresh_token="first", in_body=True)
        url = f"{door.url}/token-only"
        return [(await lab.http.get(url, auth=scheme)).status for _ in range(2)]

    assert in_lab(work) == [200, 200]
    assert [form["refresh_token"] for form in door.forms] == ["first", "next"]
    assert door.forms[0]["client_secret"] == "s"
    assert not door.forms[0]["authorization"]


def test_a_token_that_is_not_given_fails_as_auth(door: Door) -> None:
    async def work(lab: Lab) -> None:
        await lab.http.get(f"{door.url}/token-only", auth=OAuth2(f"{door.url}/token", "bad", "s"))

    with pytest.raises(ClientError, match="invalid_client") as failed:
        in_lab(work)
    assert failed.value.error == "auth"


def test_a_digest_answers_the_challenge_once_and_keeps_it(door: Door) -> None:
    async def work(lab: Lab) -> list[int]:
        scheme = Digest("ann", "pw")
        return [
            (await lab.http.get(f"{door.url}/digest?q=1", auth=scheme)).status for _ in range(3)
        ]

    assert in_lab(work) == [200, 200, 200]
    assert len(door.seen) == 4
    assert not door.seen[0]
    assert [f"nc=0000000{n}" in door.seen[n] for n in (1, 2, 3)] == [True] * 3


def test_a_bearer_token_comes_from_the_context_of_the_user(door: Door) -> None:
    async def work(lab: Lab) -> None:
        user = SimpleNamespace(context={"token": "t1"})
        http = lab.hub.client(1, user).http
        await http.get(f"{door.url}/", auth=Bearer("token"))
        user.context["token"] = "t2"
        await http.get(f"{door.url}/", auth=Bearer("token"))
        await http.get(f"{door.url}/", auth=Bearer("missing"))

    with pytest.raises(InputError, match="no 'missing'"):
        in_lab(work)
    assert door.seen == ["Bearer t1", "Bearer t2"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: OAuth2("id.test/token", "id", "s"),
        lambda: OAuth2("http://id.test/token", ""),
        lambda: SigV4("", "secret"),
        lambda: SigV4("key", "secret", region=""),
    ],
)
def test_credentials_that_cannot_work_are_refused(make: Any) -> None:
    with pytest.raises(InputError):
        make()


def test_secrets_are_not_shown() -> None:
    shown = repr([OAuth2("http://id.test/", "id", "hush"), SigV4("k", "hush"), Digest("u", "hush")])
    assert "hush" not in shown
