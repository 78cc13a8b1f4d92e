"""`hyperscale datacenters`: list the datacenters that gates know."""

import argparse

from hyperscale.cli.cluster_flags import CLUSTER_HELP, add_client_flags, ask_cluster, has_gates
from hyperscale.cli.printing import print_reply, table
from hyperscale.errors import InputError
from hyperscale.gates.messages import DatacenterRow, ListDatacentersReply

DESCRIPTION = """\
List the datacenters that registered with the gates: whether a gate reaches them, their health, and
how many cores they have. A datacenter that is busy queues jobs; an unhealthy one gets none.
"""
EPILOG = f"""\
{CLUSTER_HELP}
examples:
  hyperscale datacenters --dir lab                     of a local cluster with gates
  hyperscale datacenters --gate 127.0.0.1:9300
  hyperscale datacenters --gate 127.0.0.1:9300 --json

exit codes: 0 shown, 2 invalid input, 3 no gate could be reached
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    if not has_gates(args):
        raise InputError(
            "this cluster has no gates", hint="only gates list datacenters; --gate names one"
        )
    rows = ask_cluster(args, lambda client: client.list_datacenters())
    print_reply(args, ListDatacentersReply(datacenters=rows), _text(rows))
    return 0


def _text(rows: list[DatacenterRow]) -> str:
    head = ("DATACENTER", "REACHABLE", "HEALTH", "CORES", "FREE", "QUEUE", "WORKERS", "RTT")
    return table(head, [_cells(row) for row in rows])


def _cells(row: DatacenterRow) -> tuple[str, ...]:
    return (
        row.datacenter,
        row.reachability,
        row.health + (", draining" if row.is_draining else ""),
        *(str(row.total_cores), str(row.available_cores), str(row.queue_depth), str(row.workers)),
        "" if row.rtt_ms is None else f"{row.rtt_ms:.1f} ms",
    )
