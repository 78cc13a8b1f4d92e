//! Calls of Python functions without a tuple of their arguments.
//!
//! Under the limited API of Python 3.11, PyO3 makes a tuple for every call; the functions of the
//! limited API used here do not.

use std::ptr;

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;

/// Calls with one argument.
pub fn call_with<'py>(
    function: &Bound<'py, PyAny>,
    argument: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let nothing = ptr::null_mut::<ffi::PyObject>();
    // SAFETY: all pointers are live objects, and the list ends with a null pointer.
    unsafe {
        let returned =
            ffi::PyObject_CallFunctionObjArgs(function.as_ptr(), argument.as_ptr(), nothing);
        Bound::from_owned_ptr_or_err(function.py(), returned)
    }
}

/// Calls with two arguments.
pub fn call_with_both<'py>(
    function: &Bound<'py, PyAny>,
    first: &Bound<'py, PyAny>,
    second: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let nothing = ptr::null_mut::<ffi::PyObject>();
    let (first, second) = (first.as_ptr(), second.as_ptr());
    // SAFETY: all pointers are live objects, and the list ends with a null pointer.
    unsafe {
        let returned = ffi::PyObject_CallFunctionObjArgs(function.as_ptr(), first, second, nothing);
        Bound::from_owned_ptr_or_err(function.py(), returned)
    }
}

/// Calls `context.run(function, argument)`.
pub fn run_in<'py>(
    context: &Bound<'py, PyAny>,
    function: &Bound<'py, PyAny>,
    argument: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = context.py();
    let run = intern!(py, "run").as_ptr();
    let nothing = ptr::null_mut::<ffi::PyObject>();
    // SAFETY: all pointers are live objects, and the list ends with a null pointer.
    unsafe {
        let returned = ffi::PyObject_CallMethodObjArgs(
            context.as_ptr(),
            run,
            function.as_ptr(),
            argument.as_ptr(),
            nothing,
        );
        Bound::from_owned_ptr_or_err(py, returned)
    }
}

/// How a coroutine went on.
pub enum Sent<'py> {
    /// It waits for this.
    Yielded(Bound<'py, PyAny>),
    Returned(Bound<'py, PyAny>),
    Raised(PyErr),
}

/// Lets a coroutine go on.
pub fn resume<'py>(coroutine: &Bound<'py, PyAny>) -> Sent<'py> {
    let py = coroutine.py();
    let mut result = ptr::null_mut();
    // SAFETY: both are live objects; the result is a new reference unless there was an error.
    unsafe {
        match ffi::PyIter_Send(coroutine.as_ptr(), ffi::Py_None(), &mut result) {
            ffi::PySendResult::PYGEN_NEXT => Sent::Yielded(Bound::from_owned_ptr(py, result)),
            ffi::PySendResult::PYGEN_RETURN => Sent::Returned(Bound::from_owned_ptr(py, result)),
            ffi::PySendResult::PYGEN_ERROR => Sent::Raised(PyErr::fetch(py)),
        }
    }
}

/// Raises an error where a coroutine waits.
pub fn throw<'py>(coroutine: &Bound<'py, PyAny>, error: PyErr) -> Sent<'py> {
    let py = coroutine.py();
    match coroutine.call_method1(intern!(py, "throw"), (error.into_value(py),)) {
        Ok(yielded) => Sent::Yielded(yielded),
        Err(error) if error.is_instance_of::<pyo3::exceptions::PyStopIteration>(py) => {
            match error.value(py).getattr(intern!(py, "value")) {
                Ok(value) => Sent::Returned(value),
                Err(error) => Sent::Raised(error),
            }
        }
        Err(error) => Sent::Raised(error),
    }
}
