"""Refuses attributes that look like a setting under another name.

A class may have attributes of its own, so a name alone proves nothing. An attribute is refused if
all of this holds: its name is close to the name of a setting, or is what k6, Locust or an earlier
Hyperscale call it; its value could be that setting; no code of the class reads it; and it is not
the value of the real one too.
"""

import difflib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from types import CodeType, FunctionType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hyperscale.errors import InputError
from hyperscale.graph.hooks import Declared
from hyperscale.graph.reading import Reading
from hyperscale.graph.settings import ATTRIBUTES, TAKEN, is_method, own_attributes
from hyperscale.graph.workflow import COMING_ATTRIBUTES, Workflow

# What other tools, and earlier versions, call a setting; in lower case, without underscores.
_OTHER_NAMES = {
    "vus": "users usercount numusers numberofusers virtualusers fixedcount concurrency batchsize",
    "duration": "runtime totaltime testduration maxduration durationseconds",
    "interval": "pacing constantpacing batchinterval",
    "think": "thinktime waittime wait minwait maxwait pause delay sleep",
    "timeout": "requesttimeout connecttimeout connectiontimeout networktimeout httptimeout",
    "iterations": "maxiterations numiterations iterationcount loops repeat",
    "thresholds": "threshold limits slo slos sla slas",
    "connections": "noconnectionreuse resetconnections keepalive reuseconnections",
    "grace": "gracefulstop gracefulrampdown stoptimeout graceperiod",
    "rate": "rps requestspersecond arrivalrate targetrate throughput qps",
    "max_vus": "maxusers preallocatedvus maxconcurrency",
    "warmup": "warmuptime warmupduration",
    "stages": "spawnrate hatchrate rampup rampupduration ramp ramptime rampdown startvus",
}
_SETTING = {name: setting for setting, names in _OTHER_NAMES.items() for name in names.split()}
_CUTOFF = 0.8

# Names that have no setting here: name -> the type of its value, and what to do instead.
_WITHOUT_SETTING: dict[str, tuple[type | tuple[type, ...], str]] = {
    "host": (str, "a workflow has no host: write the whole URL in each step"),
    "tasks": ((list, dict), "mark each task with @step()"),
    "options": (dict, "set vus, duration, thresholds and the others as attributes of the class"),
    "scenarios": (dict, "write one class for each scenario"),
}
# Methods that other tools call by their name: name -> the decorator that does it here.
_CALLED_BY_NAME = {
    "onstart": "setup",
    "onstop": "teardown",
    "setup": "setup",
    "teardown": "teardown",
}


def refuse_misspelt(reading: Reading) -> None:
    """Raise InputError for the first attribute that looks like a misspelt setting."""
    reads = _names_read(reading.cls)
    for name, value in own_attributes(reading).items():
        is_own = name in TAKEN or name in COMING_ATTRIBUTES or name in reads
        if name.startswith("_") or is_own or isinstance(value, Declared):
            continue
        plain = name.replace("_", "").lower()
        if is_method(value):
            _refuse_method(reading, name, plain)
            continue
        if plain in _WITHOUT_SETTING:
            kind, remedy = _WITHOUT_SETTING[plain]
            if isinstance(value, kind):
                raise InputError(f"{reading.at(name)}: not a setting", hint=remedy)
        elif setting := _meant(plain):
            is_its_value = getattr(reading.cls, setting, None) is value  # `vus = VUS`
            if not is_its_value and _could_be(setting, value):
                raise InputError(
                    f"{reading.at(name)}: not a setting; the setting is called {setting!r}",
                    hint=_remedy(name, setting),
                )


def _refuse_method(reading: Reading, name: str, plain: str) -> None:
    if decorator := _CALLED_BY_NAME.get(plain):
        raise InputError(
            f"{reading.at(name)}: nothing calls this method",
            hint=f"put @{decorator}() above it",
        )
    if plain == "waittime":
        raise InputError(
            f"{reading.at(name)}: not a setting; the setting is called 'think'",
            hint='write think = ("1s", "3s"): a user pauses that long between iterations',
        )


def _meant(plain: str) -> str | None:
    """Return the setting that a name, in lower case without underscores, probably means."""
    if plain in _SETTING:
        return _SETTING[plain]
    known = {name.replace("_", ""): name for name in (*ATTRIBUTES, *COMING_ATTRIBUTES, "abstract")}
    near = difflib.get_close_matches(plain, known, n=1, cutoff=_CUTOFF)
    return known[near[0]] if near else None


def _remedy(name: str, setting: str) -> str:
    if setting in ATTRIBUTES or setting == "abstract":
        return f"rename it; a value of your own that steps read as self.{name} is fine"
    return f"{setting!r} is not supported yet: remove it, it has no effect"


def _could_be(setting: str, value: object) -> bool:
    """Return True if the type of the value is one that the setting takes."""
    if isinstance(value, str) and value.strip().isdecimal():
        return True  # a count may be text
    if setting == "abstract":
        return isinstance(value, bool)
    types = _TYPES.get(setting) or _types_of(_HINTS.get(setting, str | int | float))
    if isinstance(value, bool) and bool not in types:
        return setting == "connections"  # `noConnectionReuse = True`
    return isinstance(value, types)


def _types_of(annotation: Any) -> tuple[type, ...]:
    """Return the types of an annotation, without None."""
    is_union = get_origin(annotation) in (Union, UnionType)
    parts = get_args(annotation) if is_union else (annotation,)
    types = [
        str if get_origin(part) is Literal else get_origin(part) or part
        for part in parts
        if part is not type(None)
    ]
    return (*types, int) if float in types else tuple(types)


_HINTS = get_type_hints(Workflow)
_TYPES: dict[str, tuple[type, ...]] = {
    # A pause may be a range; limits may be written as lists or texts elsewhere.
    "interval": (str, int, float, tuple, list),
    "think": (str, int, float, tuple, list),
    "rate": (str, int, float),
    "thresholds": (Mapping, list, tuple),
    "stages": (str, int, float, list, tuple),
    "tags": (str, Collection),
}


def _names_read(cls: type) -> set[str]:
    """Return every name that the code of the class, or of its module, reads as an attribute."""
    holders: list[Any] = [c for c in cls.__mro__ if c not in (Workflow, object)]
    modules = {holder.__module__ for holder in holders}
    holders += [sys.modules[name] for name in modules if name in sys.modules]
    found: set[str] = set()
    for holder in holders:
        for value in list(vars(holder).values()):
            for function in _functions(value):
                if function.__module__ in modules:
                    found.update(_names(function.__code__))
    return found


def _functions(value: object) -> Iterator[FunctionType]:
    inner: tuple[object, ...] = (value,)
    if isinstance(value, Declared):
        inner = (value.function,)
    elif isinstance(value, staticmethod | classmethod):
        inner = (value.__func__,)
    elif isinstance(value, property):
        inner = (value.fget, value.fset)
    for one in inner:
        written: Callable[..., Any] | None = getattr(one, "__wrapped__", None)
        yield from (each for each in (one, written) if isinstance(each, FunctionType))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        elif isinstance(constant, str) and "getattr" in code.co_names:
            yield constant
