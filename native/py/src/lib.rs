//! The Python face of `hyperscale-core`: converts arguments and maps errors, decides nothing. The
//! exception is the loop of a virtual user (`iteration`), whose every part is a Python object.

use hyperscale_core::confinement::{self, Enforcement};
use hyperscale_core::{guard, masking};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

mod call;
mod calls;
mod current_task;
mod engine;
mod exchange;
mod hist;
mod iteration;
mod judges;
mod loop_watch;
mod merge;
mod noise;
mod program;
mod raft;
mod recorder;
mod replay;
mod report;
mod sender;
mod store;
mod target;
mod template;
mod user_loop;
mod user_program;

/// Ties the life of this process group to its parent and its control socket.
#[pyfunction]
fn guard_process(control_fd: i32, parent_pid: i32) -> PyResult<()> {
    guard::guard_process(control_fd, parent_pid)
        .map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Leaves this process the files below these paths, and no capability. Returns "full", "partial" or
/// "none": what the kernel enforces of it.
#[pyfunction]
fn confine(read: Vec<String>, write: Vec<String>) -> PyResult<&'static str> {
    let failed = |error: confinement::ConfinementError| PyRuntimeError::new_err(error.to_string());
    let enforced = confinement::confine(&read, &write).map_err(failed)?;
    confinement::drop_capabilities().map_err(failed)?;
    Ok(match enforced {
        Enforcement::Full => "full",
        Enforcement::Partial => "partial",
        Enforcement::None => "none",
    })
}

/// The value of a header, or the target of a request, with its credentials masked.
#[pyfunction]
fn mask_header(name: &str, value: &str) -> String {
    masking::mask_value(name, value)
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<hist::Histogram>()?;
    module.add_class::<recorder::Recorder>()?;
    module.add_class::<report::Report>()?;
    module.add_class::<merge::StepCounts>()?;
    module.add_class::<report::CheckReport>()?;
    module.add_class::<report::MetricReport>()?;
    module.add_class::<merge::HoldReport>()?;
    module.add_class::<merge::MetricTotal>()?;
    module.add_class::<merge::SeriesValue>()?;
    module.add_class::<merge::Window>()?;
    module.add_class::<merge::FailureRow>()?;
    module.add_class::<merge::ReportMerge>()?;
    module.add_function(wrap_pyfunction!(report::shed_reports, module)?)?;
    module.add_class::<exchange::Exchange>()?;
    module.add_function(wrap_pyfunction!(replay::replay_http2, module)?)?;
    module.add_function(wrap_pyfunction!(replay::replay_websocket, module)?)?;
    module.add_class::<template::Tls>()?;
    module.add_class::<template::Route>()?;
    module.add_class::<template::Template>()?;
    module.add_class::<engine::Engine>()?;
    module.add_class::<call::Call>()?;
    module.add_class::<sender::Sender>()?;
    module.add_class::<user_program::UserProgram>()?;
    module.add_class::<user_loop::UserLoop>()?;
    module.add_function(wrap_pyfunction!(user_loop::_go_on, module)?)?;
    module.add_class::<program::Program>()?;
    module.add_function(wrap_pyfunction!(program::arrival_times, module)?)?;
    module.add_class::<loop_watch::LoopWatch>()?;
    module.add_function(wrap_pyfunction!(template::resolve, module)?)?;
    module.add_function(wrap_pyfunction!(guard_process, module)?)?;
    module.add_function(wrap_pyfunction!(confine, module)?)?;
    module.add_function(wrap_pyfunction!(mask_header, module)?)?;
    module.add_class::<noise::KeyExchange>()?;
    module.add_class::<target::Target>()?;
    module.add_function(wrap_pyfunction!(target::self_signed, module)?)?;
    module.add_class::<raft::MultiRaft>()?;
    module.add_class::<raft::GroupImage>()?;
    module.add_class::<raft::WriteBatch>()?;
    module.add_class::<raft::Turn>()?;
    module.add_class::<store::LedgerStore>()?;
    let py = module.py();
    module.add("LedgerError", py.get_type::<raft::LedgerError>())?;
    module.add("LedgerOutdatedError", py.get_type::<raft::LedgerOutdatedError>())?;
    module.add("LedgerBrokenError", py.get_type::<raft::LedgerBrokenError>())?;
    module.add("LedgerLockedError", py.get_type::<store::LedgerLockedError>())?;
    module.add("LedgerDamagedError", py.get_type::<store::LedgerDamagedError>())?;
    module.add("LedgerNewerError", py.get_type::<store::LedgerNewerError>())?;
    Ok(())
}
