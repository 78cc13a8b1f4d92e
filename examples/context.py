"""Values from one workflow to the next: `Provide` on one side, `Use` on the other.

Both sides name each other. The key is the providing method's name.

    hyperscale run examples/context.py
"""

from typing import Any

from hyperscale import Provide, Use, Workflow, action, depends, state, step
from hyperscale.testing import URL, HTTPResponse


class Login(Workflow):
    vus = 1
    duration = "10s"

    @action()
    async def sign_in(self, url: URL = "http://localhost:8080/echo") -> None:
        response = await self.client.http.post(url, json={"user": "demo"})
        self.context["token"] = f"token-{response.status}"

    @state("Shop")
    def token(self) -> Provide[str]:
        return self.context.get("token")


@depends("Login")
class Shop(Workflow):
    vus = 10
    duration = "3s"
    interval = "10ms"

    @state("Login")
    def take(self, token: str = "") -> Use[str]:
        return token

    @step()
    async def orders(self, url: URL = "http://localhost:8080/headers") -> HTTPResponse:
        headers: dict[str, Any] = {"Authorization": f"Bearer {self.context['token']}"}
        return await self.client.http.get(url, headers=headers)
