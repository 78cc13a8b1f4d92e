//! The store on a real disk: restarts, rewritten tails, damage, history.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::*;
use crate::raft::{GroupWrite, Hard, LogEntry};

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("store-{}-{name}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        Self(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn until(store: &Store, ticket: u64) {
    let begin = Instant::now();
    while store.durable().unwrap() < ticket {
        assert!(begin.elapsed() < Duration::from_secs(30));
        std::thread::yield_now();
    }
}

fn entries(range: std::ops::RangeInclusive<u64>, term: u64) -> Vec<LogEntry> {
    range.map(|index| LogEntry { index, term, kind: 0, data: vec![term as u8; 100] }).collect()
}

fn batch(number: u64, term: u64, entries: Vec<LogEntry>) -> WriteBatch {
    let hard = Hard { term, vote: 2, commit: 1 };
    WriteBatch { number, groups: vec![GroupWrite { group: 7, hard, entries, snapshot: None }] }
}

#[test]
fn what_is_durable_is_there_after_a_restart() {
    let place = Place::new("restart");
    let store = Store::open(&place.0).unwrap();
    store.create(GroupImage::first(7, vec![1, 2, 3], b"born".to_vec()).unwrap());
    store.write(batch(1, 1, entries(2..=9, 1)));
    let last = store.put_meta("number".to_owned(), b"3".to_vec());
    until(&store, last);
    drop(store);
    let store = Store::open(&place.0).unwrap();
    let images = store.load().unwrap();
    assert_eq!(images.len(), 1);
    assert_eq!(images[0].hard, Hard { term: 1, vote: 2, commit: 1 });
    assert_eq!(images[0].snapshot.data, b"born");
    assert_eq!(images[0].entries, entries(2..=9, 1));
    assert_eq!(store.meta().unwrap(), vec![("number".to_owned(), b"3".to_vec())]);
}

#[test]
fn a_rewritten_tail_replaces_the_old_one_whole() {
    let place = Place::new("tail");
    let store = Store::open(&place.0).unwrap();
    store.create(GroupImage::first(7, vec![1], vec![]).unwrap());
    store.write(batch(1, 1, entries(2..=9, 1)));
    let last = store.write(batch(2, 2, entries(5..=6, 2)));
    until(&store, last);
    let found = &store.load().unwrap()[0].entries;
    assert_eq!(
        found.iter().map(|e| (e.index, e.term)).collect::<Vec<_>>(),
        [(2, 1), (3, 1), (4, 1), (5, 2), (6, 2)]
    );
}

#[test]
fn a_snapshot_lets_the_log_before_it_go_and_the_file_shrink() {
    let place = Place::new("shrink");
    let store = Store::open(&place.0).unwrap();
    store.create(GroupImage::first(7, vec![1], vec![]).unwrap());
    let mut last = 0;
    for part in 0..20 {
        let first = 2 + part * 1_000;
        last = store.write(batch(part + 1, 1, entries(first..=first + 999, 1)));
    }
    until(&store, last);
    let image = SnapshotImage { index: 20_001, term: 1, conf: vec![], data: vec![1; 100] };
    until(&store, store.save_snapshot(7, image, 19_992));
    assert_eq!(store.load().unwrap()[0].entries.len(), 10);
    drop(store);
    let file = rusqlite::Connection::open(place.0.join("ledger.db")).unwrap();
    let free: i64 = file.query_row("PRAGMA freelist_count", [], |row| row.get(0)).unwrap();
    assert!(free < 10, "{free} pages are free");
    drop(file);
    let left = std::fs::metadata(place.0.join("ledger.db")).unwrap().len();
    assert!(left < 200_000, "{left} bytes are left");
}

#[test]
fn a_directory_belongs_to_one_process_part_at_a_time() {
    let place = Place::new("lock");
    let store = Store::open(&place.0).unwrap();
    assert!(matches!(Store::open(&place.0), Err(StoreError::Locked(_))));
    drop(store);
    assert!(Store::open(&place.0).is_ok());
}

#[test]
fn damage_is_found_when_it_is_opened() {
    let place = Place::new("damage");
    drop(Store::open(&place.0).unwrap());
    std::fs::write(place.0.join("ledger.db"), vec![7; 8_192]).unwrap();
    assert!(matches!(Store::open(&place.0), Err(StoreError::Corrupt(..))));
}

#[test]
fn history_is_paged_filtered_and_pruned() {
    let place = Place::new("history");
    let store = Store::open(&place.0).unwrap();
    let row = |index: u64| HistoryRow {
        job_id: format!("job-{}", index % 2),
        group: 7,
        index,
        stamp_ms: index as i64 * 10,
        kind: "submitted".to_owned(),
        data: vec![],
    };
    store.add_history((1..=10).map(row).collect());
    let last = store.add_history((1..=10).map(row).collect());
    until(&store, last);
    let all = HistoryQuery { after: (i64::MIN, 0, 0), limit: 4, ..HistoryQuery::default() };
    let page = store.history(&all).unwrap();
    assert_eq!(page.iter().map(|row| row.index).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let next = HistoryQuery { after: (40, 7, 4), ..all.clone() };
    assert_eq!(store.history(&next).unwrap()[0].index, 5);
    let one = HistoryQuery { job_id: Some("job-1".to_owned()), limit: 100, ..all.clone() };
    assert_eq!(store.history(&one).unwrap().len(), 5);
    until(&store, store.prune_history(55));
    let rest = store.history(&HistoryQuery { limit: 100, ..all }).unwrap();
    assert_eq!(rest[0].index, 6);
}
