"""An HTTP endpoint that reporters write to."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.lab.waiting import WAIT_S


class Receiver:
    """An HTTP endpoint that keeps what is written, or holds its answers."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.tokens: set[str] = set()
        self.answers = threading.Event()
        self.answers.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.tokens.add(self.headers["Authorization"])
                receiver.bodies.append(body)
                receiver.answers.wait(WAIT_S)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()
