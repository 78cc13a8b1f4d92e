"""Parameters of a test: values that are set when the test is run.

    base = Param("https://shop.test")            # --set base=https://staging.shop.test
    token = Param(secret=True)                   # HYPERSCALE_SET_TOKEN=…

`Param` returns the value itself, as a plain `str`, `int`, `float` or `bool`: the values are known
before the file is imported, so a parameter can be used wherever a value can, f-strings and defaults
of steps included, and costs nothing while the load runs. A `ParameterScope` has the values of one
test; while none is open, `Param` returns the default and notes the parameter.
"""

import base64
import contextlib
import difflib
import dis
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias, TypeVar, overload
from urllib.parse import quote, quote_plus

from hyperscale.errors import HyperscaleError, InputError

ParameterValue: TypeAlias = str | int | float | bool

MASK = "***"
VALUE_BYTES_MAX = 64 * 1024
SECRET_CHARS_MIN = 4
"""A shorter text occurs in too many others to be masked."""

_T = TypeVar("_T", str, bool, int, float)
_KINDS: dict[type, str] = {str: "a text", int: "a whole number", float: "a number", bool: "a bool"}
_BOOLS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_INT_MAX = 2**63 - 1
_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter, as its file declares it."""

    name: str
    kind: type
    default: ParameterValue | None  # None: required
    is_secret: bool
    place: str  # file and line


@dataclass(frozen=True, slots=True)
class GivenParameters:
    """The values that a test is run with, before they are checked against its parameters."""

    values: Mapping[str, object] = field(default_factory=dict)
    where: str = "params: "  # what the user wrote before the name, for messages
    # Values of the environment by upper-case name. They count if `values` has none; a test need not
    # have a parameter of such a name.
    environment: Mapping[str, str] = field(default_factory=dict)
    environment_prefix: str = ""


@overload
def Param(default: _T, *, secret: bool = False, name: str = "") -> _T: ...
@overload
def Param(*, secret: bool = False, name: str = "") -> str: ...
@overload
def Param(*, type: type[_T], secret: bool = False, name: str = "") -> _T: ...
def Param(  # noqa: N802 - it reads as a declaration
    default: Any = _REQUIRED,
    *,
    type: type = str,  # noqa: A002 - public
    secret: bool = False,
    name: str = "",
) -> Any:
    """Declare a parameter and return its value; write it as `base = Param("https://shop.test")`.

    `hyperscale run`, `check` and `submit` set it with `--set base=…` or the environment variable
    `HYPERSCALE_SET_BASE`, Python with `params={"base": …}`. Its type is that of the default;
    without a default (`Param()`, `Param(type=int)`) it has to be set. A `secret` is shown as `***`
    wherever its value appears and is deleted with its job.
    """
    frame = sys._getframe(1)
    kind = type if default is _REQUIRED else default.__class__
    parameter = Parameter(
        name=name or _assigned_name(frame),
        kind=kind,
        default=None if default is _REQUIRED else default,
        is_secret=secret,
        place=f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}",
    )
    _check_declaration(parameter)
    module = str(frame.f_globals.get("__name__", ""))
    _declared.setdefault(module, {})[parameter.name, parameter.place] = parameter
    if _scope is not None:
        return _scope.resolve(parameter)
    return kind() if parameter.default is None else parameter.default


def _assigned_name(frame: FrameType) -> str:
    """Return the name that the running statement assigns to, in a module or a class body."""
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset > frame.f_lasti:
            if instruction.opname in ("STORE_NAME", "STORE_GLOBAL"):
                return str(instruction.argval)
            break
    raise InputError(
        "a Param has to be assigned to a name of its own, at the top of a file or in a class",
        hint='write base = Param("https://shop.test")',
    )


def _check_declaration(parameter: Parameter) -> None:
    name = parameter.name
    if not name.isidentifier():
        raise InputError(f"Param: {name!r} is not a name", hint="letters, digits and underscores")
    if parameter.kind not in _KINDS:
        kinds = ", ".join(kind.__name__ for kind in _KINDS)
        raise InputError(
            f"parameter {name!r}: a {parameter.kind.__name__} cannot be set from outside",
            hint=f"a default is one of {kinds}",
        )
    if parameter.is_secret and parameter.kind is not str:
        raise InputError(f"parameter {name!r}: a secret is a text", hint="convert it where used")
    if parameter.default not in (None, ""):
        _check_value(parameter, parameter.default, where=f"the default of parameter {name!r}")


# --- values ------------------------------------------------------------------------------


class ParameterScope:
    """Gives the parameters of one test their values while its code is imported."""

    def __init__(self, given: GivenParameters | None = None) -> None:
        self._given = given or GivenParameters()
        self._declared: dict[str, Parameter] = {}
        self.values: dict[str, ParameterValue] = {}

    def resolve(self, parameter: Parameter) -> ParameterValue:
        """Return the value of a parameter. Raises InputError."""
        name = parameter.name
        known = self._declared.setdefault(name, parameter)
        alike = (parameter.kind, parameter.default, parameter.is_secret)
        if (known.kind, known.default, known.is_secret) != alike:
            raise InputError(
                f"parameter {name!r} is also declared at {known.place}, with another default",
                hint="declare it once and import it, or rename one of them",
            )
        if name not in self.values:
            self.values[name] = self._value_of(parameter)
        return self.values[name]

    def _value_of(self, parameter: Parameter) -> ParameterValue:
        name, given = parameter.name, self._given
        if name in given.values:
            return _parse(parameter, given.values[name], where=f"{given.where}{name}")
        if name.upper() in given.environment:
            where = f"{given.environment_prefix}{name.upper()}"
            return _parse(parameter, given.environment[name.upper()], where=where)
        if parameter.default is not None:
            return parameter.default
        near = difflib.get_close_matches(name, list(given.values), n=1)
        instead = f", not {near[0]}" if near else ""
        raise InputError(
            f"parameter {name!r} has no default and was not set",
            hint=f'give it with --set {name}=…{instead} (in Python: params={{"{name}": …}})',
        )

    def refuse_unknown(self, where: str) -> None:
        """Raise InputError if a value was given to a parameter that the test does not have."""
        for name in self._given.values:
            if name not in self._declared:
                near = difflib.get_close_matches(str(name), list(self._declared), n=1)
                hint = f"the file has {', '.join(self._declared)}"
                if near:
                    hint = f"did you mean {near[0]}?"
                elif not self._declared:
                    hint = f"declare it in the file: {name} = Param(…)"
                what = f"{self._given.where}{name}"
                raise InputError(f"{what}: {where} has no such parameter", hint=hint)

    def unused(self) -> list[str]:
        """Return a warning for each variable of the environment that no parameter takes."""
        known = {name.upper() for name in self._declared}
        return [
            f"{self._given.environment_prefix}{name} is set, but the test has no such parameter"
            for name in self._given.environment
            if name not in known
        ]

    @property
    def secrets(self) -> dict[str, str]:
        return {
            name: str(self.values[name])
            for name, parameter in self._declared.items()
            if parameter.is_secret and name in self.values
        }

    @property
    def shown(self) -> dict[str, ParameterValue]:
        """All values, with secrets masked."""
        return self.values | dict.fromkeys(self.secrets, MASK)


def _parse(parameter: Parameter, given: object, *, where: str) -> ParameterValue:
    value = given
    if isinstance(given, str) and parameter.kind is not str:
        value = _parse_text(given.strip(), parameter.kind)
    elif isinstance(given, int) and not isinstance(given, bool) and parameter.kind is float:
        value = float(given)
    if value.__class__ is not parameter.kind:
        shown = "its value" if parameter.is_secret else f"{given!r}"[:100]
        raise InputError(
            f"{where}: {shown} is not {_KINDS[parameter.kind]}",
            hint=f"its default at {parameter.place} is {parameter.default!r}"
            if parameter.default is not None and not parameter.is_secret
            else f"see {parameter.place}",
        )
    _check_value(parameter, value, where=where)
    return value  # type: ignore[return-value]  # its class is one of `_KINDS`


def _parse_text(text: str, kind: type) -> object:
    """Return the number or bool that a text is, or the text itself."""
    try:
        return _BOOLS.get(text.lower(), text) if kind is bool else kind(text)
    except ValueError:
        return text


def _check_value(parameter: Parameter, value: object, *, where: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{where}: {value!r} is not a finite number")
    if isinstance(value, int) and abs(value) > _INT_MAX:
        raise InputError(f"{where}: the number needs more than 64 bits")
    if not isinstance(value, str):
        return
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InputError(f"{where}: the value is not UTF-8") from None
    if size > VALUE_BYTES_MAX:
        raise InputError(
            f"{where}: the value has {size:,} bytes, more than {VALUE_BYTES_MAX:,}",
            hint="put it into a file: `File` is a request part",
        )
    if parameter.is_secret and len(value) < SECRET_CHARS_MIN:
        raise InputError(
            f"{where}: a secret needs at least {SECRET_CHARS_MIN} characters",
            hint="a shorter one could not be masked where it appears in other text",
        )


# --- the open scope ----------------------------------------------------------------------

# Parameters of this process, by module and then by name and place.
_declared: dict[str, dict[tuple[str, str], Parameter]] = {}
_scope: ParameterScope | None = None


@contextlib.contextmanager
def resolving(scope: ParameterScope) -> Iterator[ParameterScope]:
    """Have every `Param` take its value from `scope`. Errors raised meanwhile are masked."""
    before = _scope
    install_scope(scope)
    try:
        yield scope
    except HyperscaleError as error:
        mask = Mask(scope.secrets.values())
        message, hint = mask.text(error.message), mask.text(error.hint)
        if (message, hint) == (error.message, error.hint):
            raise
        raise type(error)(message, hint=hint) from None
    finally:
        install_scope(before)


def install_scope(scope: ParameterScope | None) -> None:
    """Have every `Param` take its value from `scope` from now on."""
    global _scope  # noqa: PLW0603 - imports are a state of the process
    _scope = scope


def declared_in(modules: Iterable[str]) -> list[Parameter]:
    """Return the parameters that these modules have declared, in any scope or none."""
    return [each for module in modules for each in _declared.get(module, {}).values()]


def is_declared_anywhere() -> bool:
    """Return True if any module of this process has declared a parameter."""
    return bool(_declared)


# --- masks -------------------------------------------------------------------------------


class Mask:
    """Replaces secrets in text, also quoted, escaped, in base64 or cut into lines."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms: set[str] = set()
        for secret in secrets:
            for one in (secret, *secret.splitlines()):
                forms |= {one, quote(one), quote(one, safe=""), quote_plus(one)}
                forms |= {json.dumps(one)[1:-1], repr(one)[1:-1], *_in_base64(one)}
        # The longest first: one form may be part of another.
        self.forms = sorted((f for f in forms if len(f) >= SECRET_CHARS_MIN), key=len)[::-1]
        self._encoded = [form.encode() for form in self.forms]
        self.bytes_max = max(map(len, self._encoded), default=0)

    def text(self, text: str) -> str:
        for form in self.forms:
            text = text.replace(form, MASK)
        return text

    def payload(self, payload: bytes) -> bytes:
        for form in self._encoded:
            payload = payload.replace(form, MASK.encode())
        return payload


def _in_base64(secret: str) -> Iterator[str]:
    """Yield what a secret looks like in the base64 of a longer text, such as `user:secret`."""
    for before in range(3):  # bytes before it in its group of three
        payload = bytes(before) + secret.encode()
        # Without the characters at either end that also depend on the bytes around the secret.
        whole = base64.b64encode(payload)[-(-before * 8 // 6) : len(payload) * 8 // 6]
        if len(whole) > SECRET_CHARS_MIN:
            yield whole.decode()


_mask = Mask()


def install_mask(mask: Mask) -> None:
    """Have `masked` replace these secrets from now on: in an executor, those of its slot."""
    global _mask  # noqa: PLW0603 - an executor runs one slot at a time
    _mask = mask


def masked(text: str) -> str:
    """Return a text without the secrets of the slot that this executor runs."""
    return _mask.text(text)


def masked_payload(payload: bytes) -> bytes:
    """Return output without the secrets of the slot that this executor runs."""
    return _mask.payload(payload)
