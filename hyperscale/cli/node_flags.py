"""Flags of the node commands, made from the one schema, and the configuration they lead to.

The one place that reads the environment for a node.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from hyperscale.config.loading import Loaded, load
from hyperscale.config.schema import FILE_VARIABLE, NodeRole, Setting, settings


def add_node_flags(parser: argparse.ArgumentParser, *, role: str = "manager") -> None:
    """One flag per setting, in groups by section."""
    _add_file(parser, "--config", "--file")
    by_section: dict[str, Any] = {}
    for setting in settings():
        if setting.section not in by_section:
            by_section[setting.section] = parser.add_argument_group(f"[{setting.section}]")
        _add(by_section[setting.section], setting, role)


def add_connection_flags(parser: argparse.ArgumentParser, *, key_flags: Sequence[str]) -> None:
    """What it takes to be let in by a node, for who asks it something."""
    group = parser.add_argument_group("how to be let in")
    for setting in _of_connections():
        flags = key_flags if setting.name == "security.key" else (setting.flag,)
        _add(group, setting, "manager", *flags)
    _add_file(group, "--config")


def connection_words(args: argparse.Namespace, *, key_flag: str) -> list[str]:
    """Those of `add_connection_flags` that were given, to be given again."""
    words = []
    for setting in _of_connections():
        given = vars(args).get(setting.name)
        if given is not None:
            words += [key_flag if setting.name == "security.key" else setting.flag, given]
    return words if args.config is None else [*words, "--config", str(args.config)]


def _of_connections() -> list[Setting]:
    names = ("node.cluster", "node.environment")
    return [each for each in settings() if each.section == "security" or each.name in names]


def _add_file(group: Any, *flags: str) -> None:
    group.add_argument(
        *flags,
        metavar="FILE",
        type=Path,
        help=f"TOML file with settings (or its name in {FILE_VARIABLE})",
    )


def load_node(args: argparse.Namespace, role: NodeRole) -> Loaded:
    """The settings of this command line, this environment, and the file either names."""
    given = vars(args)
    flags = {setting.name: given.get(setting.name) for setting in settings()}
    file = args.config
    if file is None and os.environ.get(FILE_VARIABLE):
        file = Path(os.environ[FILE_VARIABLE])
    return load(role, flags=flags, environment=os.environ, file=file)


def announce(member: Any) -> None:
    """The one line a node command prints: where it is, for people and scripts."""
    line = f"{member.node_id} listening on {member.address}, http://{member.http_address}"
    try:
        print(line, flush=True)
    except BrokenPipeError:  # nobody reads it, and a node does not stop for that
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _add(group: Any, setting: Setting, role: str, *flags: str) -> None:
    default = setting.default_for(role)
    shown = f" (default {_shown(default)})" if default not in ("", ()) else ""
    group.add_argument(
        *(flags or (setting.flag,)),
        dest=setting.name,
        metavar=_metavar(setting),
        action="append" if setting.is_list else "store",
        default=None,
        help=(setting.about + ("; repeat it for more" if setting.is_list else "") + shown).replace(
            "%", "%%"
        ),
    )


def _metavar(setting: Setting) -> str:
    choices = get_args(setting.type)
    if choices and all(isinstance(choice, str) for choice in choices):
        return "|".join(choices)
    if isinstance(setting.default, bool):
        return "true|false"
    if setting.key.endswith("_s"):
        return "SECONDS"
    if isinstance(setting.default, int):
        return "N"
    return {"file": "FILE", "host": "HOST", "seeds": "HOST:PORT"}.get(
        setting.key.rpartition("_")[2], "TEXT" if setting.section != "security" else "FILE"
    )


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
