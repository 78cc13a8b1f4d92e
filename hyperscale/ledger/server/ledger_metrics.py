"""The ledger's metrics for Prometheus."""

from hyperscale.ledger.core_events import RaftRole
from hyperscale.ledger.server.ledger import Ledger
from hyperscale.telemetry.metrics import Family, counter, gauge


def collect(ledger: Ledger) -> list[Family]:
    """Return the metrics of a node's ledger."""
    core = ledger.core
    groups = [(str(group), core.raft.standing(group)) for group in core.replicas]
    transactions, rows, written, sync = ledger.store.figures()
    return [
        ledger.commit_seconds.family(),
        gauge("ledger_term", "Term of a group", *((_of(g), s[1]) for g, s in groups)),
        gauge(
            "ledger_is_leader",
            "1 if this node leads the group",
            *((_of(g), float(s[2] == RaftRole.LEADER)) for g, s in groups),
        ),
        gauge(
            "ledger_apply_lag",
            "Entries committed and not applied yet",
            *((_of(g), s[4] - core.replicas[int(g)].applied) for g, s in groups),
        ),
        gauge(
            "ledger_log_bytes",
            "Size of the log entries kept in memory",
            *((_of(g), core.raft.log_size(int(g))[1]) for g, _ in groups),
        ),
        counter(
            "ledger_commits_total",
            "Commands committed by this node as leader",
            *((_of(str(group)), count) for group, count in ledger.commits.items()),
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
        gauge(
            "ledger_pending_bytes",
            "Bytes waiting to be written to disk",
            ({}, ledger.store.pending_bytes),
        ),
    ]


def _of(group: str) -> dict[str, str]:
    return {"group": group}
