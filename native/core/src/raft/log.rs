//! The in-memory log of one group, as the consensus core reads it. Holds what was handed
//! to the store, whether or not the disk has it yet; the core keeps count of that itself.

use std::cell::Cell;
use std::collections::VecDeque;

use ::raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use ::raft::{Error, GetEntriesContext, RaftState, Result, Storage, StorageError};
use protobuf::Message as _;

use super::image::{GroupImage, SnapshotImage};
use super::RaftError;

pub struct Log {
    hard: HardState,
    conf: ConfState,
    entries: VecDeque<Entry>,
    /// Index and term of the entry before the first one kept.
    before: (u64, u64),
    snapshot: Snapshot,
    /// A follower needs a snapshot newer than the one at hand.
    wanted: Cell<bool>,
}

impl Log {
    pub fn new(image: GroupImage) -> std::result::Result<Self, RaftError> {
        let SnapshotImage { index, term, .. } = image.snapshot;
        let mut entries = VecDeque::with_capacity(image.entries.len());
        for stored in image.entries {
            if let Some(last) = entries.back().map(|entry: &Entry| entry.index) {
                if stored.index != last + 1 {
                    return Err(RaftError::Corrupt(format!(
                        "group {}: entry {} follows entry {last}",
                        image.group, stored.index
                    )));
                }
            }
            entries.push_back(Entry::try_from(stored)?);
        }
        let before = match entries.front().map(|entry| entry.index) {
            None => (index, term),
            Some(first) if first == index + 1 => (index, term),
            // Trailing entries reach behind the snapshot. The term before them is unknown
            // and never asked for with success: `term` answers "compacted".
            Some(first) if first <= index => (first.saturating_sub(1), 0),
            Some(first) => {
                return Err(RaftError::Corrupt(format!(
                    "group {}: the log begins at {first}, the snapshot ends at {index}",
                    image.group
                )))
            }
        };
        let last = entries.back().map_or(before.0, |entry| entry.index);
        if last < index || image.hard.commit > last {
            return Err(RaftError::Corrupt(format!(
                "group {}: the log ends at {last}, the snapshot at {index}, and {} was committed",
                image.group, image.hard.commit
            )));
        }
        let mut hard = HardState::from(image.hard);
        hard.commit = hard.commit.max(index);
        Ok(Self {
            hard,
            conf: image.snapshot.conf_state()?,
            entries,
            before,
            snapshot: image.snapshot.to_snapshot()?,
            wanted: Cell::new(false),
        })
    }

    /// Nothing has come from the group's leader yet.
    pub fn is_blank(&self) -> bool {
        self.entries.is_empty() && self.snapshot_index() == 0
    }

    pub fn snapshot_index(&self) -> u64 {
        self.snapshot.get_metadata().index
    }

    pub fn snapshot_data(&self, index: u64) -> Option<&[u8]> {
        (self.snapshot_index() == index).then_some(&*self.snapshot.data)
    }

    pub fn hard(&self) -> &HardState {
        &self.hard
    }

    pub fn set_hard(&mut self, hard: &HardState) {
        self.hard = hard.clone();
    }

    /// Entries and bytes kept in memory.
    pub fn size(&self) -> (usize, usize) {
        (self.entries.len(), self.entries.iter().map(|entry| entry.data.len()).sum())
    }

    pub fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first().map(|entry| entry.index) else { return };
        let keep = first.saturating_sub(self.before.0 + 1);
        self.entries.truncate(keep as usize);
        self.entries.extend(entries.iter().cloned());
    }

    /// A snapshot came from the leader: it is the whole log now.
    pub fn install(&mut self, snapshot: Snapshot) {
        let meta = snapshot.get_metadata();
        self.before = (meta.index, meta.term);
        self.conf = meta.get_conf_state().clone();
        self.entries.clear();
        self.snapshot = snapshot;
    }

    /// A snapshot of our own: kept for followers, and the log shrinks to `trailing` entries.
    pub fn compact(&mut self, snapshot: Snapshot, trailing: u64) {
        let index = snapshot.get_metadata().index;
        self.snapshot = snapshot;
        self.wanted.set(false);
        let keep_from = index.saturating_sub(trailing) + 1;
        while self.entries.front().is_some_and(|entry| entry.index < keep_from) {
            if let Some(entry) = self.entries.pop_front() {
                self.before = (entry.index, entry.term);
            }
        }
    }

    pub fn first_kept(&self) -> u64 {
        self.before.0 + 1
    }

    pub fn take_wanted(&self) -> bool {
        self.wanted.take()
    }

    fn last(&self) -> u64 {
        self.entries.back().map_or(self.before.0, |entry| entry.index)
    }

    fn at(&self, index: u64) -> Option<&Entry> {
        self.entries.get(index.checked_sub(self.before.0 + 1)? as usize)
    }
}

impl Storage for Log {
    fn initial_state(&self) -> Result<RaftState> {
        Ok(RaftState::new(self.hard.clone(), self.conf.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        if low <= self.before.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        if high > self.last() + 1 {
            return Err(Error::Store(StorageError::Unavailable));
        }
        let limit = max_size.into().unwrap_or(u64::MAX);
        let mut size = 0_u64;
        let mut found = Vec::new();
        for index in low..high {
            let Some(entry) = self.at(index) else { break };
            size = size.saturating_add(u64::from(entry.compute_size()));
            if !found.is_empty() && size > limit {
                break;
            }
            found.push(entry.clone());
        }
        Ok(found)
    }

    fn term(&self, index: u64) -> Result<u64> {
        let meta = self.snapshot.get_metadata();
        if index == meta.index {
            return Ok(meta.term);
        }
        if index == self.before.0 && self.before.1 != 0 {
            return Ok(self.before.1);
        }
        if index <= self.before.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        match self.at(index) {
            Some(entry) => Ok(entry.term),
            None => Err(Error::Store(StorageError::Unavailable)),
        }
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.first_kept())
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, to: u64) -> Result<Snapshot> {
        // One that ends before the first entry kept would leave a hole behind it, and a node
        // refuses one of a time when it did not take part.
        let seats = self.snapshot.get_metadata().get_conf_state();
        let is_in = [&seats.voters, &seats.learners, &seats.voters_outgoing]
            .into_iter()
            .any(|ids| ids.contains(&to));
        if !is_in || self.snapshot_index() < request_index.max(self.before.0) {
            self.wanted.set(true);
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        Ok(self.snapshot.clone())
    }
}
