"""What every reporter's configuration has: delivery settings, credentials, where it sends to.

A configuration is data: frozen, with units in its names. A field marked as a credential is never
shown. Fields that name an environment variable are filled from it by `reporter_config`, for
reporters that are named on the command line or in a configuration file; a configuration that is
made in Python takes exactly what it is given.
"""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, ClassVar, get_type_hints
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Meta, Struct

from hyperscale.errors import InputError

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
SECONDS_MAX = 3600.0


def credential(variable: str) -> Meta:
    """Mark a field as secret; `variable` is the environment variable it is read from."""
    return Meta(extra={"variable": variable, "is_secret": True})


def from_environment(variable: str) -> Meta:
    """Mark a field that is read from an environment variable unless it is given."""
    return Meta(extra={"variable": variable, "is_secret": False})


class DeliverySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a reporter delivers: in batches, each tried again until the deadline."""

    EXTRA: ClassVar[str] = ""  # the extra of the package that installs its driver
    DRIVERS: ClassVar[tuple[str, ...]] = ()  # modules it imports beyond the core install

    batch_items_max: int = 500  # metrics in one request or statement
    items_max: int = 100_000  # metrics of one result that are sent; the rest is counted as lost
    request_timeout_s: float = 10.0  # of one try
    deadline_s: float = 25.0  # of the whole delivery, retries included
    retry_first_s: float = 0.25  # pause after the first try; doubles after each
    retry_max_s: float = 5.0  # longest pause

    def __post_init__(self) -> None:
        kind = type(self).__name__
        for name in ("batch_items_max", "items_max"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{kind}: {name}={value!r} must be a whole number, 1 or more")
        for name in ("request_timeout_s", "deadline_s", "retry_first_s", "retry_max_s"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value <= SECONDS_MAX:
                raise InputError(f"{kind}: {name}={value!r} must be seconds, up to 3600")
        self.check()

    def check(self) -> None:
        """Raise InputError if fields contradict each other or are incomplete."""

    @classmethod
    def of_address(cls, address: str) -> dict[str, Any]:
        """Return the fields that `NAME=ADDRESS` on the command line stands for."""
        return {"url": address}

    def drivers(self) -> tuple[str, ...]:
        """Return the modules that this configuration needs."""
        return self.DRIVERS

    def preflight(self) -> None:
        """Raise InputError if a driver is not installed. Imports nothing."""
        for module in self.drivers():
            if find_spec(module) is None:
                raise InputError(
                    f"{type(self).__name__} needs the Python package {module}",
                    hint=f"pip install 'hyperscale[{self.EXTRA}]'",
                )

    def secrets(self) -> list[str]:
        """Return the values that no message may show."""
        return [
            value
            for name, marks in marked_fields(type(self)).items()
            if marks["is_secret"] and (value := getattr(self, name))
        ]

    def __repr__(self) -> str:
        marks = marked_fields(type(self))
        shown = ", ".join(
            f"{name}='***'"
            if value and marks.get(name, {}).get("is_secret")
            else f"{name}={value!r}"
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not None
        )
        return f"{type(self).__name__}({shown})"


def marked_fields(config_type: type[Struct]) -> dict[str, dict[str, Any]]:
    """Return the marks of the fields that are credentials or have an environment variable."""
    found = {}
    for name, hint in get_type_hints(config_type, include_extras=True).items():
        for meta in getattr(hint, "__metadata__", ()):
            if isinstance(meta, Meta) and meta.extra and "variable" in meta.extra:
                found[name] = meta.extra
    return found


def host_and_more(address: str) -> dict[str, Any]:
    """Read `[user@]host[:port][/database]`, for configurations with these fields."""
    parts = urlsplit(address if "//" in address else f"//{address}")
    if parts.password:
        raise InputError(
            f"the address of {parts.hostname} contains a password",
            hint="put it into the environment or a configuration file: a command line is public",
        )
    try:
        found = {"host": parts.hostname, "port": parts.port, "username": parts.username}
    except ValueError as error:
        raise InputError(f"{address!r} is not an address: {error}") from error
    found["database"] = unquote(parts.path.strip("/"))
    return {name: value for name, value in found.items() if value}


def refuse_password(url: str, *, where: str) -> None:
    """Raise InputError for a URL with a password in it."""
    if urlsplit(url).password:
        raise InputError(
            f"{where}: the URL contains a password",
            hint="use the configuration's own fields for credentials",
        )


def check_url(config: Struct, url: str, *, name: str = "url") -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(
            f"{type(config).__name__}: {name}={url!r} is not an http or https URL",
            hint="as in https://metrics.example.com:8086",
        )
    refuse_password(url, where=f"{type(config).__name__}.{name}")


def check_identifier(config: Struct, text: str, *, name: str) -> None:
    """Refuse a name of a table or column that would need quoting."""
    if not _IDENTIFIER.fullmatch(text):
        raise InputError(
            f"{type(config).__name__}: {name}={text!r} must be letters, digits and underscores, "
            "63 at most"
        )


def check_given(config: Struct, *names: str) -> None:
    """Refuse a configuration that lacks one of the named fields."""
    for name in names:
        if not getattr(config, name):
            marks = marked_fields(type(config)).get(name)
            variable = f" or the environment variable {marks['variable']}" if marks else ""
            raise InputError(
                f"{type(config).__name__}: {name} is missing", hint=f"set {name}{variable}"
            )


def convert(
    config_type: type[Struct],
    fields: Mapping[str, Any],
    *,
    where: str,
    environment: Mapping[str, str],
) -> Struct:
    """Return a configuration from text and tables; `where` names their source in errors."""
    known = {field.encode_name for field in msgspec.structs.fields(config_type)}
    for name in fields:
        if name not in known:
            raise InputError(
                f"{where}: unknown setting {name}", hint=f"known are {', '.join(sorted(known))}"
            )
    given = dict(fields)
    for name, marks in marked_fields(config_type).items():
        if name not in given and environment.get(marks["variable"]):
            given[name] = environment[marks["variable"]]
    try:
        return msgspec.convert(given, config_type, strict=False)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        text = cause.message if isinstance(cause, InputError) else str(error)
        hint = cause.hint if isinstance(cause, InputError) else ""
        raise InputError(f"{where}: {text}", hint=hint) from error
