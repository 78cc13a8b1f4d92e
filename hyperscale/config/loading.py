"""Settings from flags, the environment and a file, in this order of precedence, then defaults.

Every value remembers its source, and every mistake is reported, not only the first. The only file
read is the one given; flags and the environment are arguments.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from hyperscale.config import parse_duration_s
from hyperscale.config.labels import label_texts
from hyperscale.config.schema import (
    ENVIRONMENT_PREFIX,
    FILE_VARIABLE,
    PREVIOUS_SECRET_FILE_VARIABLE,
    PREVIOUS_SECRET_VARIABLE,
    SECRET_FILE_VARIABLE,
    SECRET_VARIABLE,
    SECTIONS,
    Hidden,
    NodeConfig,
    NodeRole,
    Setting,
    settings,
)
from hyperscale.errors import InputError

_FILE_BYTES_MAX = 1024 * 1024
_NUMBERS = {int: "a whole number", float: "a number"}
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
# Variables that an orchestrator sets for a service whose name begins with "hyperscale".
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?$")
_OTHER_VARIABLES = frozenset({FILE_VARIABLE, SECRET_VARIABLE, PREVIOUS_SECRET_VARIABLE})
_FILE_VARIABLES = frozenset({SECRET_FILE_VARIABLE, PREVIOUS_SECRET_FILE_VARIABLE})

NodeSettings = NodeConfig | Mapping[str, Any] | None
"""What a program configures a node with: a configuration, or the tables of a configuration file."""


class ConfigValue(Struct, frozen=True):
    """A setting's value and where it came from: a flag, a variable, a file, or `default`."""

    value: Any
    source: str


class Loaded(Struct, frozen=True):
    """The settings from all sources. `config` is None if there are problems."""

    role: NodeRole
    values: dict[str, ConfigValue]
    problems: tuple[InputError, ...]
    config: NodeConfig | None
    has_secret: bool = False
    has_previous_secret: bool = False

    def require(self) -> NodeConfig:
        """Return the configuration, or raise one error that names every problem."""
        if self.config is not None and not self.problems:
            return self.config
        if len(self.problems) == 1:
            raise self.problems[0]
        listed = "\n".join(f"  {describe(problem)}" for problem in self.problems)
        raise InputError(f"{len(self.problems)} settings are wrong:\n{listed}")


def describe(problem: InputError) -> str:
    return f"{problem.message} ({problem.hint})" if problem.hint else problem.message


def load(
    role: NodeRole,
    *,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
    tables: Mapping[str, Any] | None = None,
) -> Loaded:
    """Load the settings. `flags` has names like `listen.port`, `tables` the content of a file."""
    problems: list[InputError] = []
    given: dict[str, ConfigValue] = {}
    if file is not None:
        given |= _from_tables(_read(file, problems), str(file), problems)
    if tables is not None:
        given |= _from_tables(tables, "argument", problems)
    variables = environment or {}
    given |= _from_environment(variables, problems)
    by_name = {setting.name: setting for setting in settings()}
    for name, value in (flags or {}).items():
        if value is not None:
            given[name] = ConfigValue(value, by_name[name].flag)
    values: dict[str, ConfigValue] = {}
    for setting in settings():
        found = given.get(setting.name)
        if found is None:
            values[setting.name] = ConfigValue(setting.default_for(role), "default")
            continue
        try:
            values[setting.name] = ConfigValue(_checked(setting, found), found.source)
        except InputError as problem:
            problems.append(problem)
    secret, previous = (
        _hidden(variables, name, problems) for name in (SECRET_VARIABLE, PREVIOUS_SECRET_VARIABLE)
    )
    sections = _sections(values, problems)
    _check_across(role, values, secret, previous, problems)
    config = None
    if not problems:
        config = NodeConfig(role=role, secret=secret, previous_secret=previous, **sections)
    return Loaded(
        role=role,
        values=values,
        problems=tuple(problems),
        config=config,
        has_secret=secret is not None,
        has_previous_secret=previous is not None,
    )


def node_config(role: NodeRole, tables: Mapping[str, Any] | None = None) -> NodeConfig:
    """Return the configuration that a file with these tables would give."""
    return load(role, tables=tables or {}).require()


# Sources.


def _read(file: Path, problems: list[InputError]) -> Mapping[str, Any]:
    try:
        with file.open("rb") as stream:
            data = stream.read(_FILE_BYTES_MAX + 1)
        if len(data) <= _FILE_BYTES_MAX:
            return tomllib.loads(data.decode())
        wrong = f"has more than {_FILE_BYTES_MAX} bytes"
    except OSError as error:
        wrong = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        wrong = "is not text in UTF-8"
    except tomllib.TOMLDecodeError as error:
        wrong = f"is not TOML: {error}"
    problems.append(InputError(f"{file} {wrong}"))
    return {}


def _from_tables(
    tables: Mapping[str, Any], source: str, problems: list[InputError]
) -> dict[str, ConfigValue]:
    given: dict[str, ConfigValue] = {}
    for section, table in tables.items():
        if section not in SECTIONS:
            known = [f"[{name}]" for name in SECTIONS]
            problems.append(_unknown(source, f"[{section}]", known, "section"))
        elif not isinstance(table, Mapping):
            problems.append(InputError(f"{source}: [{section}] must be a table of settings"))
        else:
            known = [setting.key for setting in settings() if setting.section == section]
            for key, value in table.items():
                if key in known:
                    given[f"{section}.{key}"] = ConfigValue(value, source)
                else:
                    problems.append(_unknown_key(source, section, key, known))
    return given


def _from_environment(
    environment: Mapping[str, str], problems: list[InputError]
) -> dict[str, ConfigValue]:
    by_variable = {name: setting for setting in settings() for name in setting.variables}
    given: dict[str, ConfigValue] = {}
    for name, value in environment.items():
        if not name.startswith(ENVIRONMENT_PREFIX) or name in _OTHER_VARIABLES:
            continue
        setting = by_variable.get(name)
        if setting is not None:
            if len(setting.variables) > 1 and not value.strip():
                problems.append(_empty(name, "the name of the file"))
                continue
            twin = given.get(setting.name)
            if twin is not None and twin.value != value:
                problems.append(_both(twin.source, name))
            given[setting.name] = ConfigValue(value, name)
        elif not _SERVICE_LINK.search(name):
            problems.append(
                _unknown("environment", name, [*by_variable, *_OTHER_VARIABLES], "variable")
            )
    return given


def _hidden(environment: Mapping[str, str], name: str, problems: list[InputError]) -> Hidden | None:
    text = environment.get(name)
    if text is None:
        return None
    if not text.strip():
        problems.append(_empty(name, "the secret"))
        return None
    return Hidden(text.strip())


def _empty(variable: str, what: str) -> InputError:
    return InputError(f"{variable} is set but empty", hint=f"unset it, or put {what} there")


def _both(one: str, other: str) -> InputError:
    return InputError(f"both {one} and {other} are given", hint="one of them is enough")


def _unknown_key(source: str, section: str, key: str, known: Iterable[str]) -> InputError:
    if section == "security" and key in ("secret", "previous_secret"):
        return InputError(
            f"{source}: security.{key}: a secret does not belong among settings",
            hint=f"name a file with security.{key}_file, or set {ENVIRONMENT_PREFIX}{key.upper()}",
        )
    names = [f"{section}.{each}" for each in known]
    return _unknown(source, f"{section}.{key}", names, "setting")


def _unknown(source: str, name: str, known: Iterable[str], what: str) -> InputError:
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else "'hyperscale config check' lists them all"
    return InputError(f"{source}: unknown {what} {name}", hint=hint)


# Values.


def _checked(setting: Setting, found: ConfigValue) -> Any:
    """Return the value in the type of the setting; raise an error with name, bound and source."""
    value = found.value
    if isinstance(value, Mapping) and setting.is_labels:
        value = label_texts(value)
    elif isinstance(value, str):
        value = _from_text(setting, value, found.source)
    elif isinstance(value, list | tuple) and not setting.is_list:
        value = value[-1] if found.source.startswith("--") and value else value
    try:
        return msgspec.convert(value, setting.type)
    except msgspec.ValidationError as error:
        where = f"{_where(setting, found.source)}: {found.value!r}"
        if isinstance(value, str) and type(setting.default) in _NUMBERS:
            raise InputError(f"{where} is not {_NUMBERS[type(setting.default)]}") from None
        raise InputError(f"{where}: {_lower(str(error))}") from None


def _from_text(setting: Setting, text: str, source: str) -> Any:
    """Parse the text of a flag or a variable."""
    sample = setting.default
    if setting.is_list:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if isinstance(sample, bool):
        return _TRUTH.get(text.strip().lower(), text)
    if isinstance(sample, int | float):
        try:
            return type(sample)(text)
        except ValueError:
            if not setting.key.endswith("_s"):
                return text
    if setting.key.endswith("_s"):
        return parse_duration_s(text, where=_where(setting, source))
    return text


def _sections(values: dict[str, ConfigValue], problems: list[InputError]) -> dict[str, Any]:
    """Build the sections whose values are all valid."""
    sections: dict[str, Any] = {}
    for section, struct in SECTIONS.items():
        own = [setting for setting in settings() if setting.section == section]
        if any(setting.name not in values for setting in own):
            continue
        try:
            sections[section] = struct(**{each.key: values[each.name].value for each in own})
        except InputError as problem:
            problems.append(problem)
    return sections


def _check_across(
    role: str,
    values: dict[str, ConfigValue],
    secret: Hidden | None,
    previous: Hidden | None,
    problems: list[InputError],
) -> None:
    """Check rules that involve several sections, or the secrets."""

    def value(name: str) -> Any:
        return values[name].value if name in values else None

    for hidden, key, variable in (
        (secret, "secret_file", SECRET_VARIABLE),
        (previous, "previous_secret_file", PREVIOUS_SECRET_VARIABLE),
    ):
        file = values.get(f"security.{key}")
        if hidden is not None and file is not None and file.value:
            named = file.source if file.source in _FILE_VARIABLES else f"security.{key}"
            problems.append(_both(variable, named))
    has_secret = secret is not None or value("security.secret_file")
    if (previous is not None or value("security.previous_secret_file")) and not has_secret:
        problems.append(InputError("a previous secret is given, but no current one"))
    if role == "worker" and value("discovery.seeds") == () and value("discovery.dns") == ():
        problems.append(
            InputError(
                "a worker needs to know where a manager is: no discovery.seeds, no discovery.dns",
                hint="--seed HOST:PORT, or --dns NAME",
            )
        )


def _where(setting: Setting, source: str) -> str:
    return f"{setting.name} ({source})"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
