//! The Python face of `hyperscale-core`: converts arguments and maps errors,
//! decides nothing.

use hyperscale_core::guard;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

mod engine;
mod exchange;
mod hist;
mod recorder;
mod target;

/// Ties the life of this process group to its parent and its control socket.
#[pyfunction]
fn guard_process(control_fd: i32, parent_pid: i32) -> PyResult<()> {
    guard::guard_process(control_fd, parent_pid)
        .map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<hist::Histogram>()?;
    module.add_class::<recorder::Recorder>()?;
    module.add_class::<exchange::Exchange>()?;
    module.add_class::<engine::Tls>()?;
    module.add_class::<engine::Template>()?;
    module.add_class::<engine::Engine>()?;
    module.add_class::<engine::Call>()?;
    module.add_class::<engine::Program>()?;
    module.add_function(wrap_pyfunction!(engine::resolve, module)?)?;
    module.add_function(wrap_pyfunction!(engine::url_error, module)?)?;
    module.add_function(wrap_pyfunction!(guard_process, module)?)?;
    module.add_class::<target::Target>()?;
    module.add_function(wrap_pyfunction!(target::self_signed, module)?)?;
    Ok(())
}
