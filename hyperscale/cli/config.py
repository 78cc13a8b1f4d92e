"""`hyperscale config check`: show the effective configuration of a node and all its errors."""

import argparse
import json
import sys

from hyperscale.cli.node_flags import add_node_flags, load_node
from hyperscale.config.loading import Loaded, describe
from hyperscale.config.schema import (
    PREVIOUS_SECRET_VARIABLE,
    ROLES,
    SECRET_VARIABLE,
    SECTIONS,
    settings,
)
from hyperscale.reporting.exit_codes import ExitCode

DESCRIPTION = """\
Inspect the configuration of a node without starting it.
"""
EPILOG = """\
examples:
  hyperscale config check --file node.toml
"""
_CHECK_DESCRIPTION = """\
Show every setting that a node would start with and its source: a flag, the environment, a file or
the default, in this order of precedence. The output is a valid configuration file; secrets are
never shown.

The command also checks what would fail later, on this machine: secret and key files, certificates
(validity, role, cluster, authority, key), founders without seeds, the data directory, the number of
cores, ports in use. All findings are reported, not only the first; while a setting is invalid or
missing, only settings are checked. Nothing is started or changed.
"""
_CHECK_EPILOG = """\
examples:
  hyperscale config check                                the defaults of a manager
  hyperscale config check --role worker --file node.toml
  hyperscale config check --port 9500 > node.toml        a file to start from

exit codes: 0 the configuration is valid, 2 it is not
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", title="actions", dest="action")
    check = actions.add_parser(
        "check",
        help="show the effective configuration and all its errors",
        description=_CHECK_DESCRIPTION,
        epilog=_CHECK_EPILOG,
    )
    check.add_argument(
        "--role", choices=ROLES, default="manager", help="role of the node (default: %(default)s)"
    )
    add_node_flags(check)
    parser.set_defaults(parser=parser)


def run(args: argparse.Namespace) -> int:
    if args.action is None:
        args.parser.print_help()
        return 0
    loaded = load_node(args, args.role)
    problems = list(loaded.problems)
    if loaded.config is not None:
        from hyperscale.nodes.preflight import problems_of

        problems += problems_of(loaded.config)
    _show(loaded)
    for problem in problems:
        print(f"hyperscale: {describe(problem)}", file=sys.stderr)
    return ExitCode.BAD_INPUT if problems else ExitCode.PASSED


def _show(loaded: Loaded) -> None:
    lines = [f"# settings of a {loaded.role}"]
    for section in SECTIONS:
        lines += ["", f"[{section}]"]
        for setting in settings():
            if setting.section != section:
                continue
            found = loaded.values.get(setting.name)
            if found is None:
                lines.append(f"# {setting.key} is invalid")
            else:
                lines.append(f"{f'{setting.key} = {_toml(found.value)}':<40} # {found.source}")
        if section == "security":
            secrets = {
                SECRET_VARIABLE: loaded.has_secret,
                PREVIOUS_SECRET_VARIABLE: loaded.has_previous_secret,
            }
            set_here = [variable for variable, is_set in secrets.items() if is_set]
            lines += [f"{f'# {variable} is set':<40} # environment" for variable in set_here]
    print("\n".join(lines))


def _toml(value: object) -> str:
    """Format as JSON, whose strings, numbers, lists and booleans are also TOML."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
