//! Consensus for Python: tuples and bytes in, `Turn`s out.

use hyperscale_core::raft;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

create_exception!(hyperscale._native, LedgerError, PyException, "Consensus or its store failed.");

create_exception!(
    hyperscale._native,
    LedgerOutdatedError,
    LedgerError,
    "The store has forgotten what it was trusted with."
);
create_exception!(hyperscale._native, LedgerBrokenError, LedgerError, "Consensus cannot go on.");

pub fn to_py(error: impl std::fmt::Display) -> PyErr {
    LedgerError::new_err(error.to_string())
}

fn raft_error(error: raft::RaftError) -> PyErr {
    match error {
        raft::RaftError::Outdated { .. } => LedgerOutdatedError::new_err(error.to_string()),
        _ => to_py(error),
    }
}

/// Index, term, kind, data.
type EntryTuple<'py> = (u64, u64, u8, Bound<'py, PyBytes>);
/// Index, term, voters (encoded), data.
type SnapshotTuple<'py> = (u64, u64, Bound<'py, PyBytes>, Bound<'py, PyBytes>);
/// Voters, outgoing voters, learners.
type SeatsTuple = (Vec<u64>, Vec<u64>, Vec<u64>);
/// Group, index, term, token, data, and who takes part from here on if that changed.
type CommittedTuple = (u64, u64, u64, u64, Py<PyBytes>, Option<SeatsTuple>);
/// Group, term, role, leader, commit, applied.
type StandingTuple = (u64, u64, &'static str, u64, u64, u64);

fn entries_to_py<'py>(py: Python<'py>, entries: &[raft::LogEntry]) -> Vec<EntryTuple<'py>> {
    entries
        .iter()
        .map(|entry| (entry.index, entry.term, entry.kind, PyBytes::new(py, &entry.data)))
        .collect()
}

fn snapshot_to_py<'py>(py: Python<'py>, image: &raft::SnapshotImage) -> SnapshotTuple<'py> {
    (image.index, image.term, PyBytes::new(py, &image.conf), PyBytes::new(py, &image.data))
}

fn standing_to_py(standing: raft::Standing) -> StandingTuple {
    let role = match standing.role {
        raft::Role::Follower => "follower",
        raft::Role::Candidate => "candidate",
        raft::Role::Leader => "leader",
    };
    (standing.group, standing.term, role, standing.leader, standing.commit, standing.applied)
}

fn seats_to_py(seats: raft::Seats) -> SeatsTuple {
    (seats.voters, seats.outgoing, seats.learners)
}

#[pyclass(module = "hyperscale._native", frozen)]
#[derive(Clone)]
pub struct GroupImage {
    pub inner: raft::GroupImage,
}

#[pymethods]
impl GroupImage {
    #[new]
    fn new(
        group: u64,
        hard: (u64, u64, u64),
        snapshot: (u64, u64, PyBackedBytes, PyBackedBytes),
        entries: Vec<(u64, u64, u8, PyBackedBytes)>,
    ) -> Self {
        let (term, vote, commit) = hard;
        let (index, snapshot_term, conf, data) = snapshot;
        let (conf, data) = (conf.to_vec(), data.to_vec());
        let entries = entries
            .into_iter()
            .map(|(index, term, kind, data)| raft::LogEntry {
                index,
                term,
                kind,
                data: data.to_vec(),
            })
            .collect();
        Self {
            inner: raft::GroupImage {
                group,
                hard: raft::Hard { term, vote, commit },
                snapshot: raft::SnapshotImage { index, term: snapshot_term, conf, data },
                entries,
            },
        }
    }

    #[staticmethod]
    fn first(group: u64, voters: Vec<u64>, data: &[u8]) -> PyResult<Self> {
        Ok(Self { inner: raft::GroupImage::first(group, voters, data.to_vec()).map_err(to_py)? })
    }

    #[staticmethod]
    fn empty(group: u64) -> Self {
        Self { inner: raft::GroupImage { group, ..raft::GroupImage::default() } }
    }

    #[getter]
    fn group(&self) -> u64 {
        self.inner.group
    }

    #[getter]
    fn hard(&self) -> (u64, u64, u64) {
        let hard = self.inner.hard;
        (hard.term, hard.vote, hard.commit)
    }

    #[getter]
    fn snapshot<'py>(&self, py: Python<'py>) -> SnapshotTuple<'py> {
        snapshot_to_py(py, &self.inner.snapshot)
    }

    #[getter]
    fn entries<'py>(&self, py: Python<'py>) -> Vec<EntryTuple<'py>> {
        entries_to_py(py, &self.inner.entries)
    }
}

#[pyclass(module = "hyperscale._native", frozen)]
pub struct WriteBatch {
    pub inner: raft::WriteBatch,
}

#[pymethods]
impl WriteBatch {
    #[getter]
    fn number(&self) -> u64 {
        self.inner.number
    }

    /// Group, (term, vote, commit), entries, snapshot: what a store has to keep.
    #[getter]
    #[allow(clippy::type_complexity)] // Written once, right here, for stores made in Python.
    fn groups<'py>(
        &self,
        py: Python<'py>,
    ) -> Vec<(u64, (u64, u64, u64), Vec<EntryTuple<'py>>, Option<SnapshotTuple<'py>>)> {
        self.inner
            .groups
            .iter()
            .map(|write| {
                let hard = (write.hard.term, write.hard.vote, write.hard.commit);
                let snapshot = write.snapshot.as_ref().map(|image| snapshot_to_py(py, image));
                (write.group, hard, entries_to_py(py, &write.entries), snapshot)
            })
            .collect()
    }
}

/// What the host has to do now; see `hyperscale_core::raft::Turn`.
#[pyclass(module = "hyperscale._native", frozen, get_all)]
pub struct Turn {
    /// (peer, packed messages)
    outbox: Vec<(u64, Py<PyBytes>)>,
    /// (peer, group, index, message without data)
    snapshots: Vec<(u64, u64, u64, Py<PyBytes>)>,
    write: Option<Py<WriteBatch>>,
    committed: Vec<CommittedTuple>,
    /// (group, index, data)
    restored: Vec<(u64, u64, Py<PyBytes>)>,
    /// (group, token, index)
    reads: Vec<(u64, u64, u64)>,
    standings: Vec<StandingTuple>,
    snapshots_wanted: Vec<u64>,
    more: bool,
}

/// The consensus core panics where going on would be unsafe. The host must hear of it as an
/// error like any other: then it stops the node.
fn guarded<T>(work: impl FnOnce() -> Result<T, raft::RaftError>) -> PyResult<T> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
        Ok(outcome) => outcome.map_err(raft_error),
        Err(panic) => {
            let why = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("an unknown reason");
            Err(LedgerBrokenError::new_err(format!("consensus cannot go on: {why}")))
        }
    }
}

#[pyclass(module = "hyperscale._native", unsendable)]
pub struct MultiRaft {
    inner: raft::MultiRaft,
}

#[pymethods]
impl MultiRaft {
    #[new]
    #[pyo3(signature = (node, seed, election_ticks = 20, heartbeat_ticks = 5))]
    fn new(node: u64, seed: u64, election_ticks: usize, heartbeat_ticks: usize) -> Self {
        let settings =
            raft::Settings { election_ticks, heartbeat_ticks, ..raft::Settings::default() };
        Self { inner: raft::MultiRaft::new(node, seed, settings) }
    }

    #[getter]
    fn node(&self) -> u64 {
        self.inner.id()
    }

    fn open(&mut self, image: &GroupImage) -> PyResult<()> {
        guarded(|| self.inner.open(image.inner.clone()))
    }

    fn close(&mut self, group: u64) {
        self.inner.close(group);
    }

    fn groups(&self) -> Vec<u64> {
        self.inner.groups().copied().collect()
    }

    fn tick(&mut self) -> PyResult<()> {
        guarded(|| {
            self.inner.tick();
            Ok(())
        })
    }

    fn step(&mut self, sender: u64, packed: &[u8]) -> PyResult<Vec<u64>> {
        guarded(|| self.inner.step(sender, packed))
    }

    fn step_snapshot(&mut self, group: u64, message: &[u8], data: &[u8]) -> PyResult<()> {
        guarded(|| self.inner.step_snapshot(group, message, data.to_vec()))
    }

    // Bytes are taken whole: a `Vec<u8>` as argument would be filled one Python number at a time.
    fn propose(&mut self, group: u64, entries: Vec<(u64, PyBackedBytes)>) -> PyResult<bool> {
        let entries = entries.into_iter().map(|(token, data)| (token, data.to_vec())).collect();
        guarded(|| self.inner.propose(group, entries))
    }

    #[pyo3(signature = (group, *, voters = vec![], learners = vec![], removed = vec![]))]
    fn configure(
        &mut self,
        group: u64,
        voters: Vec<u64>,
        learners: Vec<u64>,
        removed: Vec<u64>,
    ) -> PyResult<bool> {
        let change = raft::Configuration { voters, learners, removed };
        guarded(|| self.inner.propose_configuration(group, &change))
    }

    fn read_index(&mut self, group: u64, token: u64) -> PyResult<()> {
        self.inner.read_index(group, token).map_err(to_py)
    }

    fn transfer_leadership(&mut self, group: u64, to: u64) -> PyResult<()> {
        self.inner.transfer_leadership(group, to).map_err(to_py)
    }

    fn campaign(&mut self, group: u64) -> PyResult<()> {
        self.inner.campaign(group).map_err(to_py)
    }

    fn request_snapshot(&mut self, group: u64) -> PyResult<()> {
        self.inner.request_snapshot(group).map_err(to_py)
    }

    fn report_unreachable(&mut self, peer: u64) {
        self.inner.report_unreachable(peer);
    }

    fn report_snapshot(&mut self, group: u64, peer: u64, arrived: bool) {
        self.inner.report_snapshot(group, peer, arrived);
    }

    /// Returns the image to store and the first entry the store has to keep.
    fn compact<'py>(
        &mut self,
        py: Python<'py>,
        group: u64,
        index: u64,
        data: &[u8],
        trailing: u64,
    ) -> PyResult<(SnapshotTuple<'py>, u64)> {
        let data = data.to_vec();
        let (image, keep_from) = self.inner.compact(group, index, data, trailing).map_err(to_py)?;
        Ok((snapshot_to_py(py, &image), keep_from))
    }

    fn snapshot_data<'py>(
        &self,
        py: Python<'py>,
        group: u64,
        index: u64,
    ) -> Option<Bound<'py, PyBytes>> {
        self.inner.snapshot_data(group, index).map(|data| PyBytes::new(py, data))
    }

    fn standing(&self, group: u64) -> PyResult<StandingTuple> {
        self.inner.standing(group).map(standing_to_py).map_err(to_py)
    }

    fn progress(&self, group: u64) -> PyResult<Vec<(u64, u64, bool)>> {
        self.inner.progress(group).map_err(to_py)
    }

    fn seats(&self, group: u64) -> PyResult<SeatsTuple> {
        self.inner.seats(group).map(seats_to_py).map_err(to_py)
    }

    fn quiet_ticks(&self, group: u64) -> PyResult<usize> {
        self.inner.quiet_ticks(group).map_err(to_py)
    }

    fn log_size(&self, group: u64) -> PyResult<(usize, usize)> {
        self.inner.log_size(group).map_err(to_py)
    }

    fn persisted(&mut self, number: u64) -> PyResult<()> {
        guarded(|| {
            self.inner.persisted(number);
            Ok(())
        })
    }

    fn turn(&mut self, py: Python<'_>) -> PyResult<Turn> {
        let turn = guarded(|| self.inner.turn())?;
        let bytes = |data: &[u8]| PyBytes::new(py, data).unbind();
        Ok(Turn {
            outbox: turn.outbox.iter().map(|(peer, packed)| (*peer, bytes(packed))).collect(),
            snapshots: turn
                .snapshots
                .iter()
                .map(|offer| (offer.peer, offer.group, offer.index, bytes(&offer.message)))
                .collect(),
            write: turn.write.map(|inner| Py::new(py, WriteBatch { inner })).transpose()?,
            committed: turn
                .committed
                .into_iter()
                .map(|entry| {
                    let data = bytes(&entry.data);
                    let seats = entry.seats.map(seats_to_py);
                    (entry.group, entry.index, entry.term, entry.token, data, seats)
                })
                .collect(),
            restored: turn
                .restored
                .iter()
                .map(|(group, image)| (*group, image.index, bytes(&image.data)))
                .collect(),
            reads: turn.reads.iter().map(|read| (read.group, read.token, read.index)).collect(),
            standings: turn.standings.into_iter().map(standing_to_py).collect(),
            snapshots_wanted: turn.snapshots_wanted,
            more: turn.more,
        })
    }
}
