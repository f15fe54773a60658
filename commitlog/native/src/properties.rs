//! The property string of a message: what `encode_properties` of Python makes of good arguments.

use crate::calls::answered;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFrozenSet, PyList, PyString};

const RESERVED_PREFIX: &str = "__RMQ.";

/// Key, tags, headers and whether to wait, if they can be stored, and how long they are.
pub struct Properties<'a, 'py> {
    key: &'a str,
    tags: &'a str,
    /// The value of WAIT; it is left out where the sender waits.
    wait: &'static str,
    headers: Option<&'a Bound<'py, PyDict>>,
    pub size: usize,
}

impl<'a, 'py> Properties<'a, 'py> {
    /// None for anything unusual: Python stores it, or says what is wrong with it.
    ///
    /// No code of Python's runs here: all types are exact, and no text has a `__hash__` of its own.
    #[inline]
    pub fn of(
        key: Option<&'a Bound<'py, PyAny>>,
        tags: Option<&'a Bound<'py, PyAny>>,
        headers: Option<&'a Bound<'py, PyAny>>,
        wait: bool,
        reserved: &Bound<'py, PyFrozenSet>,
    ) -> Option<Self> {
        let (key, tags) = (value_of(key)?, value_of(tags)?);
        let wait = if wait { "" } else { "false" };
        // all three names have four letters
        let mut size = named_size(key) + named_size(tags) + named_size(wait);
        let headers = match headers {
            Some(given) if !given.is_none() => Some(given.cast_exact::<PyDict>().ok()?),
            _ => None,
        };
        if let Some(headers) = headers {
            for (name, value) in headers.iter() {
                let name = name.cast_exact::<PyString>().ok()?;
                let (text, value) = (storable(name)?, storable(value.cast_exact().ok()?)?);
                if text.starts_with(RESERVED_PREFIX) || reserved.contains(name).ok()? {
                    return None;
                }
                size += text.len() + value.len() + 2;
            }
        }
        Some(Properties { key, tags, wait, headers, size })
    }

    /// Fills a place of `size` bytes. None if they are not the bytes that were counted.
    #[inline]
    pub fn put(&self, out: &mut [u8]) -> Option<()> {
        let mut left = out;
        for (name, value) in [("KEYS", self.key), ("TAGS", self.tags), ("WAIT", self.wait)] {
            if !value.is_empty() {
                left = put_pair(left, name, value)?;
            }
        }
        if let Some(headers) = self.headers {
            for (name, value) in headers.iter() {
                let (name, value) = (name.cast_exact::<PyString>(), value.cast_exact::<PyString>());
                left = put_pair(left, name.ok()?.to_str().ok()?, value.ok()?.to_str().ok()?)?;
            }
        }
        left.is_empty().then_some(())
    }
}

/// The property strings of messages that differ in their keys only: KEYS, then `same`.
///
/// None if a key can't be stored, or a string has more than `most` bytes: Python says why.
#[pyfunction]
pub fn keyed_properties<'py>(
    keys: &Bound<'py, PyList>,
    same: &Bound<'py, PyBytes>,
    most: usize,
) -> PyResult<Bound<'py, PyAny>> {
    answered(keys.py(), || strings_of(keys, same, most))
}

fn strings_of<'py>(
    keys: &Bound<'py, PyList>,
    same: &Bound<'py, PyBytes>,
    most: usize,
) -> PyResult<Option<Bound<'py, PyList>>> {
    let py = keys.py();
    let made = PyList::empty(py);
    for key in keys.iter() {
        let Some(text) = value_of(Some(&key)) else { return Ok(None) };
        if text.is_empty() {
            made.append(same)?;
            continue;
        }
        let size = named_size(text) + same.as_bytes().len();
        if size > most {
            return Ok(None);
        }
        made.append(PyBytes::new_with(py, size, |out| {
            let left = put_pair(out, "KEYS", text).ok_or_else(|| PyValueError::new_err("size"))?;
            left.copy_from_slice(same.as_bytes());
            Ok(())
        })?)?;
    }
    Ok(Some(made))
}

#[inline]
fn named_size(value: &str) -> usize {
    if value.is_empty() { 0 } else { "KEYS".len() + 2 + value.len() }
}

/// "" for None. An empty text can't be stored.
#[inline]
fn value_of<'a>(value: Option<&'a Bound<'_, PyAny>>) -> Option<&'a str> {
    match value {
        Some(value) if !value.is_none() => storable(value.cast_exact::<PyString>().ok()?),
        _ => Some(""),
    }
}

#[inline]
fn storable<'a>(text: &'a Bound<'_, PyString>) -> Option<&'a str> {
    let text = text.to_str().ok()?;
    (!text.is_empty() && is_free_of_separators(text)).then_some(text)
}

#[inline]
fn is_free_of_separators(text: &str) -> bool {
    !text.bytes().any(|byte| byte == 1 || byte == 2)
}

/// Writes `name 0x01 value 0x02`, and returns the place behind it.
#[inline]
fn put_pair<'a>(out: &'a mut [u8], name: &str, value: &str) -> Option<&'a mut [u8]> {
    if out.len() < name.len() + value.len() + 2 {
        return None;
    }
    let (place, out) = out.split_at_mut(name.len());
    place.copy_from_slice(name.as_bytes());
    let (place, out) = out.split_at_mut(1 + value.len());
    place[0] = 1;
    place[1..].copy_from_slice(value.as_bytes());
    let (place, out) = out.split_at_mut(1);
    place[0] = 2;
    Some(out)
}
