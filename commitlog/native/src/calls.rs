//! Calls of Python's code, which may never come back.
//!
//! When a program ends, Python up to 3.13 ends each other thread where that asks for the
//! interpreter's lock: by pthread_exit, which unwinds the stack. pyo3 declares its calls as ones that
//! never unwind, so a frame of ours below such a thread would abort the process. Here the thread rests
//! instead, as Python 3.14 does it. pyo3 does the same where it takes the lock itself.

use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyMemoryError, PySystemError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

type Object = *mut ffi::PyObject;
type CallMethod = unsafe extern "C-unwind" fn(Object, Object, ...) -> Object;
type Allocate = unsafe extern "C-unwind" fn(*mut ffi::PyTypeObject, ffi::Py_ssize_t) -> Object;

/// What pyo3 panics with where Python has made no object, because there is no memory.
const OF_PYO3: &str = "PyObject pointer is null";

/// Keeps a thread here that is being unwound, until the process ends.
struct Rest;

impl Drop for Rest {
    fn drop(&mut self) {
        loop {
            std::thread::park_timeout(Duration::from_secs(60));
        }
    }
}

/// Calls something that may run code of Python's.
fn guarded(call: impl FnOnce() -> Object) -> Object {
    let rest = Rest;
    let answer = call();
    std::mem::forget(rest);
    answer
}

/// Calls a method that is written in Python.
pub fn call_method<'py, const N: usize>(
    object: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    arguments: [&Bound<'py, PyAny>; N],
) -> PyResult<Bound<'py, PyAny>> {
    const { assert!(N <= 8) };
    // SAFETY: the two types differ in whether the function unwinds. The black box keeps the
    // compiler from knowing which one this is, and so that pyo3 has promised that it does not.
    let call: CallMethod =
        unsafe { std::mem::transmute(black_box(ffi::PyObject_CallMethodObjArgs as *const ())) };
    let of = |index: usize| arguments.get(index).map_or(null_mut(), |argument| argument.as_ptr());
    // SAFETY: all of them live during the call, and a null pointer ends the arguments
    let answer = guarded(|| unsafe {
        call(
            object.as_ptr(),
            name.as_ptr(),
            of(0),
            of(1),
            of(2),
            of(3),
            of(4),
            of(5),
            of(6),
            of(7),
            null_mut::<ffi::PyObject>(),
        )
    });
    // SAFETY: the call gives a reference that is ours, or null and an error
    unsafe { Bound::from_owned_ptr_or_err(object.py(), answer) }
}

/// Makes an object. That may collect garbage, and so run finalizers.
///
/// # Safety
///
/// `allocate` is the tp_alloc of `class`, which takes any `count`.
pub unsafe fn make<'py>(
    class: &Bound<'py, PyType>,
    allocate: ffi::allocfunc,
    count: ffi::Py_ssize_t,
) -> Option<Bound<'py, PyAny>> {
    // SAFETY: as in `call_method`
    let call: Allocate = unsafe { std::mem::transmute(black_box(allocate as *const ())) };
    // SAFETY: the caller's promise
    let made = guarded(|| unsafe { call(class.as_ptr().cast(), count) });
    // SAFETY: it is a reference that is ours, or null
    unsafe { Bound::from_owned_ptr_or_opt(class.py(), made) }
}

/// Answers a call of Python's, and makes the answer an object. A panic becomes an error of Python's.
///
/// pyo3 panics where an object can't be made, and Python would get that as an exception that no
/// `except Exception` catches.
pub fn answered<'py, T: IntoPyObject<'py>>(
    py: Python<'py>,
    call: impl FnOnce() -> PyResult<T>,
) -> PyResult<Bound<'py, PyAny>> {
    let whole = || call()?.into_bound_py_any(py);
    catch_unwind(AssertUnwindSafe(whole)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map_or("", |text| text);
        Err(if text == OF_PYO3 {
            PyMemoryError::new_err(())
        } else {
            PySystemError::new_err(format!("a bug of the native core: {text}"))
        })
    })
}
