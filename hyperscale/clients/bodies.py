"""Encodes request bodies: JSON, forms, multipart, text, bytes and chunks."""

import secrets
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from hyperscale.errors import InputError
from hyperscale.testing.arguments import FileContent, FilesValue

_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"
_TEXT = "text/plain; charset=utf-8"
_BYTES = "application/octet-stream"


class Body(NamedTuple):
    content: bytes
    content_type: str | None
    chunked: bool = False


def encode_data(data: object) -> Body:
    """Encode `data=`: text and bytes as they are, an iterator in chunks, all else as JSON."""
    if isinstance(data, FileContent):
        return Body(bytes(data), data.content_type)
    if isinstance(data, str):
        return Body(data.encode(), _TEXT)
    if isinstance(data, bytes | bytearray | memoryview):
        return Body(bytes(data), _BYTES)
    if hasattr(data, "__next__") and isinstance(data, Iterable):
        return Body(_in_chunks(data), _BYTES, chunked=True)
    return encode_json(data)


def encode_json(value: object) -> Body:
    try:
        return Body(msgspec.json.encode(value), _JSON)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"a {type(value).__name__} cannot be sent as JSON: {error}",
            hint="give a dict, list, dataclass or msgspec Struct, a str or bytes",
        ) from error


def encode_form(fields: Mapping[str, Any]) -> Body:
    return Body(encode_pairs(fields).encode("ascii"), _FORM)


def encode_pairs(fields: Mapping[str, Any]) -> str:
    """Encode as `a=1&b=2`; a list repeats its name, None leaves it out."""
    return urlencode({name: v for name, v in fields.items() if v is not None}, doseq=True)


def encode_multipart(
    files: Mapping[str, Any] | FilesValue, fields: Mapping[str, Any] | None
) -> Body:
    """Encode as multipart/form-data; a file is bytes, a `File`, or (name, bytes[, type])."""
    if not isinstance(files, Mapping | FilesValue):
        raise InputError(
            f"files: a {type(files).__name__} has no names",
            hint='write {"name": file}, or give a Directory or a FileGlob',
        )
    parts = files.items() if isinstance(files, Mapping) else (("file", each) for each in files)
    boundary = f"hyperscale-{secrets.token_hex(12)}"
    out = bytearray()
    for name, value in (fields or {}).items():
        for one in value if isinstance(value, list | tuple) else (value,):
            out += _part_head(boundary, f'name="{_quoted(name)}"', None)
            out += one if isinstance(one, bytes) else str(one).encode()
            out += b"\r\n"
    for name, value in parts:
        filename, content, kind = _file_of(name, value)
        about = f'name="{_quoted(name)}"; filename="{_quoted(filename)}"'
        out += _part_head(boundary, about, kind)
        out += content
        out += b"\r\n"
    out += f"--{boundary}--\r\n".encode()
    return Body(bytes(out), f"multipart/form-data; boundary={boundary}")


def _file_of(name: str, value: object) -> tuple[str, bytes, str]:
    match value:
        case FileContent():
            return value.filename, bytes(value), value.content_type
        case bytes():
            return name, value, _BYTES
        case str():
            return name, value.encode(), _TEXT
        case (str(filename), bytes(content)):
            return filename, content, _BYTES
        case (str(filename), bytes(content), str(kind)):
            return filename, content, kind
    raise InputError(
        f"files[{name!r}]: a {type(value).__name__} is not a file",
        hint='give bytes, a File, or ("name.txt", b"content", "text/plain")',
    )


def _part_head(boundary: str, about: str, kind: str | None) -> bytes:
    line = f"Content-Type: {kind}\r\n" if kind else ""
    return f"--{boundary}\r\nContent-Disposition: form-data; {about}\r\n{line}\r\n".encode()


def _quoted(name: str) -> str:
    """Escape a name as browsers do."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _in_chunks(pieces: Iterable[object]) -> bytes:
    out = bytearray()
    for piece in pieces:
        content = piece.encode() if isinstance(piece, str) else piece
        if not isinstance(content, bytes | bytearray):
            raise InputError(f"a chunk of a body is {type(piece).__name__}, not bytes")
        if content:  # an empty chunk would end the body
            out += f"{len(content):x}\r\n".encode() + content + b"\r\n"
    return bytes(out + b"0\r\n\r\n")
