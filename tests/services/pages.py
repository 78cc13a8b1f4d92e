"""A small web site for browsers, which counts the visits of its pages."""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.services.base import Service


class WebSite(Service):
    """Pages with a picture and a script; `/N` has the title N, `/missing` the status 404."""

    name = "browser"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def command(self) -> list[str]:
        log = str(self.directory / "visits")
        return [sys.executable, "-m", "tests.services.pages", str(self.port), log]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(Path(__file__).resolve().parent.parent.parent)}

    def visits(self, path: str = "/") -> int:
        """Return how often a page was asked for."""
        log = self.directory / "visits"
        return log.read_text().splitlines().count(path) if log.exists() else 0


PAGE = """<!doctype html><title>{title}</title><link rel=icon href=data:,>
<h1>Shop {title}</h1><img src=/lamp.svg width=200 height=200>
<button onclick="this.textContent='Bought'">Buy</button>
"""
PICTURE = b'<svg xmlns="http://www.w3.org/2000/svg"><rect width="200" height="200"/></svg>'


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        with Path(sys.argv[2]).open("a") as log:
            log.write(f"{self.path}\n")
        name = self.path.strip("/")
        body, kind = PAGE.format(title=name or "home").encode(), "text/html"
        if name.endswith(".svg"):
            body, kind = PICTURE, "image/svg+xml"
        self.send_response(404 if name == "missing" else 200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Log nothing: `visits` has the requests."""


def main() -> None:
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()


if __name__ == "__main__":
    main()
