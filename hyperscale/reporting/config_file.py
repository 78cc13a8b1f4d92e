"""Reporters and streams that are named outside a test: on the command line, or in a TOML file.

    [reporters.influxdb]
    url = "http://metrics.example.com:8086"
    bucket = "load"
    token = "${INFLUX_TOKEN}"

    [reporters.archive]
    type = "s3"
    bucket = "results"

The name of a table is the type of the reporter unless it has a `type`; streams are tables
`[streams.NAME]`. Text may name environment variables. The file and the environment are arguments;
this module reads the file and nothing else.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from hyperscale.errors import InputError
from hyperscale.reporting.reporter import Reporter, ReporterTypes, config_type
from hyperscale.reporting.settings import DeliverySettings, convert
from hyperscale.reporting.streams.hub import LiveStream

_FILE_BYTES_MAX = 1024 * 1024
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
NAMED_TYPES = {each.value: each for each in ReporterTypes if each is not ReporterTypes.Custom}

STREAM_TYPES = {  # type -> module under hyperscale.reporting.streams, configuration class
    "otlp": ("otlp", "OTLPStreamConfig"),
    "prometheus": ("prometheus", "PrometheusStreamConfig"),
    "scrape": ("prometheus", "ScrapeStreamConfig"),
    "influxdb": ("lines", "InfluxDBStreamConfig"),
    "statsd": ("lines", "StatsDStreamConfig"),
    "dogstatsd": ("lines", "DogStatsDStreamConfig"),
    "jsonl": ("lines", "JSONLinesStreamConfig"),
}

AnyReporter = Reporter[Any]
Tables = Mapping[str, Mapping[str, Any]]


def read_tables(file: Path, section: str) -> Tables:
    """Return the tables of one section of a file."""
    try:
        with file.open("rb") as stream:
            data = stream.read(_FILE_BYTES_MAX + 1)
        if len(data) > _FILE_BYTES_MAX:
            raise InputError(f"{file} has more than {_FILE_BYTES_MAX} bytes")
        content = tomllib.loads(data.decode())
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{file} is not TOML: {error}") from error
    for name, tables in content.items():
        if name not in ("reporters", "streams"):
            raise InputError(
                f"{file}: unknown section [{name}]", hint="use [reporters.NAME] or [streams.NAME]"
            )
        if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
            raise InputError(f"{file}: [{name}] must have tables", hint=f"as in [{name}.NAME]")
    found: Tables = content.get(section, {})
    return found


def load_reporters(
    named: Sequence[str],
    file: Path | None,
    environment: Mapping[str, str],
    *,
    flag: str = "--to",
) -> tuple[AnyReporter, ...]:
    """Return the reporters named by a flag, `NAME` or `NAME=ADDRESS`; without any, all of the file.

    A name is that of a table of the file, or a type of reporter with its defaults.
    """
    found = []
    for kind, config in _configs("reporter", named, file, environment, flag):
        reporter = Reporter(NAMED_TYPES[kind], config)
        reporter.preflight()
        found.append(reporter)
    return tuple(found)


def load_streams(
    named: Sequence[str],
    file: Path | None,
    environment: Mapping[str, str],
    *,
    flag: str = "--stream",
) -> tuple[LiveStream, ...]:
    """Return the streams named by a flag; without any, all of the file."""
    found = []
    for _, config in _configs("stream", named, file, environment, flag):
        if isinstance(config, DeliverySettings):
            config.preflight()
        found.append(config.open_stream())  # type: ignore[attr-defined]  # every stream has it
    return tuple(found)


def _configs(
    what: Literal["reporter", "stream"],
    named: Sequence[str],
    file: Path | None,
    environment: Mapping[str, str],
    flag: str,
) -> Iterator[tuple[str, Struct]]:
    """Yield the type and the configuration of each that is named."""
    section = f"{what}s"
    tables = {} if file is None else read_tables(file, section)
    known: Iterable[str] = NAMED_TYPES if what == "reporter" else STREAM_TYPES
    for text in named or list(tables):
        name, has_address, address = text.partition("=")
        where = f"{flag} {name}" if name not in tables else f"{file}: {section}.{name}"
        fields = expand(dict(tables.get(name, {})), environment, where=where)
        kind = str(fields.pop("type", name))
        if kind not in known:
            candidates = [*tables, *known]
            near = difflib.get_close_matches(kind, candidates, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(candidates)}"
            raise InputError(f"{where}: there is no {what} {kind!r}", hint=hint)
        made = config_type(NAMED_TYPES[kind]) if what == "reporter" else _stream_type(kind)
        if has_address:
            fields |= _of_address(made, address, where)
        yield kind, convert(made, fields, where=where, environment=environment)


def _stream_type(kind: str) -> type[Struct]:
    module, name = STREAM_TYPES[kind]
    found: type[Struct] = getattr(import_module(f"hyperscale.reporting.streams.{module}"), name)
    return found


def _of_address(config_class: type, address: str, where: str) -> dict[str, Any]:
    if not address:
        raise InputError(f"{where}: the address is empty", hint="omit the =")
    read = getattr(config_class, "of_address", None)
    found: dict[str, Any] = {"path": address} if read is None else read(address)
    return found


def expand(value: Any, environment: Mapping[str, str], *, where: str) -> Any:
    """Return tables with the environment variables that their texts name, as in `${TOKEN}`."""
    if isinstance(value, dict):
        return {name: expand(each, environment, where=where) for name, each in value.items()}
    if isinstance(value, list):
        return [expand(each, environment, where=where) for each in value]
    if not isinstance(value, str):
        return value

    def replacement(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise InputError(f"{where}: the environment variable {match[1]} is not set")
        return environment[match[1]]

    return _VARIABLE.sub(replacement, value)
