"""What the clients that transfer files share: paths, contents, and the limit of a download."""

from posixpath import join
from typing import Any, TypeVar

from hyperscale.clients.library import Respond
from hyperscale.errors import InputError
from hyperscale.testing.responses import TransferResponse

KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes of a file that a download keeps."""
CHUNK_BYTES = 256 * 1024
ENTRIES_MAX = 100_000
"""Most entries of a directory that a listing returns."""

_R = TypeVar("_R", bound=TransferResponse)


class Download:
    """The bytes of a file as they arrive: kept up to the limit, or only counted."""

    __slots__ = ("_chunks", "_keep", "size")

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._chunks: list[bytes] = []
        self.size = 0

    def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if not self._keep:
            return
        if self.size > KEPT_BYTES_MAX:
            raise ValueError(
                f"download: the file has more than {KEPT_BYTES_MAX:,} bytes; "
                "keep=False counts them without keeping them"
            )
        self._chunks.append(chunk)

    @property
    def content(self) -> bytes | None:
        return b"".join(self._chunks) if self._keep else None


def received(kind: type[_R]) -> Respond[_R]:
    """Return what makes the response of a finished download."""

    def respond(download: Any, *times: Any) -> _R:
        response = kind(download.content, *times)
        response.bytes_received = download.size
        return response

    return respond


def carried(kind: type[_R], content: bytes) -> Respond[_R]:
    """Return what makes the response of a finished upload."""

    def respond(value: Any, *times: Any) -> _R:
        response = kind(value, *times)
        response.bytes_sent = len(content)
        return response

    return respond


def content_of(data: bytes | str) -> bytes:
    """Return the bytes to upload; a text is encoded as UTF-8."""
    if isinstance(data, str):
        return data.encode()
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InputError(f"upload: the data is a {type(data).__name__}, neither bytes nor a text")
    return bytes(data)


def path_under(base: str, path: str) -> str:
    """Return a path below the path of the URL; a path with a leading slash stands for itself."""
    if not isinstance(path, str) or any(ord(sign) < 0x20 for sign in path):
        raise InputError(f"{path!r} is not a path", hint="a text without control characters")
    return join(base, path) if base else path
