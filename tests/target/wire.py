"""A raw client: bytes to the target and back, with nothing in between that is clever."""

import socket
import ssl
from collections.abc import Callable

DEADLINE_S = 10.0


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: test"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class Wire:
    """One connection. What was received and not yet taken is in `received`."""

    def __init__(
        self, port: int, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> None:
        self.received = bytearray()
        self.socket = socket.create_connection((host, port), timeout=DEADLINE_S)
        if tls is not None:
            plain = self.socket
            try:
                self.socket = tls.wrap_socket(plain, server_hostname=host)
            except (OSError, ValueError):
                plain.close()
                raise

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_until(self, enough: Callable[[bytearray], bool]) -> bytearray:
        while not enough(self.received):
            piece = self.socket.recv(1 << 16)
            if not piece:
                raise EOFError(f"closed after {self.received!r}")
            self.received += piece
        return self.received

    def read_to_end(self) -> bytearray:
        while piece := self.socket.recv(1 << 16):
            self.received += piece
        return self.received

    def response(self) -> tuple[int, dict[str, str], bytes]:
        """Takes one response that has a Content-Length."""
        head = self.read_until(lambda data: b"\r\n\r\n" in data).partition(b"\r\n\r\n")[0]
        status_line, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(": ") for line in lines)
        headers = {name.lower(): value for name, _, value in pairs}
        end = len(head) + 4 + int(headers.get("content-length", 0))
        data = self.read_until(lambda data: len(data) >= end)
        body = bytes(data[len(head) + 4 : end])
        del self.received[:end]
        return int(status_line.split()[1]), headers, body
