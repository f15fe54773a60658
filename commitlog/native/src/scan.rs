//! Records as columns. `scan` walks from record to record, `tabulate` takes those at known places.
//!
//! A bad record ends the table, and Python asks `decode` what is wrong with it. The interpreter is
//! given up meanwhile, and other processes may write to the bytes. So a length is read once, and
//! TOTALSIZE must stay the same. Where a CRC is checked, the whole record is copied first, and what
//! is said is true of the copy.

use std::collections::HashMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::calls::answered;
use crate::layout::{CRC_PROPERTY_BYTES, PHYSICAL_OFFSET_AT, RECORD_BYTES_MIN, TOTAL_SIZE_AT};
use crate::memory::{Bytes, Numbers, Room, Source};
use crate::record::{Record, is_topic, length_at};
use crate::tags::tags_code;

/// The columns of RecordTable of Python, in its order, without `topics`.
const COLUMNS: usize = 15;

/// Good records as rows, and what a record must have to be good.
struct Table<'a> {
    source: &'a Source,
    buffer_start: Option<i64>,
    queue_id: Option<i64>,
    check_crc: bool,
    require_crc: bool,
    columns: &'a mut [[u8; 8]],
    column_rows: usize,
    count: usize,
    copy: Vec<u8>,
    numbers: HashMap<Vec<u8>, i64>,
    /// Those of the last record, because most are like the one before.
    topic: (Vec<u8>, i64),
    properties: (Vec<u8>, i64),
}

impl Table<'_> {
    /// Adds the record at `position`, whose bytes are within the source. False if it is not good.
    #[inline(always)]
    fn add(&mut self, position: usize, size: usize) -> bool {
        let source = self.source;
        if !self.check_crc {
            let found = Record::of(source, position, size);
            return found.is_some_and(|record| self.add_found(&record, source, position, position));
        }
        // this is looked at before a large copy is made for nothing
        let physical_offset = source.read(position + PHYSICAL_OFFSET_AT).map(i64::from_be_bytes);
        if physical_offset.is_none_or(|stored| !self.is_of(stored, position)) {
            return false;
        }
        let mut copy = std::mem::take(&mut self.copy);
        if copy.len() < size {
            copy.resize(size, 0);
        }
        let bytes = &mut copy[..size];
        let is_good = source.copy(position, bytes)
            && Record::of(bytes, 0, size).is_some_and(|record| {
                record.crc_holds(bytes, self.require_crc)
                    && self.add_found(&record, bytes, 0, position)
            });
        self.copy = copy;
        is_good
    }

    #[inline(always)]
    fn is_of(&self, physical_offset: i64, position: usize) -> bool {
        self.buffer_start.is_none_or(|start| physical_offset.wrapping_sub(start) == position as i64)
    }

    /// `start` is the record's place in `bytes`, `position` the one in the source.
    #[inline(always)]
    fn add_found(
        &mut self,
        record: &Record,
        bytes: &(impl Bytes + ?Sized),
        start: usize,
        position: usize,
    ) -> bool {
        if !self.is_of(record.physical_offset, position)
            || self.queue_id.is_some_and(|wanted| wanted != i64::from(record.queue_id))
        {
            return false;
        }
        let topic_at = start + record.topic_at;
        if (self.topic.0.len() != record.topic_bytes || !bytes.equal(topic_at, &self.topic.0))
            && !self.change_topic(bytes, topic_at, record.topic_bytes)
        {
            return false;
        }
        let crc_bytes = if record.has_crc { CRC_PROPERTY_BYTES } else { 0 };
        let (own_at, own_bytes) =
            (start + record.properties_at, record.properties_bytes - crc_bytes);
        let (last, tags) = &mut self.properties;
        if last.len() != own_bytes || !bytes.equal(own_at, last) {
            last.resize(own_bytes, 0);
            if !bytes.copy(own_at, last) {
                return false;
            }
            *tags = i64::from(tags_code(last));
        }
        let row: [i64; COLUMNS] = [
            position as i64,
            record.size as i64,
            i64::from(record.queue_id),
            record.queue_offset,
            i64::from(record.flag),
            i64::from(record.sys_flag),
            record.born_timestamp,
            record.store_timestamp,
            (position + record.body_at) as i64,
            record.body_bytes as i64,
            (position + record.properties_at) as i64,
            record.properties_bytes as i64,
            self.topic.1,
            *tags,
            i64::from(record.has_crc),
        ];
        for (column, value) in self.columns.chunks_exact_mut(self.column_rows).zip(row) {
            column[self.count] = value.to_ne_bytes();
        }
        self.count += 1;
        true
    }

    /// Numbers topics in the order in which they appear. False if this can't be one.
    #[cold]
    fn change_topic(&mut self, bytes: &(impl Bytes + ?Sized), at: usize, length: usize) -> bool {
        let mut name = vec![0; length];
        if !bytes.copy(at, &mut name) {
            return false;
        }
        if !self.numbers.contains_key(&name) {
            if !is_topic(&name) {
                return false;
            }
            self.numbers.insert(name.clone(), self.numbers.len() as i64);
        }
        let number = self.numbers[&name];
        self.topic = (name, number);
        true
    }

    fn topics(self) -> Vec<String> {
        let mut names: Vec<_> = self.numbers.into_iter().collect();
        names.sort_unstable_by_key(|&(_, number)| number);
        names.into_iter().map(|(name, _)| String::from_utf8_lossy(&name).into_owned()).collect()
    }
}

/// Where the columns are, and what a record must have: the arguments that `scan` and `tabulate`
/// have in common.
#[derive(FromPyObject)]
pub struct Demands(Option<i64>, Option<i64>, bool, bool);

impl Demands {
    /// A table without rows. It is an error if it has no room for `most` rows.
    fn table<'a>(
        &self,
        source: &'a Source,
        room: &'a mut Room,
        most: usize,
    ) -> PyResult<Table<'a>> {
        let &Demands(buffer_start, queue_id, check_crc, require_crc) = self;
        let columns = room.numbers();
        let column_rows = columns.len() / COLUMNS;
        if column_rows < most {
            return Err(PyValueError::new_err("the columns have no room for so many records"));
        }
        Ok(Table {
            source,
            buffer_start,
            queue_id,
            check_crc,
            require_crc,
            columns,
            column_rows,
            count: 0,
            copy: vec![],
            numbers: HashMap::new(),
            topic: (vec![], -1),
            properties: (vec![], 0),
        })
    }
}

/// Walks from `start` on, over at most `most` records. All begin before `last`, and end at `end` or
/// before it. `demands` are RecordGatherer's.
///
/// Returns how many there are, where the walk ended, the size of a bad record there (0 if no record
/// seems to begin there), and the topics.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn scan<'py>(
    py: Python<'py>,
    buffer: &Bound<'py, PyAny>,
    start: usize,
    last: usize,
    end: usize,
    demands: Demands,
    most: usize,
    columns: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    answered(py, || {
        let (source, mut room) = (Source::of(buffer)?, Room::of(columns)?);
        let mut table = demands.table(&source, &mut room, most)?;
        py.detach(|| {
            let (mut position, mut bad, end) = (start, 0, end.min(source.len()));
            while table.count < most
                && position < last
                && end.saturating_sub(position) >= RECORD_BYTES_MIN
            {
                let size = length_at(&source, position + TOTAL_SIZE_AT).unwrap_or(0);
                if size < RECORD_BYTES_MIN || size > end - position {
                    break;
                }
                if !table.add(position, size) {
                    bad = size;
                    break;
                }
                position += size;
            }
            Ok((table.count, position, bad, table.topics()))
        })
    })
}

/// The records at known places, up to the first bad one. Returns how many are good, and the topics.
#[pyfunction]
pub fn tabulate<'py>(
    py: Python<'py>,
    buffer: &Bound<'py, PyAny>,
    positions: &Bound<'py, PyAny>,
    sizes: &Bound<'py, PyAny>,
    demands: Demands,
    columns: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    answered(py, || {
        let (source, mut room) = (Source::of(buffer)?, Room::of(columns)?);
        let (positions, sizes) = (Numbers::of(positions, false)?, Numbers::of(sizes, false)?);
        let most = positions.len();
        let mut table = demands.table(&source, &mut room, most)?;
        py.detach(|| {
            while table.count < most {
                let (position, size) =
                    (index_of(&positions, table.count), index_of(&sizes, table.count));
                let (Some(position), Some(size)) = (position, size) else { break };
                let is_within = position.checked_add(size).is_some_and(|end| end <= source.len());
                if !is_within || !table.add(position, size) {
                    break;
                }
            }
            Ok((table.count, table.topics()))
        })
    })
}

#[inline(always)]
fn index_of(numbers: &Numbers, index: usize) -> Option<usize> {
    numbers.get(index).and_then(|value| usize::try_from(value).ok())
}

/// Copies the bytes [start, end) of each span to `out`, one span after the other.
///
/// `offsets` are Arrow's: 32-bit numbers, one more than there are spans, of where each begins in
/// `out` and where the last one ends. Both have room for all.
#[pyfunction]
pub fn take<'py>(
    py: Python<'py>,
    buffer: &Bound<'py, PyAny>,
    starts: &Bound<'py, PyAny>,
    ends: &Bound<'py, PyAny>,
    out: &Bound<'py, PyAny>,
    offsets: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    answered(py, || {
        let (source, mut room, mut offsets) =
            (Source::of(buffer)?, Room::of(out)?, Room::of(offsets)?);
        let (starts, ends) = (Numbers::of(starts, false)?, Numbers::of(ends, false)?);
        py.detach(|| {
            let out = room.slice(0, room.len()).unwrap_or_default();
            let taken = take_spans(&source, &starts, &ends, out, offsets.numbers());
            taken.ok_or_else(|| {
                PyValueError::new_err("a span is not within its buffer, or there is no room for it")
            })
        })?;
        Ok(py.None())
    })
}

fn take_spans(
    source: &Source,
    starts: &Numbers,
    ends: &Numbers,
    out: &mut [u8],
    offsets: &mut [[u8; 4]],
) -> Option<()> {
    let (first, offsets) = offsets.split_first_mut()?;
    *first = [0; 4];
    let mut at = 0usize;
    for index in 0..starts.len() {
        let (start, end) = (index_of(starts, index)?, index_of(ends, index)?);
        let next = at.checked_add(end.checked_sub(start)?)?;
        if !source.copy(start, out.get_mut(at..next)?) {
            return None;
        }
        *offsets.get_mut(index)? = i32::try_from(next).ok()?.to_ne_bytes();
        at = next;
    }
    Some(())
}
