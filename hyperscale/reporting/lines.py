"""Line formats: InfluxDB's line protocol, StatsD and its dialects, Graphite's plaintext."""

import math
import re
from collections.abc import Mapping

_STATSD_UNSAFE = re.compile(r"[:|@#\s]+")
_STATSD_TAG_UNSAFE = re.compile(r"[,|#\s=:]+")


def influx_line(
    measurement: str, tags: Mapping[str, str], fields: Mapping[str, float], at_unix_ns: int
) -> bytes:
    """Return one line. Tags without a value are left out; a line break becomes a space."""
    head = _escape(measurement, ", ")
    for key, value in sorted(tags.items()):
        if value:
            head += f",{_escape(key, ',= ')}={_escape(value, ',= ')}"
    values = ",".join(f"{_escape(key, ',= ')}={value!r}" for key, value in fields.items())
    return f"{head} {values} {at_unix_ns}\n".encode("utf-8", "replace")


def influx_event(measurement: str, tags: Mapping[str, str], text: str, at_unix_ns: int) -> bytes:
    """Return a line with one field, `text`."""
    head = influx_line(measurement, tags, {}, at_unix_ns).decode().split("  ")[0]
    quoted = _one_line(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'{head} text="{quoted}" {at_unix_ns}\n'.encode("utf-8", "replace")


def _escape(text: str, special: str) -> str:
    text = _one_line(text)
    for char in special:
        text = text.replace(char, f"\\{char}")
    # A backslash at the end would escape what follows.
    return text[:-1] + "/" if text.endswith("\\") else text


def _one_line(text: str) -> str:
    return re.sub(r"[\r\n\t\0]+", " ", text)


def statsd_line(name: str, value: float, kind: str = "g") -> bytes:
    """Return a plain StatsD metric; `kind` is g, c or ms.

    A gauge with a sign is a change of its value, so a negative gauge is first set to 0.
    """
    name = _STATSD_UNSAFE.sub("_", name)
    line = f"{name}:{number(value)}|{kind}\n"
    if kind == "g" and value < 0:
        line = f"{name}:0|g\n{line}"
    return line.encode("utf-8", "replace")


def dogstatsd_line(name: str, value: float, kind: str, tags: Mapping[str, str]) -> bytes:
    """Return a metric in Datadog's dialect: tags behind `#`."""
    shown = ",".join(
        f"{key}:{_STATSD_TAG_UNSAFE.sub('_', tag)}" for key, tag in tags.items() if tag
    )
    name = _STATSD_UNSAFE.sub("_", name)
    return f"{name}:{number(value)}|{kind}{'|#' + shown if shown else ''}\n".encode(
        "utf-8", "replace"
    )


def dogstatsd_event(title: str, text: str, tags: Mapping[str, str]) -> bytes:
    """Return an event in Datadog's dialect."""
    title, text = (part.replace("\n", "\\n") for part in (title, text))
    shown = ",".join(
        f"{key}:{_STATSD_TAG_UNSAFE.sub('_', tag)}" for key, tag in tags.items() if tag
    )
    sizes = f"{len(title.encode())},{len(text.encode())}"
    return f"_e{{{sizes}}}:{title}|{text}|#{shown}\n".encode("utf-8", "replace")


def telegraf_statsd_line(name: str, value: float, kind: str, tags: Mapping[str, str]) -> bytes:
    """Return a metric in Telegraf's dialect: tags behind the name, as in the line protocol."""
    shown = "".join(
        f",{key}={_STATSD_TAG_UNSAFE.sub('_', tag)}" for key, tag in tags.items() if tag
    )
    name = _STATSD_UNSAFE.sub("_", name)
    return f"{name}{shown}:{number(value)}|{kind}\n".encode("utf-8", "replace")


def graphite_line(path: str, value: float, at_unix_s: int) -> bytes:
    return f"{path} {number(value)} {at_unix_s}\n".encode("utf-8", "replace")


def number(value: float) -> str:
    """Return a number without exponent, exact enough to be read back as the same float."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    text = repr(float(value))
    return text if "e" not in text else f"{value:.20f}".rstrip("0").rstrip(".")
