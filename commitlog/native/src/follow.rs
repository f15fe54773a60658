//! What a reader that follows finds of a lane at a look: a few new records, most often one.
//!
//! They are looked at and made messages in one call, because a look in a process that was asleep
//! costs more for each step of Python's than for a record. It stops before anything unusual. Python
//! looks at that with `scan`, and is the specification.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySet, PyString};

use crate::calls::answered;
use crate::layout::{PHYSICAL_OFFSET_AT, RECORD_BYTES_MIN, TOTAL_SIZE_AT};
use crate::memory::{Bytes, Source};
use crate::message::message_of;
use crate::record::{Record, is_topic, length_at};

/// How many messages are made at once.
const MESSAGES_MOST: usize = 1000;

/// A topic of these records, and the next offset of its queue. None: nobody wants its messages.
struct Followed<'py> {
    name: Bound<'py, PyAny>,
    next: Option<i64>,
    is_met: bool,
}

/// Where a record must say that it is, and what it must not be: the log offset of the buffer's first
/// byte, the lane, and bits that SYSFLAG must not have.
#[derive(FromPyObject)]
pub struct Place(i64, i64, i32);

/// Makes the messages of the records in [start, end), as far as each is good by a CRC over all of it,
/// and the next of its queue. `following` has the next offset of each topic's queue, and `wanted` the
/// topics (None: all).
///
/// Returns the messages, where the record begins that is not such a one, and how far queues have come.
#[pyfunction]
pub fn follow<'py>(
    py: Python<'py>,
    buffer: &Bound<'py, PyAny>,
    start: usize,
    end: usize,
    place: Place,
    following: &Bound<'py, PyDict>,
    wanted: Option<&Bound<'py, PySet>>,
) -> PyResult<Bound<'py, PyAny>> {
    answered(py, || {
        let source = Source::of(buffer)?;
        let (end, mut position) = (end.min(source.len()), start);
        let mut topics: HashMap<Vec<u8>, Followed<'py>> = HashMap::new();
        let (mut copy, mut made) = (vec![], vec![]);
        while made.len() < MESSAGES_MOST && end.saturating_sub(position) >= RECORD_BYTES_MIN {
            let size = length_at(&source, position + TOTAL_SIZE_AT).unwrap_or(0);
            if size < RECORD_BYTES_MIN || size > end - position {
                break;
            }
            let Some(record) = record_of(&source, position, size, &place, &mut copy) else { break };
            let name = &copy[record.topic_at..record.topic_at + record.topic_bytes];
            if !topics.contains_key(name) {
                let Some(topic) = topic_of(py, name, following, wanted)? else { break };
                topics.insert(name.to_vec(), topic);
            }
            let Some(topic) = topics.get_mut(name) else { break };
            if let Some(expected) = &mut topic.next {
                if record.queue_offset != *expected {
                    break;
                }
                let Some(after) = expected.checked_add(1) else { break };
                let numbers = row_of(&record);
                let born = record.born_timestamp;
                let Some(message) = message_of(py, &copy[..size], size, numbers, born, &topic.name)
                else {
                    break;
                };
                made.push(Bound::new(py, message)?);
                *expected = after;
                topic.is_met = true;
            }
            position += size;
        }
        let ends = PyDict::new(py);
        for topic in topics.into_values().filter(|topic| topic.is_met) {
            ends.set_item(topic.name, topic.next)?;
        }
        Ok((PyList::new(py, made)?, position, ends))
    })
}

/// Copies a record and looks at the copy: another process may write to the bytes.
fn record_of(
    source: &Source,
    position: usize,
    size: usize,
    place: &Place,
    copy: &mut Vec<u8>,
) -> Option<Record> {
    let &Place(buffer_start, lane, unwanted) = place;
    let here = buffer_start.checked_add(i64::try_from(position).ok()?)?;
    // this is looked at before a large copy is made for nothing
    if i64::from_be_bytes(source.read(position.checked_add(PHYSICAL_OFFSET_AT)?)?) != here {
        return None;
    }
    copy.resize(size, 0);
    if !source.copy(position, copy) {
        return None;
    }
    let bytes = &copy[..];
    let record = Record::of(bytes, 0, size)?;
    let is_good = record.physical_offset == here
        && i64::from(record.queue_id) == lane
        && record.sys_flag & unwanted == 0
        && record.has_crc
        && record.crc_holds(bytes, true);
    is_good.then_some(record)
}

/// None: the topic is new here, or can't be one.
fn topic_of<'py>(
    py: Python<'py>,
    name: &[u8],
    following: &Bound<'py, PyDict>,
    wanted: Option<&Bound<'py, PySet>>,
) -> PyResult<Option<Followed<'py>>> {
    let Some(text) = std::str::from_utf8(name).ok().filter(|_| is_topic(name)) else {
        return Ok(None);
    };
    let name = PyString::new(py, text).into_any();
    let is_wanted = wanted.map_or(Ok(true), |wanted| wanted.contains(&name))?;
    if !is_wanted {
        return Ok(Some(Followed { name, next: None, is_met: false }));
    }
    let known = following.get_item(&name)?.map(|offset| offset.extract::<i64>()).transpose()?;
    Ok(known.map(|offset| Followed { name, next: Some(offset), is_met: false }))
}

/// The numbers that `message_of` takes.
fn row_of(record: &Record) -> [i64; 9] {
    [
        0,
        0,
        i64::from(record.queue_id),
        record.queue_offset,
        record.body_at as i64,
        record.body_bytes as i64,
        record.properties_at as i64,
        record.properties_bytes as i64,
        record.store_timestamp,
    ]
}
