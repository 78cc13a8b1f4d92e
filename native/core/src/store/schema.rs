//! The tables, and the pragmas that make a commit mean "on the disk".

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::StoreError;

const VERSION: i64 = 1;

const TABLES: &str = "
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE hard (gid INTEGER PRIMARY KEY, term INTEGER NOT NULL, vote INTEGER NOT NULL,
                   commit_idx INTEGER NOT NULL);
CREATE TABLE log (gid INTEGER NOT NULL, idx INTEGER NOT NULL, term INTEGER NOT NULL,
                  kind INTEGER NOT NULL, data BLOB NOT NULL,
                  PRIMARY KEY (gid, idx)) WITHOUT ROWID;
CREATE TABLE snap (gid INTEGER PRIMARY KEY, idx INTEGER NOT NULL, term INTEGER NOT NULL,
                   conf BLOB NOT NULL, crc INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE history (job_id TEXT NOT NULL, gid INTEGER NOT NULL, idx INTEGER NOT NULL,
                      ts INTEGER NOT NULL, kind TEXT NOT NULL, data BLOB NOT NULL,
                      PRIMARY KEY (job_id, gid, idx, kind)) WITHOUT ROWID;
CREATE INDEX history_by_time ON history (ts);
";

pub fn open(path: &Path) -> Result<Connection, StoreError> {
    let name = path.display().to_string();
    let connection = Connection::open(path)?;
    let damaged = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::NotADatabase | rusqlite::ErrorCode::DatabaseCorrupt) => {
            StoreError::Corrupt(name.clone(), error.to_string())
        }
        _ => StoreError::from(error),
    };
    // Deleted rows give their pages back: the file shrinks with what it holds.
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL").map_err(damaged)?;
    connection.pragma_update(None, "journal_mode", "WAL").map_err(damaged)?;
    connection.pragma_update(None, "synchronous", "FULL").map_err(damaged)?;
    connection.pragma_update(None, "wal_autocheckpoint", 4_000).map_err(damaged)?;
    connection.pragma_update(None, "journal_size_limit", 16 * 1024 * 1024).map_err(damaged)?;
    let version: i64 =
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(damaged)?;
    if version == 0 {
        connection
            .execute_batch(&format!("BEGIN; {TABLES} PRAGMA user_version = {VERSION}; COMMIT;"))
            .map_err(damaged)?;
    } else if version > VERSION {
        return Err(StoreError::Newer(name, version));
    }
    let verdict: String =
        connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(damaged)?;
    if verdict != "ok" {
        return Err(StoreError::Corrupt(name, verdict));
    }
    Ok(connection)
}

pub fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    Ok(connection)
}
