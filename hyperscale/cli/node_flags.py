"""The commands `manager`, `worker`, `gate`: flags from the configuration schema, and the start.

The one place that reads the environment for a node.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from hyperscale.cli.printing import print_line
from hyperscale.config.loading import Loaded, load
from hyperscale.config.schema import FILE_VARIABLE, NodeRole, Setting, settings

NODE_HELP = """\
Without a secret or certificates a node listens on loopback only. SIGTERM or SIGINT shuts it down
cleanly (exit code 0). Settings come from flags, HYPERSCALE_* environment variables and a TOML
file, in this order of precedence; 'hyperscale config check --role {role}' shows the result.
"""


def run_node(args: argparse.Namespace, role: NodeRole) -> int:
    """Run a node of this role until it is stopped."""
    from hyperscale.nodes.gate import GATE_ROLE
    from hyperscale.nodes.manager import MANAGER_ROLE
    from hyperscale.nodes.server import complete_config, run_process
    from hyperscale.nodes.worker import WORKER_ROLE

    config = complete_config(role, load_node(args, role).require())
    specs = {"manager": MANAGER_ROLE, "worker": WORKER_ROLE, "gate": GATE_ROLE}
    run_process(config, specs[role], _announce)
    return 0


def add_node_flags(parser: argparse.ArgumentParser, *, role: str = "manager") -> None:
    """Add one flag per setting, grouped by section."""
    _add_file(parser, "--config", "--file")
    by_section: dict[str, Any] = {}
    for setting in settings():
        if setting.section not in by_section:
            by_section[setting.section] = parser.add_argument_group(f"[{setting.section}]")
        # The failure domain of a gate is its region.
        is_region = role == "gate" and setting.name == "node.failure_domain"
        flags = (setting.flag, "--region") if is_region else (setting.flag,)
        _add(by_section[setting.section], setting, role, *flags)


def add_connection_flags(parser: argparse.ArgumentParser, *, key_flags: Sequence[str]) -> None:
    """Add the flags that a client needs to connect to a node: its secret or certificates."""
    group = parser.add_argument_group("authentication")
    for setting in _connection_settings():
        flags = key_flags if setting.name == "security.key" else (setting.flag,)
        _add(group, setting, "manager", *flags)
    _add_file(group, "--config")


def connection_words(args: argparse.Namespace, *, key_flag: str) -> list[str]:
    """Return the flags of `add_connection_flags` as given, for commands shown in messages."""
    words = []
    for setting in _connection_settings():
        given = vars(args).get(setting.name)
        if given is not None:
            words += [key_flag if setting.name == "security.key" else setting.flag, given]
    return words if args.config is None else [*words, "--config", str(args.config)]


def _connection_settings() -> list[Setting]:
    names = ("node.cluster", "node.environment")
    return [
        each
        for each in settings()
        if (each.section == "security" and each.key != "clients_file") or each.name in names
    ]


def _add_file(group: Any, *flags: str) -> None:
    group.add_argument(
        *flags,
        metavar="FILE",
        type=Path,
        help=f"TOML file with settings (default: the file that {FILE_VARIABLE} names)",
    )


def load_node(args: argparse.Namespace, role: NodeRole) -> Loaded:
    """Load the settings of the command line, the environment and the configuration file."""
    given = vars(args)
    flags = {setting.name: given.get(setting.name) for setting in settings()}
    file = args.config
    if file is None and os.environ.get(FILE_VARIABLE):
        file = Path(os.environ[FILE_VARIABLE])
    return load(role, flags=flags, environment=os.environ, file=file)


def _announce(member: Any) -> None:
    """Print the one line of a node command: its addresses, for people and scripts."""
    # A node without a reader of this line keeps running.
    print_line(f"{member.node_id} listening on {member.address}, http://{member.http_address}")


def _add(group: Any, setting: Setting, role: str, *flags: str) -> None:
    default = setting.default_for(role)
    shown = f" (default: {_shown(default)})" if default not in ("", ()) else ""
    group.add_argument(
        *(flags or (setting.flag,)),
        dest=setting.name,
        metavar=_metavar(setting),
        action="append" if setting.is_list else "store",
        default=None,
        help=(
            setting.about + ("; repeat the flag for more" if setting.is_list else "") + shown
        ).replace("%", "%%"),
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
