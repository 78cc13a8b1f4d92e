use hyperscale_core::noise::{self, NoiseError, KEY_BYTES};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// One side of the key exchange of a connection.
#[pyclass(module = "hyperscale._native")]
pub struct KeyExchange {
    inner: noise::KeyExchange,
}

fn to_py_err(error: NoiseError) -> PyErr {
    match error {
        NoiseError::Unreadable => PyValueError::new_err(error.to_string()),
        NoiseError::OutOfTurn | NoiseError::Unusable(_) => {
            PyRuntimeError::new_err(error.to_string())
        }
    }
}

#[pymethods]
impl KeyExchange {
    #[new]
    #[pyo3(signature = (psk, context, *, is_dialer))]
    fn new(psk: [u8; KEY_BYTES], context: &[u8], is_dialer: bool) -> PyResult<Self> {
        let inner = noise::KeyExchange::new(&psk, context, is_dialer).map_err(to_py_err)?;
        Ok(Self { inner })
    }

    fn write<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.inner.write().map(|message| PyBytes::new(py, &message)).map_err(to_py_err)
    }

    fn read(&mut self, message: &[u8]) -> PyResult<()> {
        self.inner.read(message).map_err(to_py_err)
    }

    fn keys<'py>(
        &mut self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let (dialer, acceptor) = self.inner.keys().map_err(to_py_err)?;
        Ok((PyBytes::new(py, &dialer), PyBytes::new(py, &acceptor)))
    }
}
