"""Object stores: S3 (and what speaks its API) and Google Cloud Storage.

A result is stored as files under `prefix/RUN/`; the id of the run in the path makes sending it
again replace it.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Annotated, Any, ClassVar
from urllib.parse import quote, urlencode

from msgspec import Struct

from hyperscale.errors import InputError
from hyperscale.reporting.aws import AwsBackend, AwsSettings
from hyperscale.reporting.delivery import Batch, DeliverySink
from hyperscale.reporting.google import GoogleBackend, GoogleSettings
from hyperscale.reporting.http import HttpRequest
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.rows import run_id_of
from hyperscale.reporting.settings import check_given, from_environment

_FORMS = {  # form -> name of the object, module and function that encodes it, media type
    "json": ("results.json", "json_report", "encode_json", "application/json"),
    "csv": ("steps.csv", "csv_report", "encode_csv", "text/csv; charset=utf-8"),
    "xml": ("results.xml", "xml_report", "encode_xml", "application/xml"),
    "junit": ("junit.xml", "junit_report", "encode_junit", "application/xml"),
    "html": ("report.html", "html.page", "encode_html", "text/html; charset=utf-8"),
}


def objects_of(
    result: RunResult, prefix: str, forms: tuple[str, ...]
) -> Iterator[tuple[str, bytes, str]]:
    """Yield the path, content and media type of each object."""
    for form in forms:
        name, module, function, media_type = _FORMS[form]
        encode: Callable[[RunResult], bytes] = getattr(
            import_module(f"hyperscale.reporting.{module}"), function
        )
        parts = [prefix.strip("/"), run_id_of(result), name]
        yield "/".join(filter(None, parts)), encode(result), media_type


def _check_forms(config: Struct, forms: tuple[str, ...]) -> None:
    for form in forms:
        if form not in _FORMS:
            raise InputError(
                f"{type(config).__name__}: {form!r} is not a form of a result",
                hint=f"known are {', '.join(_FORMS)}",
            )


def _bucket_and_prefix(address: str) -> dict[str, Any]:
    bucket, _, prefix = address.rpartition("://")[2].partition("/")
    return {"bucket": bucket, "prefix": prefix} if prefix else {"bucket": bucket}


class S3Config(AwsSettings, frozen=True, kw_only=True):
    """A bucket, of AWS or, with `endpoint_url`, of any store with the same API."""

    SERVICE: ClassVar[str] = "s3"

    bucket: Annotated[str, from_environment("HYPERSCALE_S3_BUCKET")] = ""
    prefix: str = "hyperscale"
    forms: tuple[str, ...] = ("json",)

    def check(self) -> None:
        AwsSettings.check(self)
        check_given(self, "bucket")
        _check_forms(self, self.forms)

    @classmethod
    def of_address(cls, address: str) -> dict[str, Any]:
        return _bucket_and_prefix(address)

    def open_sink(self) -> DeliverySink:
        return DeliverySink(S3(self), self)


class S3(AwsBackend):
    noun = "files"

    def __init__(self, config: S3Config) -> None:
        super().__init__(config, service="s3")
        self._config = config
        # A store of one's own has no DNS name for each bucket.
        self._base = (
            f"{config.endpoint}/{config.bucket}"
            if config.endpoint_url
            else f"https://{config.bucket}.s3.{config.region}.amazonaws.com"
        )

    def batches(self, result: RunResult) -> Iterator[Batch[HttpRequest]]:
        for path, content, media_type in objects_of(
            result, self._config.prefix, self._config.forms
        ):
            url = f"{self._base}/{quote(path, safe='/-_.~')}"
            yield Batch(1, HttpRequest("PUT", url, {"Content-Type": media_type}, content))


class GCSConfig(GoogleSettings, frozen=True, kw_only=True):
    """A bucket of Google Cloud Storage."""

    bucket: Annotated[str, from_environment("HYPERSCALE_GCS_BUCKET")] = ""
    prefix: str = "hyperscale"
    forms: tuple[str, ...] = ("json",)

    def check(self) -> None:
        GoogleSettings.check(self)
        check_given(self, "bucket")
        _check_forms(self, self.forms)

    @classmethod
    def of_address(cls, address: str) -> dict[str, Any]:
        return _bucket_and_prefix(address)

    def open_sink(self) -> DeliverySink:
        return DeliverySink(CloudStorage(self), self)


class CloudStorage(GoogleBackend):
    noun = "files"

    def __init__(self, config: GCSConfig) -> None:
        super().__init__(config)
        self._config = config

    def batches(self, result: RunResult) -> Iterator[Batch[HttpRequest]]:
        base = (self._config.endpoint_url or "https://storage.googleapis.com").rstrip("/")
        bucket = quote(self._config.bucket, safe="")
        for path, content, media_type in objects_of(
            result, self._config.prefix, self._config.forms
        ):
            query = urlencode({"uploadType": "media", "name": path})
            url = f"{base}/upload/storage/v1/b/{bucket}/o?{query}"
            yield Batch(1, HttpRequest("POST", url, {"Content-Type": media_type}, content))
