"""Who may use which command: drawn from the registry of messages into docs/security.md.

python -m tests.access_table        draw the table again
"""

import re
from pathlib import Path

from msgspec import Struct

from hyperscale.client import messages as client
from hyperscale.gates import messages as gates
from hyperscale.jobs.messages import DrainWorker
from hyperscale.ledger.server import operator_messages as ledger
from hyperscale.ledger.server.backup_requests import FetchGroupBackup
from hyperscale.nodes.messages import ListMembers
from hyperscale.wire.client_access import GRANTED, ClientRole, Permission
from hyperscale.wire.registry import REGISTRY

DOCUMENT = Path(__file__).parent.parent / "docs" / "security.md"

OF_CLUSTER: dict[str, tuple[type[Struct], ...]] = {
    "submit": (client.SubmitJob, client.PutBlob),
    "watch": (client.WatchJob,),
    "status": (client.GetJob,),
    "results": (client.GetJobRecord,),
    "cancel": (client.CancelJob,),
    "scale": (client.ChangeLoad,),
    "pause": (client.ChangeLoad,),
    "resume": (client.ChangeLoad,),
    "jobs": (client.ListJobs,),
    "workers": (client.ListWorkers,),
    "datacenters": (gates.ListDatacenters,),
    "datacenters drain": (gates.ChangeDatacenter,),
    "datacenters resume": (gates.ChangeDatacenter,),
    "datacenters remove": (gates.ChangeDatacenter,),
    "route": (gates.RouteJob,),
    "members": (ListMembers,),
    "drain": (client.DrainNode,),
    "ledger status": (ledger.GetLedgerStatus,),
    "ledger groups": (ledger.GetLedgerStatus,),
    "ledger history": (ledger.ListEvents,),
    "ledger audit": (ledger.ListEvents,),
    "ledger members": (ledger.ChangeMember,),
    "ledger snapshot": (ledger.Compact,),
    "ledger verify": (ledger.Verify,),
    "ledger version": (ledger.GetLedgerStatus,),
    "ledger version raise": (ledger.RaiseVersion,),
    "ledger backup": (FetchGroupBackup,),
}
"""The commands that ask a cluster, and the messages that they cannot do without."""
LOCAL = frozenset(
    {
        *("run", "check", "new", "ping", "target", "report", "cluster", "chaos"),
        *("manager", "gate", "worker", "config", "certs", "secret"),
        *("ledger restore", "ledger recover"),
    }
)
"""The commands that send nothing to a cluster as a client, or that start one."""
OF_NO_COMMAND = frozenset({gates.AskDatacenter, DrainWorker})
"""What other commands send on the way; a gate checks the request in `AskDatacenter` again."""

_BLOCK = re.compile(r"(?<=<!-- access -->\n).*?(?=<!-- end -->)", re.DOTALL)


def permission_of(command: str) -> Permission:
    """Return what the messages of a command need."""
    (permission,) = {REGISTRY.by_type[each].permission for each in OF_CLUSTER[command]}
    assert permission is not None
    return permission


def drawn() -> str:
    """Return the table: who may use which command."""
    head = ["command", *ClientRole, "stranger"]
    rows = [head, ["---"] * len(head)]
    for command in OF_CLUSTER:
        permission = permission_of(command)
        cells = [f"`{command}`"]
        for role in ClientRole:
            is_own = permission is Permission.OWN and role is not ClientRole.OPERATOR
            yes = "own jobs" if is_own else "yes"
            cells.append(yes if permission in GRANTED[role] else "-")
        rows.append([*cells, "-"])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def redrawn(text: str) -> str:
    """Return a document with the table drawn from the registry."""
    return _BLOCK.sub(lambda _: drawn(), text)


if __name__ == "__main__":
    DOCUMENT.write_text(redrawn(DOCUMENT.read_text()))
