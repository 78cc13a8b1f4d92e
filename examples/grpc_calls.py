"""gRPC: a unary call and a stream of replies, with the echo service of `hyperscale target`.

`protocols/echo.proto` describes the service. Messages are usually instances of the classes that
protoc generates from such a file, as defaults: `message: Protobuf = EchoMessage(text="hello")`, and
`reply=EchoMessage` decodes the replies. Bytes, as here, need no generated code.
"""

from hyperscale import Workflow, check, step
from hyperscale.testing import URL, Check, GRPCResponse, Protobuf


class Echo(Workflow):
    vus = 20
    duration = "10s"

    @step()
    async def unary(
        self,
        url: URL = "http://localhost:8080",
        message: Protobuf = b"\x0a\x05hello",  # text: "hello"
    ) -> GRPCResponse:
        return await self.client.grpc.unary(url, "hyperscale.Echo/Unary", message, timeout="2s")

    @step()
    async def replies(
        self,
        url: URL = "http://localhost:8080",
        message: Protobuf = b"\x18\x03",  # count: 3
    ) -> GRPCResponse:
        return await self.client.grpc.server_stream(url, "hyperscale.Echo/ServerStream", message)

    @check()
    async def three_replies(self, replies: GRPCResponse) -> Check:
        return len(replies.messages) == 3
