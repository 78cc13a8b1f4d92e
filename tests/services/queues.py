"""RabbitMQ and Mosquitto.

Client libraries are imported when they are used: every test run imports this module.
"""

import asyncio
import contextlib
import os
import subprocess
from pathlib import Path

from tests.lab.ports import free_port
from tests.services.base import Service, accepts, tool
from tests.services.databases import PASSWORD, QUOTED


class RabbitMQ(Service):
    """RabbitMQ with its data and its node name to itself."""

    name = "rabbitmq"
    account = "rabbitmq"
    queue = "load"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._erlang_port, self._epmd_port = free_port(), free_port()

    @property
    def url(self) -> str:
        return f"amqp://load:{QUOTED}@127.0.0.1:{self.port}/"

    @property
    def _node(self) -> str:
        return f"load{self.port}@localhost"

    def install(self) -> None:
        (self.directory / "plugins").write_text("[].\n")
        (self.directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            "default_user = load\n"
            f"default_pass = {PASSWORD}\n"
            "collect_statistics_interval = 1000\n"
        )

    def environment(self) -> dict[str, str]:
        place = str(self.directory)
        return {
            "HOME": place,
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_MNESIA_BASE": f"{place}/data",
            "RABBITMQ_LOG_BASE": f"{place}/log",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": f"{place}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{place}/plugins",
            "RABBITMQ_DIST_PORT": str(self._erlang_port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_PID_FILE": f"{place}/pid",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_RELAXED_COMMAND_CHECK": "1",  # it may be ended while it knows a node
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
        }

    def _home(self) -> Path:
        return max(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*")) / "sbin"

    def command(self) -> list[str]:
        return [str(self._home() / "rabbitmq-server")]

    def set_up(self) -> None:
        for queue in ("counted", "numbers"):
            self.messages(queue)

    def stop(self) -> None:
        super().stop()
        subprocess.run(
            [tool("epmd"), "-kill"], env={**os.environ, **self.environment()}, check=False
        )

    def messages(self, queue: str) -> int:
        """Return how many messages a queue has; makes the queue if there is none."""
        return asyncio.run(self._messages(queue))

    async def _messages(self, queue: str) -> int:
        import aio_pika  # noqa: PLC0415 - see above

        async with await aio_pika.connect(self.url) as link:
            channel = await link.channel()
            declared = await channel.declare_queue(queue, durable=True)
            return declared.declaration_result.message_count or 0


class Mosquitto(Service):
    """Mosquitto with a password; it counts messages under $SYS every second."""

    name = "mqtt"

    @property
    def url(self) -> str:
        return f"mqtt://load:{QUOTED}@127.0.0.1:{self.port}"

    def install(self) -> None:
        secrets = self.directory / "passwords"
        secrets.touch()
        subprocess.run([tool("mosquitto_passwd"), "-b", str(secrets), "load", PASSWORD], check=True)
        secrets.chmod(0o644)
        (self.directory / "mosquitto.conf").write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous false\n"
            f"password_file {secrets}\nsys_interval 1\nmax_queued_messages 0\n"
            f"{'user root' if os.getuid() == 0 else ''}\n"
        )

    def command(self) -> list[str]:
        return [tool("mosquitto"), "-c", str(self.directory / "mosquitto.conf")]

    def is_ready(self) -> bool:
        return accepts(self.port)

    def published(self) -> int:
        """Return how many messages the broker has got, once its count has come to rest."""
        return asyncio.run(self._published())

    async def _published(self) -> int:
        import aiomqtt  # noqa: PLC0415 - see above

        count = 0
        place = aiomqtt.Client("127.0.0.1", self.port, username="load", password=PASSWORD)
        async with place as client:
            await client.subscribe("$SYS/broker/publish/messages/received")
            with contextlib.suppress(TimeoutError):  # it publishes the count when that has changed
                while True:
                    async with asyncio.timeout(2.5):
                        message = await anext(client.messages)
                        count = int(message.payload)
        return count
