//! The Python face of `hyperscale-core`: converts arguments and maps errors,
//! decides nothing.

use pyo3::prelude::*;

mod hist;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<hist::Histogram>()?;
    Ok(())
}
