"""The gRPC client: against grpcio's server and the built-in target."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from google.protobuf.wrappers_pb2 import StringValue

from hyperscale.clients import RequestError
from hyperscale.errors import InputError
from hyperscale.testing import GRPCCode, GRPCResponse, Protobuf
from tests.conftest import RunningTarget
from tests.lab.clients import Lab, in_lab
from tests.lab.command import results, run

Handler = Any


def _text(message: StringValue) -> str:
    return str(message.value)


class EchoService(grpc.GenericRpcHandler):
    """`test.Echo`, with the behaviours that the official interop cases ask of a server."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def service(self, details: grpc.HandlerCallDetails) -> Handler:
        name = details.method.rpartition("/")[2]
        self.calls.append(name)
        kinds: dict[str, tuple[Any, Any]] = {
            "Unary": (grpc.unary_unary_rpc_method_handler, self.unary),
            "Metadata": (grpc.unary_unary_rpc_method_handler, self.metadata),
            "Fail": (grpc.unary_unary_rpc_method_handler, self.fail),
            "Deadline": (grpc.unary_unary_rpc_method_handler, self.deadline),
            "Server": (grpc.unary_stream_rpc_method_handler, self.server),
            "Client": (grpc.stream_unary_rpc_method_handler, self.client),
            "Bidi": (grpc.stream_stream_rpc_method_handler, self.bidi),
        }
        if name not in kinds:
            return None
        make, behave = kinds[name]
        return make(behave, StringValue.FromString, StringValue.SerializeToString)

    def unary(self, message: StringValue, context: grpc.ServicerContext) -> StringValue:
        return message

    def metadata(self, message: StringValue, context: grpc.ServicerContext) -> StringValue:
        given = dict(context.invocation_metadata())
        context.send_initial_metadata([("x-initial", given["x-text"])])
        context.set_trailing_metadata([("x-trailing-bin", given["x-raw-bin"])])
        return message

    def fail(self, message: StringValue, context: grpc.ServicerContext) -> StringValue:
        context.abort(grpc.StatusCode.NOT_FOUND, f"no such user: {_text(message)} ☺")
        raise AssertionError

    def deadline(self, message: StringValue, context: grpc.ServicerContext) -> StringValue:
        return StringValue(value=f"{context.time_remaining():.3f}")

    def server(self, message: StringValue, context: grpc.ServicerContext) -> Iterator[StringValue]:
        for number in range(int(_text(message))):
            yield StringValue(value=str(number))

    def client(self, messages: Iterator[StringValue], context: grpc.ServicerContext) -> StringValue:
        return StringValue(value="".join(map(_text, messages)))

    def bidi(
        self, messages: Iterator[StringValue], context: grpc.ServicerContext
    ) -> Iterator[StringValue]:
        for message in messages:
            yield StringValue(value=_text(message).upper())


@pytest.fixture
def service() -> Iterator[tuple[EchoService, str]]:
    echo = EchoService()
    server = grpc.server(
        ThreadPoolExecutor(4),
        options=[("grpc.max_receive_message_length", 32 << 20), ("grpc.so_reuseport", 0)],
        compression=grpc.Compression.NoCompression,
    )
    server.add_generic_rpc_handlers((echo,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield echo, f"http://127.0.0.1:{port}"
    server.stop(None).wait()


def message(text: str) -> StringValue:
    return StringValue(value=text)


def test_a_unary_call_returns_the_message_as_its_class(service: tuple[EchoService, str]) -> None:
    echo, url = service

    async def work(lab: Lab) -> list[GRPCResponse]:
        return [
            await lab.grpc.unary(url, "test.Echo/Unary", message("hello"), reply=StringValue),
            await lab.grpc.unary(url, "/test.Echo/Unary", message("raw").SerializeToString()),
        ]

    typed, raw = in_lab(work)
    assert (typed.code, typed.ok, typed.details) == (GRPCCode.OK, True, "")
    assert typed.message == message("hello")
    assert raw.message == message("raw").SerializeToString()
    assert echo.calls == ["Unary", "Unary"]


def test_an_empty_and_a_large_message_go_both_ways(service: tuple[EchoService, str]) -> None:
    _, url = service
    large = "x" * 5_000_000

    async def work(lab: Lab) -> list[str]:
        calls = [
            lab.grpc.unary(url, "test.Echo/Unary", message(text), reply=StringValue)
            for text in ("", large)
        ]
        return [(await call).message.value for call in calls]

    assert in_lab(work) == ["", large]


def test_streams_of_every_kind(service: tuple[EchoService, str]) -> None:
    _, url = service
    many = [message(text) for text in "abc"]

    async def work(lab: Lab) -> list[GRPCResponse]:
        client = lab.grpc
        return [
            await client.server_stream(url, "test.Echo/Server", message("3"), reply=StringValue),
            await client.client_stream(url, "test.Echo/Client", many, reply=StringValue),
            await client.bidi_stream(url, "test.Echo/Bidi", many, reply=StringValue),
            await client.server_stream(url, "test.Echo/Server", message("0"), reply=StringValue),
            await client.bidi_stream(url, "test.Echo/Bidi", [], reply=StringValue),
        ]

    texts = [[_text(one) for one in response.messages] for response in in_lab(work)]
    assert texts == [["0", "1", "2"], ["abc"], ["A", "B", "C"], [], []]


def test_metadata_goes_both_ways(service: tuple[EchoService, str]) -> None:
    _, url = service
    given = {"X-Text": "value", "x-raw-bin": b"\x00\xff\x01"}

    async def work(lab: Lab) -> GRPCResponse:
        return await lab.grpc.unary(url, "test.Echo/Metadata", message("m"), metadata=given)

    response = in_lab(work)
    assert response.metadata["x-initial"] == "value"
    assert response.trailers["x-trailing-bin"].rstrip("=") == "AP8B"


def test_a_status_comes_with_its_code_and_details(service: tuple[EchoService, str]) -> None:
    _, url = service

    async def work(lab: Lab) -> tuple[GRPCResponse, GRPCResponse]:
        failed = await lab.grpc.unary(url, "test.Echo/Fail", message("ann"))
        return failed, await lab.grpc.unary(url, "test.Echo/NoSuchMethod", message("x"))

    failed, unknown = in_lab(work)
    assert (failed.ok, failed.code, failed.details) == (
        False,
        GRPCCode.NOT_FOUND,
        "no such user: ann ☺",
    )
    assert unknown.code is GRPCCode.UNIMPLEMENTED


def test_the_server_hears_of_the_deadline(service: tuple[EchoService, str]) -> None:
    _, url = service

    async def work(lab: Lab) -> str:
        call = lab.grpc.unary(
            url, "test.Echo/Deadline", message(""), reply=StringValue, timeout="5s"
        )
        return str((await call).message.value)

    assert 0.0 < float(in_lab(work)) <= 5.0


def test_compressed_messages_are_understood(service: tuple[EchoService, str]) -> None:
    _, url = service

    async def work(lab: Lab) -> GRPCResponse:
        return await lab.grpc.unary(
            url, "test.Echo/Unary", message("x" * 1000), reply=StringValue, compression="gzip"
        )

    response = in_lab(work)
    assert response.message.value == "x" * 1000
    assert response.bytes_sent < 500


def echo_message(**fields: int) -> bytes:
    """A message of the target's echo service."""
    numbers = {"count": 3, "delay_ms": 4, "code": 5}
    return b"".join(bytes((numbers[name] << 3, value)) for name, value in fields.items())


def test_the_target_counts_calls_and_messages(target: RunningTarget) -> None:
    async def work(lab: Lab) -> list[GRPCResponse]:
        client, url = lab.grpc, target.url
        return [
            await client.unary(url, "hyperscale.Echo/Unary", b""),
            await client.server_stream(url, "hyperscale.Echo/ServerStream", echo_message(count=4)),
            await client.client_stream(url, "hyperscale.Echo/ClientStream", [b"", b""]),
            await client.bidi_stream(url, "hyperscale.Echo/BidiStream", [b"", b"", b""]),
            await client.unary(url, "hyperscale.Echo/Unary", echo_message(code=7)),
            await client.unary(url, "grpc.health.v1.Health/Check", b""),
        ]

    unary, server, client, bidi, denied, health = in_lab(work)
    assert [len(response.messages) for response in (unary, server, client, bidi)] == [1, 4, 1, 3]
    assert denied.code is GRPCCode.PERMISSION_DENIED
    assert health.message == b"\x08\x01"
    assert target.counts()["protocols"] == {"http/1.1": 0, "http/2": 0, "http/3": 0, "grpc": 6}


@pytest.mark.parametrize("way", [(), ("--no-compile",)])
def test_a_step_may_accept_codes(
    target: RunningTarget, tmp_path: Path, way: tuple[str, ...]
) -> None:
    (tmp_path / "codes.py").write_text(
        f"""
from hyperscale import Workflow, step
from hyperscale.testing import URL, GRPCCode, GRPCResponse, Protobuf


class Codes(Workflow):
    vus = 1
    iterations = 3
    duration = "30s"

    @step(accept=[GRPCCode.PERMISSION_DENIED])
    async def denied(
        self, url: URL = "{target.url}", message: Protobuf = {echo_message(code=7)!r}
    ) -> GRPCResponse:
        return await self.client.grpc.unary(url, "hyperscale.Echo/Unary", message)
"""
    )
    done = run("run", "codes.py", *way, "--json", "r.json", cwd=tmp_path)
    assert done.code == 0, done.stdout + done.stderr
    (step,) = results(tmp_path / "r.json")["workflows"][0]["steps"]
    assert (step["ok"], step["failed"]) == (3, 0)


def test_a_call_that_takes_too_long_is_a_timeout(target: RunningTarget) -> None:
    async def work(lab: Lab) -> str:
        with pytest.raises(RequestError) as caught:
            await lab.grpc.unary(
                target.url, "hyperscale.Echo/Unary", echo_message(delay_ms=127), timeout="20ms"
            )
        return caught.value.error

    assert in_lab(work) == "timeout"


@pytest.mark.parametrize(
    ("method", "message_", "call", "words"),
    [
        ("Unary", b"", {}, "is not the name of a method"),
        ("a.B/C", {"text": "x"}, {}, "is not a message"),
        ("a.B/C", 3, {}, "is not a message"),
        ("a.B/C", b"", {"compression": "snappy"}, "is unknown"),
        ("a.B/C", b"", {"metadata": {"x": b"raw"}}, "is not text"),
        ("a.B/C", b"", {"metadata": {"grpc-timeout": "1S"}}, "is reserved"),
        ("a.B/C", b"", {"tiemout": 1}, "unknown argument"),
    ],
)
def test_a_wrong_call_is_refused_with_a_hint(
    method: str, message_: object, call: dict[str, Any], words: str
) -> None:
    async def work(lab: Lab) -> None:
        await lab.grpc.unary("http://127.0.0.1:1", method, message_, **call)

    with pytest.raises(InputError, match=words):
        in_lab(work)


def test_a_prepared_message_is_encoded_once() -> None:
    part = Protobuf.wrap(DescriptorProto(name="x", field=[FieldDescriptorProto(name="f")]))
    assert DescriptorProto.FromString(part).field[0].name == "f"
    with pytest.raises(InputError, match="is not a message"):
        Protobuf.wrap(["x"])
