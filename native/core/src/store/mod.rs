//! The durable store below the ledger: one SQLite file, one writer thread.
//!
//! Whatever queued up while the last transaction was being synced goes into the next one, so
//! the disk is asked once for many writes and no timer is needed. Completion is announced on
//! an eventfd. The first error ends the store for good: nothing after it is written, and the
//! host stops the node. Files: `ledger.db` (and SQLite's own beside it), `lock`.

mod reading;
mod schema;
mod writer;

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rusqlite::Connection;
use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{flock, FlockOperation};

use crate::raft::{GroupImage, SnapshotImage, WriteBatch};
pub use reading::{HistoryQuery, HistoryRow};
pub use writer::Figures;
use writer::{Op, Shared};

#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    #[error("another process uses the data directory {0}")]
    Locked(String),
    #[error("the ledger {0} is damaged: {1}")]
    Corrupt(String, String),
    #[error("the ledger could not be written or read: {0}")]
    Failed(String),
    #[error("the ledger {0} was written by a newer version (schema {1})")]
    Newer(String, i64),
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<std::io::Error> for StoreError {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

pub struct Store {
    shared: Arc<Shared>,
    intake: Mutex<Intake>,
    reader: Mutex<Connection>,
    _lock: File,
}

struct Intake {
    queue: Option<Sender<(u64, Op)>>,
    writer: Option<JoinHandle<()>>,
    next_ticket: u64,
}

impl Store {
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        std::fs::create_dir_all(directory)?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(directory.join("lock"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| StoreError::Locked(directory.display().to_string()))?;
        let path = directory.join("ledger.db");
        let connection = schema::open(&path)?;
        let reader = schema::open_reader(&path)?;
        let wake: OwnedFd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| StoreError::Failed(error.to_string()))?;
        let shared = Arc::new(Shared::new(wake));
        let (queue, inbox) = mpsc::channel();
        let writer = std::thread::Builder::new().name("ledger-writer".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || writer::run(connection, &inbox, &shared)
        })?;
        Ok(Self {
            shared,
            intake: Mutex::new(Intake { queue: Some(queue), writer: Some(writer), next_ticket: 1 }),
            reader: Mutex::new(reader),
            _lock: lock,
        })
    }

    pub fn fd(&self) -> RawFd {
        self.shared.wake.as_raw_fd()
    }

    /// The highest ticket on disk, or why there will be no more. Clears the wake-up.
    pub fn durable(&self) -> Result<u64, StoreError> {
        self.shared.clear_wake();
        self.shared.durable()
    }

    pub fn figures(&self) -> Figures {
        self.shared.figures()
    }

    /// Bytes handed over and not yet on disk.
    pub fn pending_bytes(&self) -> usize {
        self.shared.pending_bytes()
    }

    fn intake(&self) -> MutexGuard<'_, Intake> {
        self.intake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(&self, op: Op) -> u64 {
        let mut intake = self.intake();
        let ticket = intake.next_ticket;
        intake.next_ticket += 1;
        self.shared.add_pending(op.bytes());
        if let Some(queue) = &intake.queue {
            // A writer that stopped has left its reason in `durable`.
            drop(queue.send((ticket, op)));
        }
        ticket
    }

    pub fn write(&self, batch: WriteBatch) -> u64 {
        self.submit(Op::Write(batch))
    }

    /// Keeps the group's state as of `image.index` and drops entries before `keep_from`.
    pub fn save_snapshot(&self, group: u64, image: SnapshotImage, keep_from: u64) -> u64 {
        self.submit(Op::Snapshot { group, image, keep_from })
    }

    /// A group begins here from this image.
    pub fn create(&self, image: GroupImage) -> u64 {
        self.submit(Op::Create(image))
    }

    pub fn destroy(&self, group: u64) -> u64 {
        self.submit(Op::Destroy(group))
    }

    pub fn put_meta(&self, key: String, value: Vec<u8>) -> u64 {
        self.submit(Op::Meta(key, value))
    }

    pub fn add_history(&self, rows: Vec<HistoryRow>) -> u64 {
        self.submit(Op::History(rows))
    }

    pub fn prune_history(&self, before_ms: i64) -> u64 {
        self.submit(Op::Prune(before_ms))
    }

    fn read<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let connection = self
            .reader
            .lock()
            .map_err(|_| StoreError::Failed("a reader ended in the middle".to_owned()))?;
        read(&connection)
    }

    pub fn load(&self) -> Result<Vec<GroupImage>, StoreError> {
        self.read(reading::groups)
    }

    pub fn meta(&self) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.read(reading::meta)
    }

    pub fn history(&self, query: &HistoryQuery) -> Result<Vec<HistoryRow>, StoreError> {
        self.read(|connection| reading::history(connection, query))
    }

    /// Writes what is queued, syncs, and lets the directory go.
    pub fn close(&self) -> Result<(), StoreError> {
        let mut intake = self.intake();
        intake.queue = None;
        if let Some(writer) = intake.writer.take() {
            if writer.join().is_err() {
                return Err(StoreError::Failed("the writer thread panicked".to_owned()));
            }
        }
        self.shared.durable().map(|_| ())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Whoever wanted to know has closed it before.
        drop(self.close());
    }
}

#[cfg(test)]
mod tests;
