"""Hosts and ports as people write them: `host`, `host:9000`, `[::1]:9000`, `::1`."""

import ipaddress
import re

from hyperscale.config import parse_whole
from hyperscale.errors import InputError

DEFAULT_PORT = 9000
_HINT = "write it as host:9000 or [::1]:9000"
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\.?")


def parse_address(text: str, *, default_port: int | None, where: str) -> tuple[str, int]:
    """Return host and port; without a port in `text`, the default port."""
    host, port_text = _split(text.strip())
    if not _is_ip(host) and (text.lstrip().startswith("[") or not _HOST.fullmatch(host)):
        raise InputError(f"{where}: {text!r} is not an address", hint=_HINT)
    if port_text is None:
        if default_port is None:
            raise InputError(f"{where}: {text!r} has no port", hint=_HINT)
        return host, default_port
    port = parse_whole(port_text, low=1, most=65535)
    if port is None:
        raise InputError(f"{where}: {port_text!r} is not a port of 1 to 65535", hint=_HINT)
    return host, port


def format_address(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Return the host and port of an address that `format_address` made."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _split(text: str) -> tuple[str, str | None]:
    """Return the host and the text after it; None if there is none."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, rest.removeprefix(":") if rest else None
    if text.count(":") != 1:  # an IPv6 address without brackets has no port
        return text, None
    host, _, port = text.partition(":")
    return host, port


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
