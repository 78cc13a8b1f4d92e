"""Kafka (KRaft: one process is broker and controller), and MongoDB's protocol by FerretDB."""

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.lab.ports import free_port
from tests.services.base import Service, tool
from tests.services.databases import PASSWORD, QUOTED
from tests.services.downloads import cached

_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"


class Kafka(Service):
    name = "kafka"
    start_s = 60.0

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


class FerretDB(Service):
    """MongoDB's wire protocol over SQLite; it checks no passwords."""

    name = "mongodb"

    @property
    def url(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return [
            str(cached("ferretdb") / "server"),
            f"127.0.0.1:{self.port}",
            f"file:{self.directory}/",
        ]

    @property
    def client_url(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}/shop?directConnection=true"

    def commands(self, name: str) -> int:
        """Return how many commands of this name the server has served."""
        from pymongo import MongoClient  # noqa: PLC0415  an extra

        with MongoClient[dict[str, Any]](self.url) as client:
            served = client["admin"].command("serverStatus")["metrics"]["commands"]
            return int(served.get(name, {}).get("total", 0))

    def documents(self, collection: str, query: dict[str, Any]) -> list[dict[str, Any]]:
        from pymongo import MongoClient  # noqa: PLC0415  an extra

        with MongoClient[dict[str, Any]](self.url) as client:
            return list(client["hyperscale"][collection].find(query))
