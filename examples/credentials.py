"""Credentials that are more than a header: a signature of the request, a token from the context.

hyperscale run examples/credentials.py
"""

from hyperscale import Workflow, check, setup, step
from hyperscale.testing import URL, Auth, Bearer, FileGlob, HTTPResponse, SigV4


class Signed(Workflow):
    vus = 5
    duration = "3s"

    @setup()
    async def log_in(self) -> None:
        self.context["token"] = "a-token-of-the-login"

    @step()
    async def signed(
        self,
        url: URL = "http://localhost:8080/echo",
        auth: Auth = SigV4("AKIDEXAMPLE", "wJalrXUtnFEMI", region="eu-west-1"),
    ) -> HTTPResponse:
        return await self.client.http.post(url, json={"item": 7}, auth=auth)

    # The token that setup left in the context, at the time of the call.
    @step("signed")
    async def bearer(
        self, url: URL = "http://localhost:8080/headers", auth: Auth = Bearer("token")
    ) -> HTTPResponse:
        return await self.client.http.get(url, auth=auth)

    # All files that match, as one multipart body; they travel with the test.
    @step("signed")
    async def upload(
        self, url: URL = "http://localhost:8080/echo", scripts: FileGlob = "*.py"
    ) -> HTTPResponse:
        return await self.client.http.post(url, files=scripts)

    @check()
    def token_arrived(self, bearer: HTTPResponse) -> bool:
        return "Bearer a-token-of-the-login" in bearer.text
