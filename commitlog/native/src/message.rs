//! The messages that readers give out: the class, and how records become many of them at once.
//!
//! A message owns its bytes, so it keeps no segment mapped. What nearly every user asks for is made
//! at once; key, tags, headers, properties and id are made when they are asked for. The twin in
//! Python is the dataclass of commitlog/message.py, whose methods this class is given.

use std::collections::HashSet;

use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyFrozenSet, PyList, PyString, PyType};

use crate::calls::answered;
use crate::layout::{
    CRC_PROPERTY_BYTES, CRC_PROPERTY_END, CRC_PROPERTY_START, PHYSICAL_OFFSET_AT, STORE_HOST_AT,
};
use crate::memory::{Bytes, Numbers, Source};

const SEPARATOR: u8 = 1;
const END: u8 = 2;
const HOST_BYTES: usize = 8;
const RESERVED_PREFIX: &[u8] = b"__RMQ.";
const CRC_NAME: &[u8] = b"__CRC32#";

/// The names of properties that mean something, and the class of keys that are no text.
struct Names {
    reserved: HashSet<Vec<u8>>,
    bytes_key_name: Vec<u8>,
    bytes_key: Py<PyAny>,
}

static NAMES: PyOnceLock<Names> = PyOnceLock::new();

/// What a message has besides its value and its numbers.
enum Rest {
    /// The property string without its CRC, and the host of the id.
    Stored(Box<[u8]>, [u8; HOST_BYTES]),
    /// Key, tags and id of a message that was made by its fields.
    Given([Py<PyAny>; 3]),
}

#[pyclass(frozen, module = "commitlog.message")]
pub struct Message {
    #[pyo3(get)]
    topic: Py<PyAny>,
    #[pyo3(get)]
    partition: i64,
    #[pyo3(get)]
    offset: i64,
    #[pyo3(get)]
    value: Py<PyAny>,
    #[pyo3(get)]
    timestamp: i64,
    #[pyo3(get)]
    born_timestamp: i64,
    #[pyo3(get)]
    physical_offset: i64,
    rest: Rest,
    headers: PyOnceLock<Py<PyAny>>,
    properties: PyOnceLock<Py<PyAny>>,
}

#[pymethods]
impl Message {
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        topic: Py<PyAny>,
        partition: i64,
        offset: i64,
        key: Py<PyAny>,
        value: Py<PyAny>,
        headers: Py<PyAny>,
        tags: Py<PyAny>,
        timestamp: i64,
        born_timestamp: i64,
        physical_offset: i64,
        message_id: Py<PyAny>,
        properties: Py<PyAny>,
    ) -> Message {
        let made = Message {
            topic,
            partition,
            offset,
            value,
            timestamp,
            born_timestamp,
            physical_offset,
            rest: Rest::Given([key, tags, message_id]),
            headers: PyOnceLock::new(),
            properties: PyOnceLock::new(),
        };
        let _ = made.headers.set(py, headers);
        let _ = made.properties.set(py, properties);
        made
    }

    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stored = match &self.rest {
            Rest::Stored(stored, _) => stored,
            Rest::Given([key, _, _]) => return Ok(key.bind(py).clone()),
        };
        answered(py, || {
            if let Some(text) = value_of(stored, b"KEYS") {
                return Ok(Some(text_of(py, text)?.into_any()));
            }
            let names = names(py)?;
            let Some(coded) = value_of(stored, &names.bytes_key_name) else { return Ok(None) };
            let properties = PyDict::new(py);
            properties.set_item(text_of(py, &names.bytes_key_name)?, text_of(py, coded)?)?;
            names.bytes_key.bind(py).call1((properties,)).map(Some)
        })
    }

    #[getter]
    fn tags<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.rest {
            Rest::Stored(stored, _) => {
                answered(py, || value_of(stored, b"TAGS").map(|text| text_of(py, text)).transpose())
            }
            Rest::Given([_, tags, _]) => Ok(tags.bind(py).clone()),
        }
    }

    #[getter]
    fn message_id<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.rest {
            Rest::Stored(_, host) => answered(py, || {
                let number = u64::from_be_bytes(*host);
                Ok(format!("{number:016X}{:016X}", self.physical_offset))
            }),
            Rest::Given([_, _, id]) => Ok(id.bind(py).clone()),
        }
    }

    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.pairs_of(py, &self.headers, |name| {
            let reserved = names(py)?.reserved.contains(name);
            Ok(!reserved && !name.starts_with(RESERVED_PREFIX))
        })
    }

    #[getter]
    fn properties<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.pairs_of(py, &self.properties, |_| Ok(true))
    }
}

impl Message {
    /// The properties with the wanted names, which are made once.
    ///
    /// They are made before the lock is taken: a collection of garbage may let another thread run.
    fn pairs_of<'py>(
        &self,
        py: Python<'py>,
        made: &PyOnceLock<Py<PyAny>>,
        is_wanted: impl Fn(&[u8]) -> PyResult<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Some(known) = made.get(py) {
            return Ok(known.bind(py).clone());
        }
        let stored: &[u8] = match &self.rest {
            Rest::Stored(stored, _) => stored,
            Rest::Given(_) => &[],
        };
        let found = answered(py, || {
            let found = PyDict::new(py);
            for (name, value) in pairs(stored) {
                if is_wanted(name)? {
                    found.set_item(text_of(py, name)?, text_of(py, value)?)?;
                }
            }
            Ok(found)
        })?;
        let _ = made.set(py, found.unbind());
        made.get(py).map(|known| known.bind(py).clone()).ok_or_else(|| PyMemoryError::new_err(()))
    }
}

fn names(py: Python<'_>) -> PyResult<&Names> {
    NAMES.get(py).ok_or_else(|| PyValueError::new_err("the names of properties were not told"))
}

/// Names and values of a property string, as `decode_properties` of Python has them, without CRC.
fn pairs(stored: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    stored.split(|byte| *byte == END).filter_map(|pair| {
        let at = pair.iter().position(|byte| *byte == SEPARATOR)?;
        let (name, value) = (&pair[..at], &pair[at + 1..]);
        (!name.is_empty() && !value.is_empty() && name != CRC_NAME).then_some((name, value))
    })
}

fn is_crc(property: [u8; CRC_PROPERTY_BYTES]) -> bool {
    let (start, rest) = property.split_at(CRC_PROPERTY_START.len());
    let (digits, end) = rest.split_at(rest.len() - 1);
    start == CRC_PROPERTY_START
        && digits.iter().all(u8::is_ascii_digit)
        && end == [CRC_PROPERTY_END]
}

/// The value of the last property with a name.
fn value_of<'a>(stored: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    pairs(stored).filter(|(name, _)| *name == wanted).last().map(|(_, value)| value)
}

/// Text, with U+FFFD in place of bytes that are not UTF-8, as Python has it.
fn text_of<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyString>> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(PyString::new(py, text)),
        Err(_) => PyString::from_encoded_object(
            PyBytes::new(py, bytes).as_any(),
            Some(c"utf-8"),
            Some(c"replace"),
        ),
    }
}

/// Tells which names of properties are RocketMQ's, and how a key of bytes is made of properties.
/// Returns the class of messages.
#[pyfunction]
pub fn message_class<'py>(
    py: Python<'py>,
    reserved: &Bound<'py, PyFrozenSet>,
    bytes_key_name: &str,
    bytes_key: Py<PyAny>,
) -> PyResult<Bound<'py, PyType>> {
    let mut known = HashSet::new();
    for name in reserved.iter() {
        known.insert(name.extract::<String>()?.into_bytes());
    }
    let bytes_key_name = bytes_key_name.as_bytes().to_vec();
    let _ = NAMES.set(py, Names { reserved: known, bytes_key_name, bytes_key });
    Ok(py.get_type::<Message>())
}

/// Where the parts of records are, in the order of the arguments of `messages`.
struct Columns([Numbers; 9]);

impl Columns {
    fn row(&self, index: usize) -> Option<[i64; 9]> {
        let mut row = [0; 9];
        for (place, column) in row.iter_mut().zip(&self.0) {
            *place = column.get(index)?;
        }
        Some(row)
    }
}

/// Makes the messages of records with plain values and IPv4 hosts, whose places are in columns.
///
/// `columns`: positions, topic_index, queue_ids, queue_offsets, body_positions, body_sizes,
/// properties_positions, properties_sizes, store_timestamps.
#[pyfunction]
pub fn messages<'py>(
    py: Python<'py>,
    buffer: &Bound<'py, PyAny>,
    columns: [Bound<'py, PyAny>; 9],
    born_timestamps: &Bound<'py, PyAny>,
    topics: Vec<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    answered(py, || {
        let source = Source::of(buffer)?;
        let mut lent = Vec::with_capacity(columns.len());
        for column in &columns {
            lent.push(Numbers::of(column, false)?);
        }
        let columns = Columns(lent.try_into().map_err(|_| PyValueError::new_err("columns"))?);
        let born_timestamps = Numbers::of(born_timestamps, false)?;
        let count = born_timestamps.len();
        let mut made = Vec::with_capacity(count);
        for index in 0..count {
            let message = columns
                .row(index)
                .zip(born_timestamps.get(index))
                .and_then(|(row, born)| {
                    let topic = topics.get(usize::try_from(row[1]).ok()?)?;
                    message_of(py, &source, source.len(), row, born, topic)
                })
                .ok_or_else(|| PyValueError::new_err("a record is not within its buffer"))?;
            made.push(Bound::new(py, message)?);
        }
        PyList::new(py, made)
    })
}

/// The message of a record. `end` is how many bytes there are, and `row` has its columns.
#[inline]
pub fn message_of(
    py: Python<'_>,
    source: &(impl Bytes + ?Sized),
    end: usize,
    row: [i64; 9],
    born_timestamp: i64,
    topic: &Bound<'_, PyAny>,
) -> Option<Message> {
    let [at, _, partition, offset, body_at, body_bytes, names_at, names_bytes, timestamp] = row;
    let index = |number: i64| usize::try_from(number).ok();
    let (at, body_at, body_bytes) = (index(at)?, index(body_at)?, index(body_bytes)?);
    let (names_at, mut names_bytes) = (index(names_at)?, index(names_bytes)?);
    if names_bytes >= CRC_PROPERTY_BYTES {
        let crc_at = names_at.checked_add(names_bytes - CRC_PROPERTY_BYTES)?;
        let follows = names_bytes == CRC_PROPERTY_BYTES || source.equal(crc_at - 1, &[END]);
        if follows && is_crc(source.read(crc_at)?) {
            names_bytes -= CRC_PROPERTY_BYTES; // nobody asks for it
        }
    }
    // all is looked at before anything is made
    if body_at.checked_add(body_bytes)? > end || names_at.checked_add(names_bytes)? > end {
        return None;
    }
    let mut properties = vec![0; names_bytes].into_boxed_slice();
    if !source.copy(names_at, &mut properties) {
        return None;
    }
    let value = PyBytes::new_with(py, body_bytes, |out| {
        if source.copy(body_at, out) { Ok(()) } else { Err(PyValueError::new_err("a value")) }
    });
    Some(Message {
        topic: topic.clone().unbind(),
        partition,
        offset,
        value: value.ok()?.into_any().unbind(),
        timestamp,
        born_timestamp,
        physical_offset: i64::from_be_bytes(source.read(at.checked_add(PHYSICAL_OFFSET_AT)?)?),
        rest: Rest::Stored(properties, source.read(at.checked_add(STORE_HOST_AT)?)?),
        headers: PyOnceLock::new(),
        properties: PyOnceLock::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(stored: &[u8]) -> Vec<(&[u8], &[u8])> {
        pairs(stored).collect()
    }

    #[test]
    fn pairs_are_those_that_python_finds() {
        assert_eq!(
            listed(b"a\x01b\x02c\x01d\x01e\x02"),
            [(&b"a"[..], &b"b"[..]), (b"c", b"d\x01e")]
        );
        assert_eq!(listed(b"a\x01b"), [(&b"a"[..], &b"b"[..])]);
        assert!(listed(b"\x01b\x02a\x01\x02a\x02\x02__CRC32#\x010\x02").is_empty());
    }

    #[test]
    fn the_last_of_two_values_counts() {
        assert_eq!(value_of(b"a\x01b\x02a\x01c\x02b\x01d\x02", b"a"), Some(&b"c"[..]));
        assert_eq!(value_of(b"a\x01b\x02", b"b"), None);
    }
}
