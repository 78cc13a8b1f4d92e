"""Return annotations: results of test steps, `Check`, and `Metric[COUNT]`.

A step that returns a `CallResult`, which clients make, or a `CustomResult`, which users make, is a
test. For a type checker, `Check` and `Metric` are the plain types that the method returns.
"""

import inspect
from collections.abc import Mapping
from copy import copy
from functools import lru_cache
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    TypeAlias,
    TypeVar,
    dataclass_transform,
)


class CallResult:
    """Base of what a client call returns."""

    __slots__ = ()
    protocol: ClassVar[str] = ""  # name under `self.client`


@dataclass_transform()
class CustomResult:
    """Base of a user's own result: the step is timed from its call to its return.

        class Transfer(CustomResult):
            bytes_moved: int
            note: str = ""

        return Transfer(bytes_moved=1024)

    Annotations are fields, as those of a dataclass; a subclass may as well be a dataclass or have
    an `__init__` of its own. Set `ok` (or `successful`) to False to count the result as failed, and
    `error` to name its error class in the results; without `error`, `context()` names it. If
    `timings` has the clock values `request_start` and `request_end`, in seconds, the step took the
    time between them.
    """

    ok: bool = True
    error: str | None = None
    timings: Mapping[str, float | None] = MappingProxyType({})

    if TYPE_CHECKING:
        successful: bool = True
    else:

        def __init__(self, *values, **fields):
            if getattr(super().__init__, "__objclass__", None) is not object:
                super().__init__(
                    *values, **fields
                )  # another base makes the instance, such as pydantic's
                return
            known = _fields_of(type(self))
            if values:
                own = [name for name in known if name not in _fields_of(CustomResult)]
                if len(values) > len(own):
                    raise TypeError(
                        f"{type(self).__name__}() has {len(own)} fields: {len(values)} given"
                    )
                fields = {**dict(zip(own, values, strict=False)), **fields}
            for name in fields:
                if name not in known:
                    raise TypeError(f"{type(self).__name__}() has no field {name!r}")
            for name, default in known.items():
                if name in fields:
                    setattr(self, name, fields[name])
                elif default is _REQUIRED:
                    raise TypeError(f"{type(self).__name__}() needs a value for {name!r}")
                elif isinstance(default, dict | list | set):
                    setattr(self, name, copy(default))  # each result has its own

        def __repr__(self) -> str:
            own = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
            return f"{type(self).__name__}({own})"

        @property
        def successful(self):
            """The same as `ok`, under the name that earlier versions use."""
            return bool(self.ok)

        @successful.setter
        def successful(self, value):
            self.ok = bool(value)

    def context(self) -> str:
        """Return what the result was about; names the error class of a failed one."""
        return ""


_REQUIRED = object()


@lru_cache(maxsize=256)
def _fields_of(cls: type) -> dict[str, Any]:
    """Return the annotated names of a result type with their defaults."""
    fields: dict[str, Any] = {"successful": None}
    for base in reversed(cls.__mro__):
        for name, annotation in getattr(base, "__annotations__", {}).items():
            if not name.startswith("_") and "ClassVar" not in str(annotation):
                fields[name] = inspect.getattr_static(cls, name, _REQUIRED)
    return fields


def outcome_of(result: CustomResult, took_ns: int) -> tuple[bool, str | None, int]:
    """Return whether a result is good, the error class if not, and the time that it took."""
    successful: Any = result.successful
    is_ok = bool(result.ok) and bool(successful() if callable(successful) else successful)
    error = None if is_ok else str(result.error or result.context() or "result")
    try:
        began_s, ended_s = result.timings["request_start"], result.timings["request_end"]
        took_ns = round((float(ended_s) - float(began_s)) * 1e9)  # type: ignore[arg-type]  # see below
    except (KeyError, TypeError, ValueError, OverflowError):
        return is_ok, error, took_ns  # no times, or none that can be used: the call was timed
    return is_ok, error, max(0, took_ns)


class CheckMark:
    """Marks a return annotation as a check's."""


class MetricMark:
    """Marks a return annotation as a metric's, with its kind if one is given."""

    def __init__(self, kind: str | None) -> None:
        self.kind = kind


class MetricType:
    """Base of the kinds a metric can be annotated with."""

    kind: ClassVar[str]


class COUNT(MetricType):
    """The sum of the returned numbers."""

    kind = "count"


class RATE(MetricType):
    """The sum of the returned numbers per second of the run."""

    kind = "rate"


class GAUGE(MetricType):
    """The last returned number."""

    kind = "gauge"


class DISTRIBUTION(MetricType):
    """Minimum, mean, maximum and percentiles of the returned numbers."""

    kind = "distribution"


class TIMER(MetricType):
    """Like DISTRIBUTION, of durations in seconds."""

    kind = "timer"


SAMPLE = DISTRIBUTION

Check: TypeAlias = Annotated[bool | None, CheckMark()]

if TYPE_CHECKING:
    _K = TypeVar("_K", bound=MetricType)
    # The alias needs a parameter for the kind, and float as what a method returns.
    Metric: TypeAlias = float | _K
else:

    class Metric:
        """Annotates a custom metric: `-> Metric[GAUGE]`; without a kind it is a COUNT."""

        def __class_getitem__(cls, kind: Any) -> Any:
            return Annotated[float, MetricMark(getattr(kind, "kind", kind))]
