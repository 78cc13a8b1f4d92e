"""gRPC without generated code: a `.proto` file describes the service, messages are dicts.

hyperscale target
hyperscale run examples/grpc_services.py

`protos = Protos(reflect="http://localhost:8080")` would ask the server for the description.
"""

from hyperscale import Workflow, check, step
from hyperscale.testing import URL, Check, GRPCResponse, Protobuf, Protos


class Calls(Workflow):
    vus = 10
    duration = "3s"
    interval = "10ms"
    protos = Protos("protocols/echo.proto")

    @step()
    async def hello(
        self,
        url: URL = "http://localhost:8080",
        message: Protobuf = {"text": "hello"},
    ) -> GRPCResponse:
        return await self.client.grpc.unary(url, "hyperscale.Echo/Unary", message)

    @check()
    async def echoed(self, hello: GRPCResponse) -> Check:
        return bool(hello.message.text == "hello")


class Conversation(Workflow):
    """Every message follows from the reply before it."""

    vus = 5
    duration = "3s"
    interval = "10ms"
    protos = Protos("protocols/echo.proto")

    @step()
    async def talk(self, url: URL = "http://localhost:8080") -> GRPCResponse:
        async with self.client.grpc.stream(url, "hyperscale.Echo/BidiStream") as stream:
            text = "a"
            for _ in range(3):
                await stream.send({"text": text})
                reply = await stream.receive()
                text = reply.text + "b"
        return stream.response
