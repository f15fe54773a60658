//! Calls of Python's code, which may never come back.
//!
//! When a program ends, Python up to 3.13 ends each other thread where that asks for the
//! interpreter's lock: by pthread_exit, which unwinds the stack. pyo3 declares its calls as ones that
//! never unwind, so a frame of ours below such a thread would abort the process. Here the thread rests
//! instead, as Python 3.14 does it. pyo3 does the same where it takes the lock itself.

use std::hint::black_box;
use std::time::Duration;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

type Call = unsafe extern "C-unwind" fn(
    *mut ffi::PyObject,
    *mut ffi::PyObject,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;

/// Keeps a thread here that is being unwound, until the process ends.
struct Rest;

impl Drop for Rest {
    fn drop(&mut self) {
        loop {
            std::thread::park_timeout(Duration::from_secs(60));
        }
    }
}

/// Calls a method that is written in Python.
pub fn call_method<'py>(
    object: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    arguments: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    let method = object.getattr(name)?;
    // SAFETY: the two types differ in whether the function unwinds. The black box keeps the
    // compiler from knowing which one this is, and so that pyo3 has promised that it does not.
    let call: Call = unsafe { std::mem::transmute(black_box(ffi::PyObject_Call as *const ())) };
    let rest = Rest;
    // SAFETY: all of them live during the call, and no keywords are a null pointer
    let answer = unsafe { call(method.as_ptr(), arguments.as_ptr(), std::ptr::null_mut()) };
    std::mem::forget(rest);
    // SAFETY: the call gives a reference that is ours, or null and an error
    unsafe { Bound::from_owned_ptr_or_err(object.py(), answer) }
}
