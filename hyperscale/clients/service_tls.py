"""The option `?tls=` of a service URL: whether a plain connection is encrypted before the login."""

import ssl
from functools import lru_cache
from urllib.parse import parse_qs

from hyperscale.errors import InputError
from hyperscale.testing.protocols import ServiceUrl

_MODES = ("disabled", "required", "verify")


def wanted_tls(url: ServiceUrl) -> ssl.SSLContext | None:
    """Return the TLS settings that the URL asks for; None for a plain connection."""
    mode = parse_qs(url.query).get("tls", ["disabled"])[0]
    if mode not in _MODES:
        raise InputError(
            f"{url.shown}: tls={mode!r} is unknown", hint=f"one of {', '.join(_MODES)}"
        )
    return None if mode == "disabled" else tls_context(verify=mode == "verify")


@lru_cache(maxsize=2)
def tls_context(*, verify: bool) -> ssl.SSLContext:
    """Return TLS settings with or without a check of the server's certificate."""
    # Made once: reading the system's certificates takes milliseconds.
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
