"""Messages from a producer to a consumer of the same user, with their age as a metric.

hyperscale run kafka.py --set url=kafka://localhost:9092
"""

from hyperscale import Workflow, metric, step
from hyperscale.testing import TIMER, KafkaResponse, Metric, Param

url = Param("kafka://localhost:9092")


class Events(Workflow):
    vus = 2
    duration = "10s"

    @step()
    async def send(self) -> KafkaResponse:
        return await self.client.kafka.produce(url, "hs-events", f"event {self.iteration}")

    @step("send")
    async def receive(self) -> KafkaResponse:
        return await self.client.kafka.consume(url, "hs-events", count=1, wait="5s")

    @metric()
    def age(self, receive: KafkaResponse) -> Metric[TIMER]:
        ages = [message.age_s for message in receive.messages if message.age_s is not None]
        return max(ages, default=0.0)
