//! The one thread that writes. Takes all that is queued, one transaction, one sync, again.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rusqlite::{params, Connection, Transaction};

use super::reading::{checksum, HistoryRow};
use super::StoreError;
use crate::hist::Histogram;
use crate::raft::{GroupImage, GroupWrite, Hard, SnapshotImage, WriteBatch};

const OPS_PER_TRANSACTION: usize = 1_024;

pub enum Op {
    Write(WriteBatch),
    Snapshot { group: u64, image: SnapshotImage, keep_from: u64 },
    Create(GroupImage),
    Destroy(u64),
    Meta(String, Vec<u8>),
    History(Vec<HistoryRow>),
    Prune(i64),
}

impl Op {
    pub fn bytes(&self) -> usize {
        const ROW: usize = 32;
        match self {
            Self::Write(batch) => batch.groups.iter().map(group_bytes).sum(),
            Self::Snapshot { image, .. } => ROW + image.data.len(),
            Self::Create(image) => ROW + image.snapshot.data.len(),
            Self::Destroy(_) | Self::Prune(_) => ROW,
            Self::Meta(key, value) => ROW + key.len() + value.len(),
            Self::History(rows) => rows.iter().map(|row| ROW + row.data.len()).sum(),
        }
    }
}

fn group_bytes(write: &GroupWrite) -> usize {
    let entries: usize = write.entries.iter().map(|entry| 32 + entry.data.len()).sum();
    32 + entries + write.snapshot.as_ref().map_or(0, |image| image.data.len())
}

/// How the disk has done so far.
#[derive(Clone, Default)]
pub struct Figures {
    pub transactions: u64,
    pub rows: u64,
    pub bytes: u64,
    /// Nanoseconds from the last statement to the end of the sync.
    pub sync: Histogram,
}

struct State {
    durable: Result<u64, StoreError>,
    figures: Figures,
}

/// What the writer and the host both see.
pub struct Shared {
    pub wake: OwnedFd,
    state: Mutex<State>,
    pending: AtomicUsize,
}

impl Shared {
    pub fn new(wake: OwnedFd) -> Self {
        let state = State { durable: Ok(0), figures: Figures::default() };
        Self { wake, state: Mutex::new(state), pending: AtomicUsize::new(0) }
    }

    pub fn durable(&self) -> Result<u64, StoreError> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).durable.clone()
    }

    pub fn figures(&self) -> Figures {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).figures.clone()
    }

    pub fn pending_bytes(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    pub fn add_pending(&self, bytes: usize) {
        self.pending.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn clear_wake(&self) {
        // Nothing to read means nothing to clear.
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
    }

    fn announce(&self) {
        // Only a counter at its maximum refuses, and then the host is awake already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// Writes until the queue is dropped and empty, or the first error.
pub fn run(mut connection: Connection, inbox: &Receiver<(u64, Op)>, shared: &Shared) {
    while let Ok(first) = inbox.recv() {
        let mut ops = vec![first];
        while ops.len() < OPS_PER_TRANSACTION {
            let Ok(next) = inbox.try_recv() else { break };
            ops.push(next);
        }
        let bytes = ops.iter().map(|(_, op)| op.bytes()).sum();
        let last = ops.last().map_or(0, |(ticket, _)| *ticket);
        let outcome = commit(&mut connection, ops);
        shared.pending.fetch_sub(bytes, Ordering::Relaxed);
        let failed = outcome.is_err();
        {
            let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
            match outcome {
                Ok((rows, sync_ns)) => {
                    state.durable = Ok(last);
                    state.figures.transactions += 1;
                    state.figures.rows += rows;
                    state.figures.bytes += bytes as u64;
                    state.figures.sync.record(sync_ns, 1);
                }
                Err(error) => state.durable = Err(error),
            }
        }
        shared.announce();
        if failed {
            return;
        }
    }
    // A clean end leaves no journal behind; one that is left says the same as the file.
    let _ = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
}

fn commit(connection: &mut Connection, ops: Vec<(u64, Op)>) -> Result<(u64, u64), StoreError> {
    let transaction = connection.transaction()?;
    let mut rows = 0;
    let mut freed = false;
    for (_, op) in ops {
        freed |= matches!(op, Op::Snapshot { .. } | Op::Destroy(_) | Op::Prune(_));
        rows += apply(&transaction, op)?;
    }
    let begin = Instant::now();
    transaction.commit()?;
    let sync_ns = begin.elapsed().as_nanos() as u64;
    if freed {
        // A few thousand pages at a time: the sync that follows must stay short.
        let mut vacuum = connection.prepare_cached("PRAGMA incremental_vacuum(4096)")?;
        let mut pages = vacuum.query([])?;
        while pages.next()?.is_some() {} // each step frees one
    }
    Ok((rows, sync_ns))
}

fn apply(to: &Transaction<'_>, op: Op) -> Result<u64, StoreError> {
    match op {
        Op::Write(batch) => {
            let mut rows = 0;
            for group in batch.groups {
                rows += write_group(to, group)?;
            }
            Ok(rows)
        }
        Op::Snapshot { group, image, keep_from } => {
            put_snapshot(to, group, &image)?;
            to.prepare_cached("DELETE FROM log WHERE gid = ?1 AND idx < ?2")?
                .execute(params![group, keep_from])?;
            Ok(1)
        }
        Op::Create(image) => {
            put_hard(to, image.group, image.hard)?;
            put_snapshot(to, image.group, &image.snapshot)?;
            Ok(2)
        }
        Op::Destroy(group) => {
            for table in ["hard", "log", "snap"] {
                to.prepare_cached(&format!("DELETE FROM {table} WHERE gid = ?1"))?
                    .execute([group])?;
            }
            Ok(3)
        }
        Op::Meta(key, value) => {
            to.prepare_cached("INSERT OR REPLACE INTO meta VALUES (?1, ?2)")?
                .execute(params![key, value])?;
            Ok(1)
        }
        Op::History(rows) => {
            // Replayed entries come again after a restart, and say the same.
            let mut insert =
                to.prepare_cached("INSERT OR IGNORE INTO history VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
            for row in &rows {
                insert.execute(params![
                    row.job_id,
                    row.group,
                    row.index,
                    row.stamp_ms,
                    row.kind,
                    row.data
                ])?;
            }
            Ok(rows.len() as u64)
        }
        Op::Prune(before_ms) => {
            let gone =
                to.prepare_cached("DELETE FROM history WHERE ts < ?1")?.execute([before_ms])?;
            Ok(gone as u64)
        }
    }
}

fn write_group(to: &Transaction<'_>, write: GroupWrite) -> Result<u64, StoreError> {
    put_hard(to, write.group, write.hard)?;
    if let Some(image) = &write.snapshot {
        put_snapshot(to, write.group, image)?;
        to.prepare_cached("DELETE FROM log WHERE gid = ?1")?.execute([write.group])?;
    }
    let Some(first) = write.entries.first().map(|entry| entry.index) else { return Ok(1) };
    to.prepare_cached("DELETE FROM log WHERE gid = ?1 AND idx >= ?2")?
        .execute(params![write.group, first])?;
    let mut insert = to.prepare_cached("INSERT INTO log VALUES (?1, ?2, ?3, ?4, ?5)")?;
    for entry in &write.entries {
        insert.execute(params![write.group, entry.index, entry.term, entry.kind, entry.data])?;
    }
    Ok(1 + write.entries.len() as u64)
}

fn put_hard(to: &Transaction<'_>, group: u64, hard: Hard) -> Result<(), StoreError> {
    to.prepare_cached("INSERT OR REPLACE INTO hard VALUES (?1, ?2, ?3, ?4)")?.execute(params![
        group,
        hard.term,
        hard.vote,
        hard.commit
    ])?;
    Ok(())
}

fn put_snapshot(to: &Transaction<'_>, group: u64, image: &SnapshotImage) -> Result<(), StoreError> {
    to.prepare_cached("INSERT OR REPLACE INTO snap VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?.execute(
        params![group, image.index, image.term, image.conf, checksum(&image.data), image.data],
    )?;
    Ok(())
}
