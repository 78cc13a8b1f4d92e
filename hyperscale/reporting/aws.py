"""Requests to AWS: credentials in a configuration, and Signature Version 4."""

import hashlib
import hmac
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar
from urllib.parse import parse_qsl, quote, urlsplit

from hyperscale.reporting.http import HttpBackend, HttpRequest, HttpSettings
from hyperscale.reporting.settings import check_given, check_url, credential, from_environment


class AwsSettings(HttpSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Credentials and region. Keys of a role come with a session token."""

    SERVICE: ClassVar[str] = ""

    region: Annotated[str, from_environment("AWS_REGION")] = ""
    access_key_id: Annotated[str, from_environment("AWS_ACCESS_KEY_ID")] = ""
    secret_access_key: Annotated[str, credential("AWS_SECRET_ACCESS_KEY")] = ""
    session_token: Annotated[str, credential("AWS_SESSION_TOKEN")] = ""
    endpoint_url: Annotated[str, from_environment("AWS_ENDPOINT_URL")] = ""  # empty: that of AWS

    def check(self) -> None:
        check_given(self, "region", "access_key_id", "secret_access_key")
        if self.endpoint_url:
            check_url(self, self.endpoint_url, name="endpoint_url")

    @property
    def endpoint(self) -> str:
        """The URL of the service, without a slash at the end."""
        url = self.endpoint_url or f"https://{self.SERVICE}.{self.region}.amazonaws.com"
        return url.rstrip("/")


class AwsBackend(HttpBackend):
    """Signs every request when it is sent."""

    def __init__(
        self,
        settings: AwsSettings,
        *,
        service: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__(settings)
        self._aws = settings
        self._service = service
        self._now = now

    async def prepare(self, request: HttpRequest) -> HttpRequest:
        return sign(request, self._aws, service=self._service, now=self._now())


def json_request(settings: AwsSettings, target: str, version: str, body: bytes) -> HttpRequest:
    """Return a call of an AWS service that takes JSON."""
    headers = {"Content-Type": f"application/x-amz-json-{version}", "X-Amz-Target": target}
    return HttpRequest("POST", f"{settings.endpoint}/", headers, body)


def sign(
    request: HttpRequest, settings: AwsSettings, *, service: str, now: datetime
) -> HttpRequest:
    """Return the request with its signature (AWS Signature Version 4, in headers)."""
    parts = urlsplit(request.url)
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(request.body).hexdigest()
    added = {"X-Amz-Date": stamp, "X-Amz-Content-Sha256": digest}
    if settings.session_token:
        added["X-Amz-Security-Token"] = settings.session_token
    headers = {**request.headers, **added}
    signed = {"host": parts.netloc} | {
        name.lower(): " ".join(v.split()) for name, v in headers.items()
    }
    names = ";".join(sorted(signed))
    query = sorted(
        (quote(key, safe="-_.~"), quote(value, safe="-_.~"))
        for key, value in parse_qsl(parts.query, keep_blank_values=True)
    )
    # The path of a request to S3 is encoded once, of any other service twice.
    path = parts.path or "/"
    canonical = "\n".join(
        [
            request.method,
            path if service == "s3" else quote(path, safe="/-_.~"),
            "&".join(f"{key}={value}" for key, value in query),
            *(f"{name}:{signed[name]}" for name in sorted(signed)),
            "",
            names,
            digest,
        ]
    )
    scope = f"{stamp[:8]}/{settings.region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, _sha256(canonical)])
    key = f"AWS4{settings.secret_access_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    authorization = (
        f"AWS4-HMAC-SHA256 Credential={settings.access_key_id}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return HttpRequest(
        request.method, request.url, {**headers, "Authorization": authorization}, request.body
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def region_of_address(address: str) -> dict[str, Any]:
    """Read an address on the command line as the URL of an endpoint."""
    return {"endpoint_url": address} if "://" in address else {"region": address}
