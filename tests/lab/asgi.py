"""Python web applications as real servers: uvicorn, in a thread of the test's process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from tests.lab.waiting import until


@contextmanager
def serving(application: Any) -> Iterator[int]:
    """Serve an ASGI application on a free port of loopback; yields the port."""
    config = uvicorn.Config(application, host="127.0.0.1", port=0, log_level="error", ws="auto")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="uvicorn", daemon=True)
    thread.start()
    until(lambda: server.started, what="uvicorn to serve")
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        thread.join(30)
