//! The durable store for Python; writes are tickets, reads release the GIL.

use std::path::PathBuf;

use hyperscale_core::raft::SnapshotImage;
use hyperscale_core::store::{HistoryQuery, HistoryRow, Store, StoreError};
use pyo3::create_exception;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::hist::Histogram;
use crate::raft::{to_py, GroupImage, LedgerError, WriteBatch};

create_exception!(
    hyperscale._native,
    LedgerLockedError,
    LedgerError,
    "Another process has the store."
);
create_exception!(hyperscale._native, LedgerDamagedError, LedgerError, "The store is damaged.");
create_exception!(hyperscale._native, LedgerNewerError, LedgerError, "A newer version wrote it.");

fn open_error(error: StoreError) -> PyErr {
    let text = error.to_string();
    match error {
        StoreError::Locked(_) => LedgerLockedError::new_err(text),
        StoreError::Corrupt(..) => LedgerDamagedError::new_err(text),
        StoreError::Newer(..) => LedgerNewerError::new_err(text),
        StoreError::Failed(_) => to_py(text),
    }
}

/// Job, group, index, stamp in ms, kind, data.
type HistoryTuple<'py> = (String, u64, u64, i64, String, Bound<'py, PyBytes>);

#[pyclass(module = "hyperscale._native", frozen)]
pub struct LedgerStore {
    inner: Store,
}

#[pymethods]
impl LedgerStore {
    #[new]
    fn new(py: Python<'_>, directory: PathBuf) -> PyResult<Self> {
        Ok(Self { inner: py.detach(|| Store::open(&directory)).map_err(open_error)? })
    }

    fn fileno(&self) -> i32 {
        self.inner.fd()
    }

    fn durable(&self) -> PyResult<u64> {
        self.inner.durable().map_err(to_py)
    }

    #[getter]
    fn pending_bytes(&self) -> usize {
        self.inner.pending_bytes()
    }

    /// Transactions, rows, bytes, and a histogram of the time each sync took.
    fn figures(&self) -> (u64, u64, u64, Histogram) {
        let figures = self.inner.figures();
        (figures.transactions, figures.rows, figures.bytes, Histogram { inner: figures.sync })
    }

    fn write(&self, batch: &WriteBatch) -> u64 {
        self.inner.write(batch.inner.clone())
    }

    fn save_snapshot(
        &self,
        group: u64,
        image: (u64, u64, PyBackedBytes, PyBackedBytes),
        keep_from: u64,
    ) -> u64 {
        let (index, term, conf, data) = image;
        let (conf, data) = (conf.to_vec(), data.to_vec());
        self.inner.save_snapshot(group, SnapshotImage { index, term, conf, data }, keep_from)
    }

    fn create(&self, image: &GroupImage) -> u64 {
        self.inner.create(image.inner.clone())
    }

    fn destroy(&self, group: u64) -> u64 {
        self.inner.destroy(group)
    }

    fn put_meta(&self, key: String, value: &[u8]) -> u64 {
        self.inner.put_meta(key, value.to_vec())
    }

    fn add_history(&self, rows: Vec<(String, u64, u64, i64, String, PyBackedBytes)>) -> u64 {
        let rows = rows
            .into_iter()
            .map(|(job_id, group, index, stamp_ms, kind, data)| HistoryRow {
                job_id,
                group,
                index,
                stamp_ms,
                kind,
                data: data.to_vec(),
            })
            .collect();
        self.inner.add_history(rows)
    }

    fn prune_history(&self, before_ms: i64) -> u64 {
        self.inner.prune_history(before_ms)
    }

    fn load(&self, py: Python<'_>) -> PyResult<Vec<GroupImage>> {
        let images = py.detach(|| self.inner.load()).map_err(to_py)?;
        Ok(images.into_iter().map(|inner| GroupImage { inner }).collect())
    }

    fn meta<'py>(&self, py: Python<'py>) -> PyResult<Vec<(String, Bound<'py, PyBytes>)>> {
        let rows = self.inner.meta().map_err(to_py)?;
        Ok(rows.into_iter().map(|(key, value)| (key, PyBytes::new(py, &value))).collect())
    }

    /// Rows oldest first, after the (stamp, group, index) given, at most `limit`.
    #[pyo3(signature = (*, job_id = None, group = None, since_ms = 0, after = (i64::MIN, 0, 0), limit = 1_000))]
    fn history<'py>(
        &self,
        py: Python<'py>,
        job_id: Option<String>,
        group: Option<u64>,
        since_ms: i64,
        after: (i64, u64, u64),
        limit: u32,
    ) -> PyResult<Vec<HistoryTuple<'py>>> {
        let query = HistoryQuery { job_id, group, since_ms, after, limit };
        let rows = py.detach(|| self.inner.history(&query)).map_err(to_py)?;
        Ok(rows
            .into_iter()
            .map(|row| {
                let data = PyBytes::new(py, &row.data);
                (row.job_id, row.group, row.index, row.stamp_ms, row.kind, data)
            })
            .collect())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let inner = &self.inner;
        py.detach(|| inner.close()).map_err(|error: StoreError| to_py(error))
    }
}
