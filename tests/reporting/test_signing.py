"""Signatures and tokens of clouds, compared with what their own libraries make of them."""

import asyncio
import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from hyperscale.reporting.aws import AwsSettings, sign
from hyperscale.reporting.google import AccessTokens, GoogleSettings
from hyperscale.reporting.http import HttpRequest
from tests.services.recording import Call, Recording, Reply

NOW = datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize("token", ["", "a session token"])
@pytest.mark.parametrize(
    ("service", "url"),
    [
        ("s3", "https://load.s3.eu-west-1.amazonaws.com/hyperscale/a%20b/results.json"),
        ("monitoring", "https://monitoring.eu-west-1.amazonaws.com/"),
        ("lambda", "https://lambda.eu-west-1.amazonaws.com/2015-03-31/functions/a%3Ab/invocations"),
        ("timestream", "http://127.0.0.1:5000/?b=2&a=x%20y"),
    ],
)
def test_a_signature_is_that_of_botocore(
    service: str, url: str, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = AwsSettings(
        region="eu-west-1", access_key_id="AKID", secret_access_key="s3cret", session_token=token
    )
    request = HttpRequest("POST", url, {"Content-Type": "application/json"}, b'{"a": 1}')
    signed = sign(request, settings, service=service, now=NOW)
    theirs = botocore.awsrequest.AWSRequest(
        "POST", url, headers=dict(request.headers), data=request.body
    )
    # botocore leaves this header out for services that do not demand it.
    theirs.headers["X-Amz-Content-SHA256"] = signed.headers["X-Amz-Content-Sha256"]
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_, **__: NOW, raising=False)
    kind = botocore.auth.S3SigV4Auth if service == "s3" else botocore.auth.SigV4Auth
    credentials = botocore.credentials.Credentials("AKID", "s3cret", token or None)
    kind(credentials, service, "eu-west-1").add_auth(theirs)
    assert theirs.headers["X-Amz-Date"] == signed.headers["X-Amz-Date"]
    assert theirs.headers["Authorization"] == signed.headers["Authorization"]


class TokenServer(Recording):
    """Grants a token to those who prove that they hold the key of the service account."""

    key = rsa.generate_private_key(65537, 2048)

    def answer(self, call: Call) -> Reply:
        fields = parse_qs(call.body.decode())
        assert fields["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
        head, claims, signature = fields["assertion"][0].split(".")
        self.key.public_key().verify(
            decoded(signature), f"{head}.{claims}".encode(), padding.PKCS1v15(), hashes.SHA256()
        )
        assert json.loads(decoded(head)) == {"alg": "RS256", "typ": "JWT"}
        claimed = json.loads(decoded(claims))
        assert claimed["iss"] == "load@shop.iam.gserviceaccount.com"
        assert claimed["exp"] - claimed["iat"] == 3600
        return 200, {}, b'{"access_token": "granted", "expires_in": 3600}'


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def test_a_service_account_gets_one_token_and_keeps_it(tmp_path: Path) -> None:
    server = TokenServer(tmp_path / "server")
    server.start_first()
    try:
        private = TokenServer.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        account = {
            "client_email": "load@shop.iam.gserviceaccount.com",
            "private_key": private.decode(),
            "token_uri": f"{server.url}/token",
        }
        (tmp_path / "key.json").write_text(json.dumps(account))
        tokens = AccessTokens(GoogleSettings(key_file=str(tmp_path / "key.json")))

        async def twice() -> list[dict[str, str]]:
            return [await tokens.header(), await tokens.header()]

        assert asyncio.run(twice()) == [{"Authorization": "Bearer granted"}] * 2
        assert len(server.accepted) == 1
    finally:
        server.stop()
