"""`hyperscale ledger backup`, `restore` and `recover`: a ledger as a file, and a new one of it."""

import argparse
import asyncio
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

from hyperscale.cli.cluster_flags import add_query_flags, find_local_cluster, nodes_to_query
from hyperscale.cli.printing import is_confirmed, print_reply, print_warning
from hyperscale.client.ledger_backup import back_up
from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError, RunError
from hyperscale.ledger.rebuild import RebuiltLedger
from hyperscale.nodes.ledger_service import LAYOUT_VERSION
from hyperscale.nodes.recovery import Survivor, read_survivor, recover_ledger, restore_ledger
from hyperscale.wire.certificate_identity import is_name

RECOVERY_DESCRIPTIONS = {
    "backup": """\
Write a backup of the ledger, while the cluster runs: the state and the history of all its groups.
Everything that was acknowledged before the command began is in it. Tests of jobs (bundles) and
secret parameters are not.
""",
    "restore": """\
Make the data directory of a new cluster's first manager (or gate) of a backup. The new ledger has
a new id, so nodes of the old cluster cannot join it by mistake. Jobs that had not ended in the
backup are FAILED ("restored from backup") and are never dispatched; ended jobs, their results and
the keys of all submissions are kept. Start the node with this directory, then start the others
with empty directories and the first one as --seed.
""",
    "recover": """\
After a majority of managers has lost its disks for good, make a new ledger of what one survivor
has. Stop the survivor first; its directory is only read. What other managers had acknowledged and
the survivor had not received is lost, and so are the jobs of groups that it had no replica of: the
command lists both and asks. Then start a node with the new directory, and the others with empty
directories.
""",
}


def add_backup_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FILE", required=True, help="the file to write")
    add_query_flags(parser, timeout="10m")


def add_restore_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="what 'hyperscale ledger backup' wrote")
    _add_directory_flags(parser)


def add_recover_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    about = "data directory of the survivor, which must not run"
    add("--from", metavar="DIR", dest="source", required=True, help=about)
    about = "the survivor is a manager or a gate (default: %(default)s)"
    add("--role", choices=("manager", "gate"), default="manager", help=about)
    _add_directory_flags(parser)
    add("--yes", "-y", action="store_true", help="do not ask for confirmation")


def _add_directory_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data-dir", metavar="DIR", required=True, help="the directory to make; must not exist")
    about = "name of the first node of the new cluster (default: the name of the directory)"
    add("--node-id", metavar="NAME", default="", help=about)
    add("--json", action="store_true", help="print JSON")


def backup(args: argparse.Namespace) -> int:
    path = Path(args.out)
    directory = find_local_cluster(args.dir, args.connect, flag="--connect")
    config, addresses = nodes_to_query(args, directory)
    timeout_s = parse_duration_s(args.timeout, where="--timeout")
    problems: list[RunError] = []
    for address in addresses:
        try:
            manifest = asyncio.run(
                back_up(
                    config,
                    address,
                    path,
                    layout=LAYOUT_VERSION,
                    timeout_s=timeout_s,
                    on_progress=_show_progress,
                )
            )
        except RunError as error:
            problems.append(error)
            continue
        rows = sum(group.history_rows for group in manifest.groups)
        groups = len(manifest.groups) - 1
        text = (
            f"{path}: ledger {manifest.ledger} of '{manifest.scope}', {_count(groups, 'group')}, "
            f"{_count(rows, 'event')} of history, {path.stat().st_size:,} bytes"
        )
        print_reply(args, manifest, text)
        return 0
    raise problems[0]  # there is at least one address


def restore(args: argparse.Namespace) -> int:
    directory, name = _new_directory(args)
    manifest, rebuilt = restore_ledger(Path(args.file), directory, name)
    _print_done(args, manifest.role, manifest.scope, rebuilt)
    return 0


def recover(args: argparse.Namespace) -> int:
    directory, name = _new_directory(args)
    survivor = read_survivor(Path(args.source), args.role)
    sys.stderr.write(f"{_losses(survivor)}\n")
    question = f"Make a new ledger of it in {directory}? The old one must never be started again."
    if not args.yes and not is_confirmed(question):
        print("nothing was changed")
        return 0
    rebuilt = recover_ledger(survivor, directory, name)
    _print_done(args, args.role, survivor.topology.scope, rebuilt)
    return 0


def _new_directory(args: argparse.Namespace) -> tuple[Path, str]:
    directory = Path(args.data_dir)
    name = args.node_id or directory.absolute().name
    if not is_name(name):
        raise InputError(
            f"{name!r} is no name for a node",
            hint="give one with --node-id: letters, digits, . _ -",
        )
    return directory, name


def _losses(survivor: Survivor) -> str:
    """Describe what the disk of a survivor has, and what may be lost."""
    lines = [f"ledger {survivor.ledger} of '{survivor.topology.scope}', as this disk has it:"]
    for group, replica in sorted(survivor.replicas.items()):
        last = datetime.fromtimestamp(replica.last_ms / 1000, UTC).isoformat(timespec="seconds")
        when = last.replace("+00:00", "Z") if replica.last_ms else "empty"
        lines.append(f"  group {group}: {replica.applied} entries, the last of {when}")
    lines.append("lost is what other nodes acknowledged and this disk never received")
    if lost := survivor.lost_groups:
        named = ", ".join(map(str, lost))
        lines.append(f"lost are all jobs of {_count(len(lost), 'group')} not on this disk: {named}")
    return "\n".join(lines)


def _print_done(args: argparse.Namespace, role: str, scope: str, rebuilt: RebuiltLedger) -> None:
    command = f"hyperscale {role} --data-dir {shlex.quote(args.data_dir)}"
    if role == "manager":
        command += f" --datacenter {shlex.quote(scope)}"
    lines = [
        f"{args.data_dir} holds a new ledger",
        f"jobs that had not ended and have failed now: {rebuilt.ended_jobs}",
        f"start it: {command} …",
        "then start the other nodes with empty directories and --seed HOST:PORT of this one",
    ]
    data = {"data_dir": args.data_dir, "ended_jobs": rebuilt.ended_jobs, "start": command}
    print_reply(args, data, "\n".join(lines))


def _show_progress(text: str) -> None:
    if sys.stderr.isatty():
        print_warning(text)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


RECOVERY_ACTIONS = {
    "backup": (backup, "write a backup of the ledger while it runs", add_backup_arguments),
    "restore": (restore, "make a new ledger of a backup", add_restore_arguments),
    "recover": (recover, "make a new ledger of one surviving disk", add_recover_arguments),
}
