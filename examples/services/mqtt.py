"""Sensors that publish their readings, and hear commands in between.

hyperscale run mqtt.py --set url=mqtt://localhost:1883
"""

from hyperscale import Workflow, step
from hyperscale.testing import MQTTResponse, Param

url = Param("mqtt://localhost:1883", secret=True)


class Sensors(Workflow):
    vus = 8
    duration = "10s"

    @step()
    async def report(self) -> MQTTResponse:
        reading = f"{20 + self.iteration % 10}"
        return await self.client.mqtt.publish(url, f"hs/sensors/{self.vu}", reading, qos=1)

    @step("report")
    async def commands(self) -> MQTTResponse:
        return await self.client.mqtt.listen(url, f"hs/commands/{self.vu}", wait="10ms")
