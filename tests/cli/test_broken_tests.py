"""Broken tests: none of them ends green, and each message names file, line and remedy."""

from pathlib import Path

import pytest

from tests.conftest import RunningTarget
from tests.lab.command import run

HEAD = """\
from hyperscale import Workflow, action, check, setup, step
from hyperscale.testing import URL, HTTPResponse

class Shop(Workflow):
    vus = 2
    duration = "300ms"
    timeout = "5s"
"""

# name -> body from line 8 on, exit code, what is said
BROKEN = {
    "a wrong annotation": (
        """
    @step()
    async def go(self) -> int:
        return await self.client.http.get("{url}/json")
""",
        2,
        ["shop.py:9: Shop.go", "annotation is int", "annotate it -> HTTPResponse"],
    ),
    "an annotation that does not resolve": (
        """
    @step()
    async def go(self) -> "HttpResponse":
        return await self.client.http.get("{url}/json")
""",
        2,
        ["shop.py:9: Shop.go", "'HttpResponse' cannot be read", "import or define it"],
    ),
    "self set in setup": (
        """
    @setup()
    async def login(self):
        self.token = "x"
    @step()
    async def go(self):
        return await self.client.http.get("{url}/json")
""",
        3,
        ["shop.py:11", "Shop.login", "self.token cannot be set here", '@setup(per="vu")'],
    ),
    "only 404": (
        """
    @step()
    async def go(self):
        return await self.client.http.get("{url}/status/404")
""",
        1,
        ["not one call succeeded", "go at shop.py:9", "status", "hyperscale check"],
    ),
    "only exceptions": (
        """
    @step()
    async def go(self):
        response = await self.client.http.get("{url}/json")
        return response.json()["nothing"]
    @step()
    async def other(self) -> HTTPResponse:
        raise KeyError("nothing")
""",
        1,
        ["own code raised in", "other at shop.py:13", "correct the code", "KeyError"],
    ),
    "nobody listens": (
        """
    @step()
    async def go(self):
        return await self.client.http.get("http://127.0.0.1:1/")
""",
        1,
        ["not one call succeeded", "go at shop.py:9", "connect", "hyperscale check"],
    ),
    "a misspelt setting": (
        """
    users = 100
    @step()
    async def go(self):
        return await self.client.http.get("{url}/json")
""",
        2,
        ["shop.py:9: Shop.users", "the setting is called 'vus'", "rename it"],
    ),
    "no request at all": (
        """
    @step()
    async def go(self):
        sum(range(10))
""",
        2,
        ["shop.py:9: Shop.go", "nothing would be measured", "return await self.client.http.get"],
    ),
    "never a result": (
        """
    @step()
    async def go(self) -> HTTPResponse | None:
        return None
""",
        1,
        ["not one call succeeded", "go at shop.py:9", "without a result", "hyperscale check"],
    ),
    "a request that is not returned": (
        """
    @step()
    async def go(self):
        await self.client.http.get("{url}/json")
""",
        2,
        ["shop.py:9: Shop.go", "no step of Shop returns a response", "return the response"],
    ),
    "a forgotten return": (
        """
    @step()
    async def go(self) -> HTTPResponse:
        await self.client.http.get("{url}/json")
""",
        1,
        ["go at shop.py:9", "own code raised in", "is a `return` missing?"],
    ),
    "a forgotten await": (
        """
    @step()
    async def go(self):
        return self.client.http.get("{url}/json")
""",
        2,
        ["shop.py:9: Shop.go", "without awaiting it", "return await"],
    ),
    "two steps of one name": (
        """
    @step()
    async def go(self):
        return await self.client.http.get("{url}/json")
    @step()
    async def go(self):
        return await self.client.http.get("{url}/")
""",
        2,
        ["shop.py:12: Shop.go", "replaces the go of line 9", "its own name"],
    ),
    "a step without self": (
        """
    @step()
    async def go(url: URL = "{url}/json") -> HTTPResponse: ...
""",
        2,
        ["shop.py:9: Shop.go", "must be self", "go(self"],
    ),
    "a check that raises": (
        """
    @step()
    async def go(self):
        return await self.client.http.get("{url}/json")
    @check()
    def fine(self, go):
        return go.json()["nothing"] == 1
""",
        1,
        ["check fine at shop.py:12 failed", "KeyError: 'nothing' (shop.py:14)"],
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_test_fails_with_file_line_and_remedy(
    case: str, tmp_path: Path, target: RunningTarget
) -> None:
    body, code, said = BROKEN[case]
    (tmp_path / "shop.py").write_text(HEAD + body.replace("{url}", target.url))
    done = run("run", "shop.py", "--ui", "ci", "--workers", "1", cwd=tmp_path)
    text = " ".join((done.stdout + done.stderr).split())  # long lines are wrapped
    assert done.code == code, text
    assert "✓" not in text
    assert " passed in" not in text
    for words in said:
        assert words in text, text
