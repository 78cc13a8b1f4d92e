"""Kafka (KRaft: one process is broker and controller), RabbitMQ and Mosquitto.

Client libraries are imported when they are used: every test run imports this module.
"""

import asyncio
import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.lab.ports import free_port
from tests.services.base import PASSWORD, QUOTED, Service, accepts, tool
from tests.services.downloads import cached

_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"


class Kafka(Service):
    name = "kafka"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.controller_port = free_port()

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def client_url(self) -> str:
        return f"kafka://load:{QUOTED}@127.0.0.1:{self.port}"

    def _java(self, *words: str) -> list[str]:
        jars = f"{cached('kafka')}/jars/*"
        return [tool("java"), "-Xmx384m", "-XX:TieredStopAtLevel=1", "-cp", jars, *words]

    def install(self) -> None:
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        (self.directory / "server.properties").write_text(
            f"""
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{self.controller_port}
listeners=SASL_PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}
advertised.listeners=SASL_PLAINTEXT://127.0.0.1:{self.port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config={login} username="load" \\
  password="{PASSWORD}" user_load="{PASSWORD}";
log.dirs={self.directory}/data
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""
        )
        properties = str(self.directory / "server.properties")
        self.run(*self._java("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", properties))

    def command(self) -> list[str]:
        return self._java("kafka.Kafka", str(self.directory / "server.properties"))

    @property
    def _login(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.url,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "load",
            "sasl_plain_password": PASSWORD,
        }

    def offset(self, topic: str) -> int:
        """Return how many messages a topic of one partition has got."""
        return asyncio.run(self._offset(topic))

    async def _offset(self, topic: str) -> int:
        from aiokafka import AIOKafkaConsumer, TopicPartition  # noqa: PLC0415  an extra

        consumer = AIOKafkaConsumer(topic, **self._login)
        await consumer.start()  # makes the topic
        try:
            place = TopicPartition(topic, 0)
            return int((await consumer.end_offsets([place]))[place])
        finally:
            await consumer.stop()

    def messages(self, topic: str) -> list[tuple[Any, Any]]:
        """Return keys and values of all messages of a topic with one partition."""
        return asyncio.run(self._messages(topic))

    async def _messages(self, topic: str) -> list[tuple[Any, Any]]:
        from aiokafka import AIOKafkaConsumer, TopicPartition  # noqa: PLC0415  an extra

        consumer = AIOKafkaConsumer(**self._login)
        await consumer.start()
        try:
            place = TopicPartition(topic, 0)
            consumer.assign([place])
            end = (await consumer.end_offsets([place]))[place]
            consumer.seek(place, 0)
            found: list[tuple[Any, Any]] = []
            while await consumer.position(place) < end:
                message = await asyncio.wait_for(consumer.getone(), timeout=10)
                found.append((json.loads(message.key), json.loads(message.value)))
            return found
        finally:
            await consumer.stop()


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
