"""gRPC without generated code: `.proto` files, and servers that describe their services."""

import json
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from hyperscale.errors import InputError
from hyperscale.testing import Protos
from hyperscale.testing.services import Services, files_of
from tests.conftest import RunningTarget
from tests.lab.clients import Lab, in_lab
from tests.lab.command import run

pytest.importorskip("grpc_tools")

ECHO = Path(__file__).parents[2] / "examples" / "protocols" / "echo.proto"

TEST = """
from hyperscale import Workflow, step
from hyperscale.testing import URL, GRPCResponse, Protobuf, Protos

class Shop(Workflow):
    vus = 2
    duration = "30s"
    iterations = 6
    protos = {protos}

    @step()
    async def unary(self, url: URL = "{url}", message: Protobuf = {message}) -> GRPCResponse:
        return await self.client.grpc.unary(url, "{method}", message)

    @step()
    async def many(self, url: URL = "{url}") -> GRPCResponse:
        replies = await self.client.grpc.bidi_stream(
            url, "hyperscale.Echo/BidiStream", [{{"text": str(n)}} for n in range(3)]
        )
        assert [each.text for each in replies.messages] == ["0", "1", "2"]
        return replies
"""


def write(
    directory: Path,
    url: str,
    *,
    protos: str = 'Protos("echo.proto")',
    method: str = "hyperscale.Echo/Unary",
    message: str = '{"text": "hello"}',
) -> None:
    text = TEST.format(protos=protos, url=url, method=method, message=message)
    (directory / "shop.py").write_text(text)
    (directory / "echo.proto").write_text(ECHO.read_text())


@pytest.mark.parametrize("protos", ['Protos("echo.proto")', 'Protos(reflect="{url}")'])
def test_a_run_without_generated_code_counts_what_the_target_received(
    tmp_path: Path, target: RunningTarget, protos: str
) -> None:
    write(tmp_path, target.url, protos=protos.format(url=target.url))
    done = run("run", "shop.py", "--json", "r.json", cwd=tmp_path)
    assert done.code == 0, done.stdout + done.stderr
    (workflow,) = json.loads((tmp_path / "r.json").read_text())["workflows"]
    assert {step["name"]: step["ok"] for step in workflow["steps"]} == {"unary": 6, "many": 6}
    assert target.counts()["streams"]["grpc"]["messages_in"] >= 24


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"protos": 'Protos("none.proto")'}, "none.proto: there is no such file"),
        ({"protos": 'Protos("shop.py")'}, "shop.py"),
        ({"protos": 'Protos("echo.proto", include="none")'}, "none is not a directory"),
        ({"protos": "Protos()"}, "either .proto files or reflect=URL"),
        ({"method": "hyperscale.Echo/Binary"}, "hyperscale.Echo has no such method"),
        ({"method": "hyperscale.Ecko/Unary"}, "there is no service 'hyperscale.Ecko'"),
        ({"protos": 'Protos(reflect="http://127.0.0.1:1")'}, "server reflection: POST"),
        (
            {"protos": 'Protos(reflect="{url}")', "method": "hyperscale.Ecko/Unary"},
            "there is no service 'hyperscale.Ecko'",
        ),
    ],
)
def test_wrong_descriptions_and_methods_end_the_run_before_it_starts(
    tmp_path: Path, target: RunningTarget, options: dict[str, str], words: str
) -> None:
    shown = {name: value.format(url=target.url) for name, value in options.items()}
    write(tmp_path, target.url, **shown)
    done = run("run", "shop.py", cwd=tmp_path)
    assert done.code == 2, done.stdout + done.stderr
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_dict_that_is_no_message_names_the_field(target: RunningTarget) -> None:
    async def work(lab: Lab) -> None:
        await lab.hub.reflect(target.url)
        reply = await lab.grpc.unary(target.url, "hyperscale.Echo/Unary", {"payload": "AQ=="})
        assert reply.message.payload == b"\1"
        await lab.grpc.unary(target.url, "hyperscale.Echo/Unary", {"txet": "hello"})

    with pytest.raises(InputError, match=r"not a hyperscale\.EchoMessage: .*txet"):
        in_lab(work)


def test_the_target_describes_the_service_of_the_examples(target: RunningTarget) -> None:
    async def work(lab: Lab) -> list[bytes]:
        seen: list[bytes] = []
        lab.hub._native.describe = seen.extend  # type: ignore[method-assign]
        await lab.hub.reflect(target.url)
        return seen

    (described,) = in_lab(work)
    from google.protobuf import descriptor_pb2  # noqa: PLC0415 - an extra

    from hyperscale.graph.protos import _compile  # noqa: PLC0415 - as above

    compiled = files_of(_compile(Protos(ECHO), ECHO.parent, where="Echo"))
    parse = descriptor_pb2.FileDescriptorProto.FromString
    assert parse(described) == parse(compiled[0])


# --- a server of grpcio that describes itself --------------------------------------------


class _Upper(grpc.GenericRpcHandler):  # type: ignore[misc]  # has no types
    def service(self, details: Any) -> Any:
        if details.method != "/hyperscale.Echo/Unary":
            return None
        return grpc.unary_unary_rpc_method_handler(lambda message, _: message)


@pytest.fixture
def described(tmp_path: Path) -> Iterator[str]:
    """Start a server of grpcio with reflection; its descriptions import a second file."""
    reflection = pytest.importorskip("grpc_reflection.v1alpha.reflection")
    from google.protobuf import descriptor_pb2, descriptor_pool  # noqa: PLC0415 - an extra

    from hyperscale.graph.protos import _compile  # noqa: PLC0415 - as above

    (tmp_path / "kinds.proto").write_text(
        textwrap.dedent("""
            syntax = "proto3";
            package shop;
            import "google/protobuf/timestamp.proto";
            message Item { string name = 1; google.protobuf.Timestamp at = 2; }
        """)
    )
    (tmp_path / "shop.proto").write_text(
        textwrap.dedent("""
            syntax = "proto3";
            package hyperscale;
            import "kinds.proto";
            service Echo { rpc Unary(shop.Item) returns (shop.Item); }
        """)
    )
    pool = descriptor_pool.DescriptorPool()
    for file in files_of(_compile(Protos("shop.proto"), tmp_path, where="Shop")):
        pool.Add(descriptor_pb2.FileDescriptorProto.FromString(file))
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((_Upper(),))
    reflection.enable_server_reflection(("hyperscale.Echo",), server, pool)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop(None).wait()


def test_a_server_of_grpcio_describes_its_services_and_their_imports(described: str) -> None:
    async def work(lab: Lab) -> Any:
        await lab.hub.reflect(described)
        item = {"name": "pen", "at": "2026-01-02T03:04:05Z"}
        return (await lab.grpc.unary(described, "hyperscale.Echo/Unary", item)).message

    item = in_lab(work)
    assert (item.name, item.at.ToJsonString()) == ("pen", "2026-01-02T03:04:05Z")


def test_ping_shows_health_and_services(
    tmp_path: Path, described: str, target: RunningTarget
) -> None:
    done = run("ping", "grpc", target.url, cwd=tmp_path)
    assert done.code == 0
    assert "* health: SERVING\n* services: hyperscale.Echo\n" in done.stdout
    other = run("ping", "grpc", described, cwd=tmp_path)
    assert other.code == 1, "it has no health service"
    assert "* services: hyperscale.Echo" in other.stdout


def test_descriptions_that_are_cut_off_or_contradict_themselves_are_refused() -> None:
    with pytest.raises(InputError, match="cut off"):
        files_of(b"\x0a")
    from google.protobuf import descriptor_pb2  # noqa: PLC0415 - an extra

    file = descriptor_pb2.FileDescriptorProto(name="a.proto", dependency=["missing.proto"])
    with pytest.raises(InputError, match=r"a\.proto: a wrong description"):
        Services([file.SerializeToString()])
