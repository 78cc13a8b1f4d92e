"""`self.client.mongodb` beyond the contract."""

import pytest

from hyperscale.clients import ClientError
from tests.clients.test_contract import opened, play
from tests.services.fixtures import GetService

pytestmark = pytest.mark.service("mongodb")


def test_documents_are_written_found_and_counted(service: GetService) -> None:
    url = service("mongodb").client_url

    async def main() -> None:
        async with opened() as (hub, _):
            db = hub.client(0).mongodb
            await db.delete(url, "shelf", {}, many=True)
            made = await db.insert(url, "shelf", *({"_id": n, "n": n % 3} for n in range(9)))
            assert (made.changed, made.value["ids"]) == (9, list(range(9)))
            found = await db.find(url, "shelf", {"n": 1}, sort=[("_id", -1)], limit=2)
            assert [each["_id"] for each in found.documents] == [7, 4]
            assert (await db.find_one(url, "shelf", {"_id": 5})).document == {"_id": 5, "n": 2}
            assert (await db.find_one(url, "shelf", {"_id": 99})).document is None
            assert (await db.update(url, "shelf", {"n": 2}, {"$set": {"n": 5}})).changed == 1
            more = await db.update(url, "shelf", {"n": 2}, {"$set": {"n": 5}}, many=True)
            assert more.changed == 2
            fives = await db.aggregate(url, "shelf", [{"$match": {"n": 5}}, {"$count": "all"}])
            assert fives.document["all"] == 3
            assert (await db.delete(url, "shelf", {"n": 5}, many=True)).changed == 3
            assert (await db.command(url, {"ping": 1})).value["ok"] == 1

    play(main)


def test_an_error_reply_shows_the_collection_and_no_document(service: GetService) -> None:
    url = service("mongodb").client_url

    async def main() -> None:
        async with opened() as (hub, _):
            db = hub.client(0).mongodb
            await db.delete(url, "shelf", {}, many=True)
            await db.insert(url, "shelf", {"_id": 1, "note": "private"})
            with pytest.raises(ClientError) as failed:
                await db.insert(url, "shelf", {"_id": 1, "note": "private"})
            assert failed.value.error == "server"
            assert failed.value.request.startswith("insert shelf to mongodb://127.0.0.1")

    play(main)
