"""The counts of a target server, read over HTTP: what really arrived there."""

import json
from http.client import HTTPException
from typing import Any
from urllib.request import Request, urlopen

from hyperscale.errors import InputError

_ANSWER_S = 10.0
_HINT = "'hyperscale target' starts a target server and prints its URL"


def read_counts(target_url: str) -> dict[str, Any]:
    """Return what the target has counted; raise `InputError` if it does not answer in JSON."""
    answer = _request(target_url, "/counts", "GET")
    try:
        counts: dict[str, Any] = json.loads(answer)
    except ValueError as error:
        raise InputError(
            f"--target: {target_url} does not answer with its counts in JSON: {error}", hint=_HINT
        ) from error
    return counts


def reset_counts(target_url: str) -> None:
    """Set the counts of the target to zero."""
    _request(target_url, "/counts/reset", "POST")


def _request(url: str, path: str, method: str) -> bytes:
    try:
        request = Request(url.rstrip("/") + path, method=method)  # noqa: S310  the user's URL
        with urlopen(request, timeout=_ANSWER_S) as answer:  # noqa: S310  the user's URL
            body: bytes = answer.read()
    except (OSError, ValueError, HTTPException) as error:
        raise InputError(
            f"--target: the counts of {url} cannot be read: {getattr(error, 'reason', error)}",
            hint=_HINT,
        ) from error
    return body
