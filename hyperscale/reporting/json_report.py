"""A result as JSON, and back."""

import msgspec

from hyperscale.errors import InputError
from hyperscale.reporting.results import SCHEMA_VERSION, RunResult


def encode_json(result: RunResult, *, indent: int = 0) -> bytes:
    """Return the result as one line, or indented by `indent` spaces."""
    encoded = msgspec.json.encode(result)
    if indent > 0:
        encoded = msgspec.json.format(encoded, indent=indent)
    return encoded + b"\n"


def decode_json(content: bytes, *, where: str = "result") -> RunResult:
    """Return the result that `encode_json` wrote. Raises InputError for another schema version."""
    try:
        version = msgspec.json.decode(content, type=_Versioned).schema
        if version != SCHEMA_VERSION:
            raise InputError(
                f"{where}: schema {version} is not {SCHEMA_VERSION}",
                hint="read it with the version of hyperscale that wrote it",
            )
        return msgspec.json.decode(content, type=RunResult)
    except msgspec.DecodeError as error:
        raise InputError(f"{where}: not a hyperscale result: {error}") from error


class _Versioned(msgspec.Struct):
    schema: int
