"""`hyperscale workers`: list the workers of a cluster, their cores and what runs on them."""

import argparse

from hyperscale.cli.cluster_flags import CLUSTER_HELP, add_client_flags, ask_cluster
from hyperscale.cli.printing import print_reply, print_warning, table
from hyperscale.client.messages import ListWorkersReply, WorkerAttempt, WorkerRow
from hyperscale.config.labels import BUILT_IN

DESCRIPTION = """\
List the workers of a cluster with their state, their cores, their labels and the workflows that run
on them.
"""
EPILOG = f"""\
{CLUSTER_HELP}
examples:
  hyperscale workers
  hyperscale workers --json
  hyperscale workers --gate 10.0.0.7:9300      those of every datacenter

exit codes: 0 shown, 2 invalid input, 3 no manager could be reached
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    reply = ask_cluster(args, lambda client: client.get_workers())
    print_reply(args, reply, _text(reply))
    for row in reply.workers:
        for reason in row.unfit:
            print_warning(f"{row.worker} gets no work: {reason}")
    for name in reply.missing:
        print_warning(f"datacenter {name} did not answer the gate: its workers are not listed")
    if reply.unknown:
        print_warning(f"{', '.join(reply.unknown)}: it is not known at the moment what runs there")
    return 0


def _text(reply: ListWorkersReply) -> str:
    has_gate = any(row.datacenter for row in reply.workers)
    rows = [
        (
            *((row.datacenter,) if has_gate else ()),
            *(row.worker, _state(row), row.address),
            *(_cores(row), "0" if row.is_draining or row.unfit else str(row.free)),
            _labels(row),
            "; ".join(map(_attempt, row.attempts)),
        )
        for row in sorted(reply.workers, key=lambda row: (row.datacenter, row.worker))
    ]
    head = ("DATACENTER",) if has_gate else ()
    return table((*head, "WORKER", "STATE", "ADDRESS", "CORES", "FREE", "LABELS", "ATTEMPTS"), rows)


def _state(row: WorkerRow) -> str:
    draining = ", draining" if row.is_draining else ""
    return row.state + draining + (", not ready" if row.unfit else "")


def _cores(row: WorkerRow) -> str:
    return f"{row.cores} (+{row.reserved} reserved)" if row.reserved else str(row.cores)


def _labels(row: WorkerRow) -> str:
    """Return the labels that tell workers apart; --json has the built-in ones too."""
    own = {name: value for name, value in row.labels.items() if name not in BUILT_IN}
    shown = own | {name: row.labels[name] for name in ("arch",) if name in row.labels}
    return " ".join(f"{name}={value}" for name, value in shown.items())


def _attempt(attempt: WorkerAttempt) -> str:
    cores = f"{attempt.cores} core{'' if attempt.cores == 1 else 's'}"
    shared = " (shared)" if attempt.is_shared else ""
    return f"{attempt.workflow} of {attempt.job} on {cores}{shared}"
