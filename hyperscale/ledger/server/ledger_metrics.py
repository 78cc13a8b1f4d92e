"""The ledger's metrics for Prometheus.

The label `group` has as many values as there are groups: one for each manager, and group 0.
"""

from collections.abc import Iterable

from hyperscale.ledger.core import TICK_S
from hyperscale.ledger.core_events import RaftRole
from hyperscale.ledger.server.ledger import Ledger
from hyperscale.ledger.topology import GroupState
from hyperscale.telemetry.metrics import Family, Sample, counter, gauge, summary

LEADERLESS_S = 5.0
"""A leader that was not heard for this long is lost. Longer than an election."""
_QUANTILES = (0.5, 0.99, 1.0)


def collect(ledger: Ledger) -> list[Family]:
    """Return the metrics of a node's ledger."""
    return [*_groups(ledger), *_replicas(ledger), *_commits(ledger), *_disk(ledger)]


def _groups(ledger: Ledger) -> list[Family]:
    living = frozenset(ledger.peers.living())
    return [
        gauge(
            "hyperscale_ledger_has_quorum",
            "1 if this node sees more than half of the group's voters alive",
            *(
                _of(group, is_majority_alive(map(ledger.driver.name_of, voters), living))
                for group, voters in sorted(_voters(ledger).items())
            ),
        ),
        gauge(
            "hyperscale_ledger_has_leader",
            "1 if this node leads the group or has heard its leader within 5 s",
            *(_of(group, has_leader(ledger, group)) for group in ledger.core.replicas),
        ),
        gauge(
            "hyperscale_ledger_leader_number",
            "Number of the manager that this node takes for the group's leader; 0: none",
            *(_of(group, ledger.core.leader_of(group) or 0) for group in ledger.core.replicas),
        ),
    ]


def _voters(ledger: Ledger) -> dict[int, Iterable[int]]:
    """Return the voters of every group that exists, also of those without a replica here."""
    found: dict[int, Iterable[int]] = {
        number: record.settled
        for number, record in ledger.topology.groups.items()
        if record.state is not GroupState.DESTROYED
    }
    for group in ledger.core.replicas:
        voters = ledger.core.raft.seats(group)[0]
        if voters:  # else this replica has received nothing yet
            found[group] = voters
    return found


def is_majority_alive(voters: Iterable[str], living: frozenset[str]) -> bool:
    """Return True if more than half of a group's voters are alive."""
    names = list(voters)
    return 2 * sum(name in living for name in names) > len(names)


def has_leader(ledger: Ledger, group: int) -> bool:
    """Return True if this node leads a group, or has heard its leader a moment ago."""
    core = ledger.core
    if core.is_leader(group):
        return True
    # A learner never campaigns, so it does not forget a leader that fell silent.
    silent_s = core.raft.quiet_ticks(group) * TICK_S
    return core.leader_of(group) is not None and silent_s <= LEADERLESS_S


def _replicas(ledger: Ledger) -> list[Family]:
    core = ledger.core
    standings = {group: core.raft.standing(group) for group in core.replicas}
    return [
        gauge(
            "hyperscale_ledger_term",
            "Term of the group",
            *(_of(group, standing[1]) for group, standing in standings.items()),
        ),
        gauge(
            "hyperscale_ledger_is_leader",
            "1 if this node leads the group",
            *(_of(group, standing[2] == RaftRole.LEADER) for group, standing in standings.items()),
        ),
        gauge(
            "hyperscale_ledger_apply_lag_entries",
            "Entries committed and not applied yet",
            *(
                _of(group, standing[4] - core.replicas[group].applied)
                for group, standing in standings.items()
            ),
        ),
        gauge(
            "hyperscale_ledger_log_bytes",
            "Size of the log entries kept in memory",
            *(_of(group, core.raft.log_size(group)[1]) for group in standings),
        ),
        counter(
            "hyperscale_ledger_hash_mismatches_total",
            "Replicas whose state differed from the leader's",
            ledger.driver.mismatches_total,
        ),
        counter(
            "hyperscale_ledger_stamps_ignored_total",
            "Entries whose stamp was over a minute ahead",
            core.clock.ignored_total,
        ),
    ]


def _commits(ledger: Ledger) -> list[Family]:
    return [
        ledger.commit_seconds.family(),
        counter(
            "hyperscale_ledger_commits_total",
            "Commands committed by this node as leader",
            *(_of(group, ledger.commits.get(group, 0)) for group in ledger.core.replicas),
        ),
    ]


def _disk(ledger: Ledger) -> list[Family]:
    transactions, rows, written, sync = ledger.store.figures()
    count = sync.count
    return [
        counter("hyperscale_ledger_transactions_total", "Transactions written", transactions),
        counter("hyperscale_ledger_rows_total", "Rows written", rows),
        counter("hyperscale_ledger_written_bytes_total", "Bytes written", written),
        summary(
            "hyperscale_ledger_fsync_seconds",
            "Duration of the sync of a transaction",
            {quantile: sync.quantile_ns(quantile) / 1e9 for quantile in _QUANTILES},
            total=sync.mean_ns * count / 1e9 if count else 0.0,
            count=count,
        ),
        gauge(
            "hyperscale_ledger_pending_bytes",
            "Bytes waiting to be written to disk",
            ledger.store.pending_bytes,
        ),
    ]


def _of(group: int, value: float) -> Sample:
    return {"group": str(group)}, float(value)
