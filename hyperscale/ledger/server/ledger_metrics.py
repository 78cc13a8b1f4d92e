"""The ledger's metrics for Prometheus."""

from hyperscale.ledger.core_events import RaftRole
from hyperscale.ledger.server.ledger import Ledger
from hyperscale.telemetry.metrics import Family, counter, gauge


def collect(ledger: Ledger) -> list[Family]:
    """Return the metrics of a node's ledger."""
    core = ledger.core
    groups = [({"group": str(g)}, g, core.raft.standing(g)) for g in core.replicas]
    transactions, rows, written, sync = ledger.store.figures()
    pending = ledger.store.pending_bytes
    return [
        ledger.commit_seconds.family(),
        gauge("ledger_term", "Term of a group", *((label, s[1]) for label, _, s in groups)),
        gauge(
            "ledger_is_leader",
            "1 if this node leads the group",
            *((label, float(s[2] == RaftRole.LEADER)) for label, _, s in groups),
        ),
        gauge(
            "ledger_apply_lag",
            "Entries committed and not applied yet",
            *((label, s[4] - core.replicas[g].applied) for label, g, s in groups),
        ),
        gauge(
            "ledger_log_bytes",
            "Size of the log entries kept in memory",
            *((label, core.raft.log_size(g)[1]) for label, g, _ in groups),
        ),
        counter(
            "ledger_commits_total",
            "Commands committed by this node as leader",
            *(({"group": str(group)}, count) for group, count in ledger.commits.items()),
        ),
        counter(
            "ledger_hash_mismatch_total",
            "Replicas whose state differed from the leader's",
            ({}, ledger.driver.mismatches_total),
        ),
        counter(
            "ledger_stamps_ignored_total",
            "Entries whose stamp was over a minute ahead",
            ({}, core.clock.ignored_total),
        ),
        counter("ledger_transactions_total", "Transactions written", ({}, transactions)),
        counter("ledger_rows_total", "Rows written", ({}, rows)),
        counter("ledger_bytes_total", "Bytes written", ({}, written)),
        gauge(
            "ledger_fsync_seconds",
            "Time of a transaction's sync",
            *(({"quantile": str(q)}, sync.quantile_ns(q) / 1e9) for q in (0.5, 0.99, 1.0)),
        ),
        gauge("ledger_pending_bytes", "Bytes waiting to be written to disk", ({}, pending)),
    ]
