"""Redis as a cache, a counter in a pipeline, and a stream.

hyperscale run redis.py --set url=redis://localhost:6379/0
"""

from hyperscale import Workflow, check, setup, step
from hyperscale.testing import Param, RedisResponse

url = Param("redis://localhost:6379/0")


class Cache(Workflow):
    vus = 8
    duration = "10s"

    @setup()
    async def fill(self) -> None:
        await self.client.redis.pipeline(
            url, [("SET", f"hs:item:{item}", f"item {item}", "EX", 600) for item in range(100)]
        )

    @step()
    async def read(self) -> RedisResponse:
        return await self.client.redis.get(url, f"hs:item:{self.iteration % 100}")

    @step("read")
    async def count(self) -> RedisResponse:
        return await self.client.redis.pipeline(
            url, [("INCR", "hs:views"), ("EXPIRE", "hs:views", 600)], atomic=True
        )

    @step("count")
    async def note(self) -> RedisResponse:
        return await self.client.redis.stream_add(
            url, "hs:log", {"vu": self.vu, "iteration": self.iteration}, length_max=10_000
        )

    @check()
    def item_is_there(self, read: RedisResponse) -> bool:
        return read.value is not None
