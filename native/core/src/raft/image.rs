//! What consensus needs kept on disk: the part of a group's state that must survive
//! a crash, as plain data. The store writes and reads these; neither knows the other.

use ::raft::eraftpb::{ConfState, Entry, EntryType, HardState, Snapshot};
use protobuf::Message as _;

use super::RaftError;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hard {
    pub term: u64,
    pub vote: u64,
    pub commit: u64,
}

impl From<&HardState> for Hard {
    fn from(state: &HardState) -> Self {
        Self { term: state.term, vote: state.vote, commit: state.commit }
    }
}

impl From<Hard> for HardState {
    fn from(hard: Hard) -> Self {
        Self { term: hard.term, vote: hard.vote, commit: hard.commit, ..Self::default() }
    }
}

/// One entry of the log. Who proposed it is forgotten: only the proposer's memory cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    pub index: u64,
    pub term: u64,
    pub kind: u8,
    pub data: Vec<u8>,
}

impl From<&Entry> for LogEntry {
    fn from(entry: &Entry) -> Self {
        Self {
            index: entry.index,
            term: entry.term,
            kind: entry.get_entry_type() as u8,
            data: entry.data.to_vec(),
        }
    }
}

impl TryFrom<LogEntry> for Entry {
    type Error = RaftError;

    fn try_from(stored: LogEntry) -> Result<Self, RaftError> {
        let entry_type = match stored.kind {
            0 => EntryType::EntryNormal,
            1 => EntryType::EntryConfChange,
            2 => EntryType::EntryConfChangeV2,
            other => {
                return Err(RaftError::Corrupt(format!(
                    "entry {} is of kind {other}, which no version wrote",
                    stored.index
                )))
            }
        };
        Ok(Self {
            index: stored.index,
            term: stored.term,
            entry_type,
            data: stored.data.into(),
            ..Self::default()
        })
    }
}

/// The state machine at `index`, and who the voters were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotImage {
    pub index: u64,
    pub term: u64,
    /// A protobuf `ConfState`.
    pub conf: Vec<u8>,
    pub data: Vec<u8>,
}

impl SnapshotImage {
    pub fn of(snapshot: &Snapshot) -> Result<Self, RaftError> {
        let meta = snapshot.get_metadata();
        Ok(Self {
            index: meta.index,
            term: meta.term,
            conf: meta.get_conf_state().write_to_bytes().map_err(RaftError::codec)?,
            data: snapshot.data.to_vec(),
        })
    }

    pub fn conf_state(&self) -> Result<ConfState, RaftError> {
        ConfState::parse_from_bytes(&self.conf).map_err(RaftError::codec)
    }

    pub fn to_snapshot(&self) -> Result<Snapshot, RaftError> {
        let mut snapshot = Snapshot::default();
        let meta = snapshot.mut_metadata();
        meta.index = self.index;
        meta.term = self.term;
        meta.set_conf_state(self.conf_state()?);
        snapshot.data = self.data.clone().into();
        Ok(snapshot)
    }
}

/// Everything of a group that was durable when the process ended.
#[derive(Clone, Debug, Default)]
pub struct GroupImage {
    pub group: u64,
    pub hard: Hard,
    pub snapshot: SnapshotImage,
    /// May begin before the snapshot's index: followers a little behind are served from here.
    pub entries: Vec<LogEntry>,
}

impl GroupImage {
    /// The birth of a group: every voter begins from this same image. It holds a snapshot, so
    /// that a node added later gets one and with it the voters of that time.
    pub fn first(group: u64, voters: Vec<u64>, data: Vec<u8>) -> Result<Self, RaftError> {
        let conf = ConfState { voters, ..ConfState::default() };
        Ok(Self {
            group,
            hard: Hard { term: 1, vote: 0, commit: 1 },
            snapshot: SnapshotImage {
                index: 1,
                term: 1,
                conf: conf.write_to_bytes().map_err(RaftError::codec)?,
                data,
            },
            entries: Vec::new(),
        })
    }
}

/// What one group must have on disk before its held messages may leave.
#[derive(Clone, Debug)]
pub struct GroupWrite {
    pub group: u64,
    pub hard: Hard,
    /// Replaces everything from its first index on.
    pub entries: Vec<LogEntry>,
    /// Replaces the whole log.
    pub snapshot: Option<SnapshotImage>,
}

/// The writes of one turn over all groups: durable together or not at all.
#[derive(Clone, Debug)]
pub struct WriteBatch {
    pub number: u64,
    pub groups: Vec<GroupWrite>,
}
