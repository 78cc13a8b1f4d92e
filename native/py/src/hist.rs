use hyperscale_core::hist;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

fn to_py(error: hist::HistError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

#[pyclass(module = "hyperscale._native")]
#[derive(Default)]
pub struct Histogram {
    pub inner: hist::Histogram,
}

#[pymethods]
impl Histogram {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    #[pyo3(signature = (value_ns, count = 1))]
    fn record(&mut self, value_ns: u64, count: u64) {
        self.inner.record(value_ns, count);
    }

    fn merge(&mut self, other: &Self) -> PyResult<()> {
        self.inner.merge(&other.inner).map_err(to_py)
    }

    #[staticmethod]
    fn merged(payloads: Vec<PyBackedBytes>) -> PyResult<Self> {
        let merged = hist::Histogram::merged(payloads.iter().map(AsRef::as_ref));
        Ok(Self { inner: merged.map_err(to_py)? })
    }

    fn reset(&mut self) {
        self.inner.reset();
    }

    fn copy(&self) -> Self {
        Self { inner: self.inner.clone() }
    }

    #[getter]
    fn count(&self) -> u64 {
        self.inner.count()
    }

    #[getter]
    fn min_ns(&self) -> u64 {
        self.inner.min()
    }

    #[getter]
    fn max_ns(&self) -> u64 {
        self.inner.max()
    }

    #[getter]
    fn mean_ns(&self) -> f64 {
        self.inner.mean()
    }

    #[getter]
    fn stdev_ns(&self) -> f64 {
        self.inner.stdev()
    }

    fn quantile_ns(&self, q: f64) -> u64 {
        self.inner.quantile(q)
    }

    fn encode<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.inner.encode().map_err(to_py)?))
    }

    fn encode_deflated<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.inner.encode_deflated().map_err(to_py)?))
    }

    #[staticmethod]
    fn decode(payload: &[u8]) -> PyResult<Self> {
        Ok(Self { inner: hist::Histogram::decode(payload).map_err(to_py)? })
    }
}
