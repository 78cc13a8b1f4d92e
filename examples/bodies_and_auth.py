"""Every way to send something: JSON, forms, files, bytes, query parameters, cookies, credentials.

Parts given as defaults are encoded once, before the clock starts.

    hyperscale run examples/bodies_and_auth.py
"""

from collections.abc import Iterator

from hyperscale import Workflow, check, step
from hyperscale.testing import URL, Auth, Cookies, Data, File, Headers, HTTPResponse, Params


def lines() -> Iterator[bytes]:
    for number in range(3):
        yield f"line {number}\n".encode()


class Upload(Workflow):
    vus = 5
    duration = "3s"
    timeout = "2s"

    @step()
    async def json_body(
        self,
        url: URL = "http://localhost:8080/echo",
        headers: Headers = {"X-Source": "example"},
        body: Data = {"item": 7, "tags": ["new", "blue"]},
    ) -> HTTPResponse:
        return await self.client.http.post(url, headers=headers, data=body)

    @step("json_body")
    async def form(self, url: URL = "http://localhost:8080/echo") -> HTTPResponse:
        return await self.client.http.post(url, form={"name": "Ada", "year": 1843})

    # The file lies beside this one and travels with it.
    @step("json_body")
    async def multipart(
        self, url: URL = "http://localhost:8080/echo", photo: File = "bodies_and_auth.py"
    ) -> HTTPResponse:
        return await self.client.http.post(url, files={"photo": photo})

    @step("form", "multipart")
    async def chunks(self, url: URL = "http://localhost:8080/echo") -> HTTPResponse:
        return await self.client.http.put(url, data=lines())

    @step("form", "multipart")
    async def query(
        self,
        url: URL = "http://localhost:8080/cookies",
        params: Params = {"page": 2, "sort": ["name", "price"]},
        cookies: Cookies = {"session": "abc"},
    ) -> HTTPResponse:
        return await self.client.http.get(url, params=params, cookies=cookies)

    @step("chunks", "query")
    async def basic_auth(
        self,
        url: URL = "http://localhost:8080/basic-auth/ada/secret",
        auth: Auth = ("ada", "secret"),
    ) -> HTTPResponse:
        return await self.client.http.get(url, auth=auth)

    @check()
    def cookie_arrived(self, query: HTTPResponse) -> bool:
        return "session" in query.text
