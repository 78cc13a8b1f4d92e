//! What was written, read back: groups at start-up, history at any time.

use rusqlite::{params, Connection};

use super::StoreError;
use crate::raft::{GroupImage, Hard, LogEntry, SnapshotImage};

/// One thing that happened to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryRow {
    pub job_id: String,
    pub group: u64,
    pub index: u64,
    pub stamp_ms: i64,
    pub kind: String,
    pub data: Vec<u8>,
}

/// Which rows, oldest first. Pages go on `after` the last (stamp, group, index) seen.
#[derive(Clone, Debug, Default)]
pub struct HistoryQuery {
    pub job_id: Option<String>,
    pub group: Option<u64>,
    pub since_ms: i64,
    pub after: (i64, u64, u64),
    pub limit: u32,
}

pub fn groups(connection: &Connection) -> Result<Vec<GroupImage>, StoreError> {
    let mut images = Vec::new();
    let mut hard = connection.prepare("SELECT gid, term, vote, commit_idx FROM hard ORDER BY 1")?;
    let mut rows = hard.query([])?;
    while let Some(row) = rows.next()? {
        let group: u64 = row.get(0)?;
        images.push(GroupImage {
            group,
            hard: Hard { term: row.get(1)?, vote: row.get(2)?, commit: row.get(3)? },
            snapshot: snapshot(connection, group)?,
            entries: entries(connection, group)?,
        });
    }
    Ok(images)
}

fn snapshot(connection: &Connection, group: u64) -> Result<SnapshotImage, StoreError> {
    let mut query =
        connection.prepare_cached("SELECT idx, term, conf, crc, data FROM snap WHERE gid = ?1")?;
    let mut rows = query.query([group])?;
    let Some(row) = rows.next()? else { return Ok(SnapshotImage::default()) };
    let image = SnapshotImage {
        index: row.get(0)?,
        term: row.get(1)?,
        conf: row.get(2)?,
        data: row.get(4)?,
    };
    if row.get::<_, u32>(3)? != checksum(&image.data) {
        return Err(StoreError::Corrupt(
            "ledger.db".to_owned(),
            format!("the snapshot of group {group} fails its checksum"),
        ));
    }
    Ok(image)
}

fn entries(connection: &Connection, group: u64) -> Result<Vec<LogEntry>, StoreError> {
    let mut query = connection
        .prepare_cached("SELECT idx, term, kind, data FROM log WHERE gid = ?1 ORDER BY idx")?;
    let rows = query.query_map([group], |row| {
        Ok(LogEntry { index: row.get(0)?, term: row.get(1)?, kind: row.get(2)?, data: row.get(3)? })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub fn checksum(data: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(data);
    crc.sum()
}

pub fn meta(connection: &Connection) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
    let mut query = connection.prepare_cached("SELECT key, value FROM meta ORDER BY key")?;
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub fn history(
    connection: &Connection,
    wanted: &HistoryQuery,
) -> Result<Vec<HistoryRow>, StoreError> {
    let mut query = connection.prepare_cached(
        "SELECT job_id, gid, idx, ts, kind, data FROM history
         WHERE (?1 IS NULL OR job_id = ?1) AND (?2 IS NULL OR gid = ?2) AND ts >= ?3
           AND (ts, gid, idx) > (?4, ?5, ?6)
         ORDER BY ts, gid, idx, job_id, kind LIMIT ?7",
    )?;
    let (after_ts, after_group, after_index) = wanted.after;
    let rows = query.query_map(
        params![
            wanted.job_id,
            wanted.group,
            wanted.since_ms,
            after_ts,
            after_group,
            after_index,
            wanted.limit
        ],
        |row| {
            Ok(HistoryRow {
                job_id: row.get(0)?,
                group: row.get(1)?,
                index: row.get(2)?,
                stamp_ms: row.get(3)?,
                kind: row.get(4)?,
                data: row.get(5)?,
            })
        },
    )?;
    Ok(rows.collect::<Result<_, _>>()?)
}
