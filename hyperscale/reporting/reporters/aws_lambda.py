"""AWS Lambda: invoke a function with the run and its metrics as the event."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal
from urllib.parse import quote

import msgspec

from hyperscale.errors import InputError
from hyperscale.reporting.aws import AwsBackend, AwsSettings
from hyperscale.reporting.delivery import Batch, DeliverySink, RejectedError, chunks
from hyperscale.reporting.http import HttpReply, HttpRequest, raise_for_status
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.rows import rows_of, run_document
from hyperscale.reporting.settings import check_given


class AWSLambdaConfig(AwsSettings, frozen=True, kw_only=True):
    """A function. `invocation="Event"` does not wait for it; `RequestResponse` does, and a
    function that raises is a failed delivery."""

    SERVICE: ClassVar[str] = "lambda"

    function: str = ""  # name or ARN
    invocation: Literal["Event", "RequestResponse"] = "Event"

    def check(self) -> None:
        AwsSettings.check(self)
        check_given(self, "function")
        if self.invocation not in ("Event", "RequestResponse"):
            raise InputError(f"AWSLambdaConfig: invocation={self.invocation!r} is unknown")

    @classmethod
    def of_address(cls, address: str) -> dict[str, Any]:
        return {"function": address}

    def open_sink(self) -> DeliverySink:
        return DeliverySink(LambdaFunction(self), self)


class LambdaFunction(AwsBackend):
    def __init__(self, config: AWSLambdaConfig) -> None:
        super().__init__(config, service="lambda")
        self._config = config

    def batches(self, result: RunResult) -> Iterator[Batch[HttpRequest]]:
        name = quote(self._config.function, safe="")
        url = f"{self._config.endpoint}/2015-03-31/functions/{name}/invocations"
        headers = {
            "Content-Type": "application/json",
            "X-Amz-Invocation-Type": self._config.invocation,
        }
        run = run_document(result)
        for rows in chunks(rows_of(result), self._config.batch_items_max):
            body = msgspec.json.encode({"run": run, "metrics": rows})
            yield Batch(len(rows), HttpRequest("POST", url, headers, body))

    def check(self, request: HttpRequest, reply: HttpReply) -> None:
        raise_for_status(request, reply)
        if "x-amz-function-error" in reply.headers:
            raise RejectedError(f"the function {self._config.function} failed: {reply.text()}")
