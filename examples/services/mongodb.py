"""Documents that are read and updated.

hyperscale run mongodb.py --set url=mongodb://localhost/shop
"""

from hyperscale import Workflow, check, setup, step, teardown
from hyperscale.testing import MongoDBResponse, Param

url = Param("mongodb://localhost/shop")


class Catalogue(Workflow):
    vus = 8
    duration = "10s"

    @setup()
    async def fill(self) -> None:
        items = [{"_id": item, "name": f"item {item}", "views": 0} for item in range(100)]
        await self.client.mongodb.insert(url, "hs_items", *items)

    @step()
    async def look(self) -> MongoDBResponse:
        return await self.client.mongodb.find_one(url, "hs_items", {"_id": self.iteration % 100})

    @step("look")
    async def count(self) -> MongoDBResponse:
        where = {"_id": self.iteration % 100}
        return await self.client.mongodb.update(url, "hs_items", where, {"$inc": {"views": 1}})

    @check()
    def item_exists(self, look: MongoDBResponse) -> bool:
        return look.document is not None

    @teardown()
    async def empty(self) -> None:
        await self.client.mongodb.delete(url, "hs_items", {}, many=True)
