"""Confirmed messages into a queue, and out of it again.

hyperscale run rabbitmq.py --set url=amqp://guest:guest@localhost/
"""

from hyperscale import Workflow, setup, step
from hyperscale.testing import Param, RabbitMQResponse

url = Param("amqp://guest:guest@localhost/", secret=True)


class Work(Workflow):
    vus = 4
    duration = "10s"

    @setup()
    async def make_queue(self) -> None:
        await self.client.rabbitmq.declare(url, "hs-work")

    @step()
    async def hand_in(self) -> RabbitMQResponse:
        return await self.client.rabbitmq.publish(url, "hs-work", f"job {self.iteration}")

    @step("hand_in")
    async def take(self) -> RabbitMQResponse:
        return await self.client.rabbitmq.consume(url, "hs-work", count=1, wait="5s")
