//! Records as columns. `scan` walks from record to record, `tabulate` takes those at known places.
//!
//! A record is good here exactly if `decode` of Python accepts it. A bad one ends the table, and
//! Python asks `decode` what is wrong with it. The interpreter is given up meanwhile, and other
//! processes may write to the bytes. So a length is read once, and TOTALSIZE must stay the same.
//! Where a CRC is checked, the whole record is copied first, and what is said is true of the copy.

use std::collections::HashMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::calls::answered;
use crate::crc::{digits_of, masked_crc};
use crate::layout::{
    BODY_CRC_AT, BODY_LENGTH_BYTES, BORN_HOST_V6, BORN_TIMESTAMP_AT, CRC_PROPERTY_BYTES,
    CRC_PROPERTY_END, CRC_PROPERTY_START, FLAG_AT, HEAD_V4_BYTES, HOST_V6_MORE, MAGIC_AT, MAGIC_V1,
    MAGIC_V2, PHYSICAL_OFFSET_AT, PROPERTIES_LENGTH_BYTES, QUEUE_ID_AT, QUEUE_OFFSET_AT,
    RECORD_BYTES_MIN, STORE_HOST_V6, STORE_TIMESTAMP_AT, SYS_FLAG_AT, TAIL_BYTES_MIN,
    TOPIC_BYTES_MAX, TOTAL_SIZE_AT,
};
use crate::memory::{Bytes, Numbers, Room, Source};
use crate::tags::tags_code;

/// The columns of RecordTable of Python, in its order, without `topics`.
const COLUMNS: usize = 15;

/// A record whose lengths fill it. Its places are bytes from its start.
pub struct Record {
    pub size: usize,
    body_crc: u32,
    pub queue_id: i32,
    flag: i32,
    pub queue_offset: i64,
    pub physical_offset: i64,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub store_timestamp: i64,
    pub body_at: usize,
    pub body_bytes: usize,
    pub topic_at: usize,
    pub topic_bytes: usize,
    pub properties_at: usize,
    pub properties_bytes: usize,
    pub has_crc: bool,
}

/// A length of 32 bits. A negative one becomes one that is larger than every buffer.
#[inline(always)]
pub fn length_at(bytes: &(impl Bytes + ?Sized), at: usize) -> Option<usize> {
    Some(i32::from_be_bytes(bytes.read(at)?) as usize)
}

impl Record {
    /// The record of `size` bytes at `start`, all of which are there. None if it is none.
    #[inline(always)]
    pub fn of(bytes: &(impl Bytes + ?Sized), start: usize, size: usize) -> Option<Record> {
        if length_at(bytes, start + TOTAL_SIZE_AT)? != size || size < RECORD_BYTES_MIN {
            return None;
        }
        let magic = u32::from_be_bytes(bytes.read(start + MAGIC_AT)?);
        let is_v2 = magic == MAGIC_V2;
        if !is_v2 && magic != MAGIC_V1 {
            return None;
        }
        let sys_flag = u32::from_be_bytes(bytes.read(start + SYS_FLAG_AT)?);
        let more = |bit| if sys_flag & bit == 0 { 0 } else { HOST_V6_MORE };
        let (born_more, store_more) = (more(BORN_HOST_V6), more(STORE_HOST_V6));
        let body_at = HEAD_V4_BYTES + born_more + store_more;
        let room = size.checked_sub(body_at + TAIL_BYTES_MIN + usize::from(is_v2))?;
        let body_bytes = length_at(bytes, start + body_at - BODY_LENGTH_BYTES)?;
        let room = room.checked_sub(body_bytes)?;
        let at = body_at + body_bytes;
        let topic_bytes = if is_v2 {
            i16::from_be_bytes(bytes.read(start + at)?)
        } else {
            i16::from(i8::from_be_bytes(bytes.read(start + at)?))
        };
        let topic_bytes = usize::try_from(topic_bytes).ok()?;
        if !(1..=TOPIC_BYTES_MAX).contains(&topic_bytes) {
            return None;
        }
        let properties_bytes = room.checked_sub(topic_bytes)?;
        let properties_at = size - properties_bytes;
        let stored =
            i16::from_be_bytes(bytes.read(start + properties_at - PROPERTIES_LENGTH_BYTES)?);
        if usize::try_from(stored) != Ok(properties_bytes) {
            return None;
        }
        let has_crc = properties_bytes >= CRC_PROPERTY_BYTES
            && bytes.equal(start + size - CRC_PROPERTY_BYTES, CRC_PROPERTY_START)
            && bytes.equal(start + size - 1, &[CRC_PROPERTY_END]);
        Some(Record {
            size,
            body_crc: u32::from_be_bytes(bytes.read(start + BODY_CRC_AT)?),
            queue_id: i32::from_be_bytes(bytes.read(start + QUEUE_ID_AT)?),
            flag: i32::from_be_bytes(bytes.read(start + FLAG_AT)?),
            queue_offset: i64::from_be_bytes(bytes.read(start + QUEUE_OFFSET_AT)?),
            physical_offset: i64::from_be_bytes(bytes.read(start + PHYSICAL_OFFSET_AT)?),
            sys_flag: sys_flag as i32,
            born_timestamp: i64::from_be_bytes(bytes.read(start + BORN_TIMESTAMP_AT)?),
            store_timestamp: i64::from_be_bytes(
                bytes.read(start + STORE_TIMESTAMP_AT + born_more)?,
            ),
            body_at,
            body_bytes,
            topic_at: properties_at - PROPERTIES_LENGTH_BYTES - topic_bytes,
            topic_bytes,
            properties_at,
            properties_bytes,
            has_crc,
        })
    }

    /// Whether the CRCs hold. The whole-record CRC covers that of the body. A record that ends in a
    /// zero has lost its whole-record CRC.
    #[inline(always)]
    pub fn crc_holds(&self, record: &[u8], require_crc: bool) -> bool {
        if self.has_crc {
            let covered = &record[..self.size - CRC_PROPERTY_BYTES];
            let digits_at = covered.len() + CRC_PROPERTY_START.len();
            record.read(digits_at) == Some(digits_of(masked_crc(covered)))
        } else {
            let body = &record[self.body_at..self.body_at + self.body_bytes];
            let is_torn = self.properties_bytes > 0 && record[self.size - 1] == 0;
            !require_crc && !is_torn && masked_crc(body) == self.body_crc
        }
    }
}

/// Whether a name can be a directory's, as `topic_fault` of Python has it.
pub fn is_topic(name: &[u8]) -> bool {
    !name.contains(&b'/')
        && !name.contains(&0)
        && name != b"."
        && name != b".."
        && std::str::from_utf8(name).is_ok()
}

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

#[cfg(test)]
mod tests {
    use super::*;

    const TOPIC: &[u8] = b"orders";

    /// A record with IPv4 hosts at the physical offset 7.
    fn record(body: &[u8], properties: &[u8], has_crc: bool) -> Vec<u8> {
        let crc_bytes = if has_crc { CRC_PROPERTY_BYTES } else { 0 };
        let size = RECORD_BYTES_MIN - 1 + body.len() + TOPIC.len() + properties.len() + crc_bytes;
        let mut made = vec![0; HEAD_V4_BYTES];
        made[TOTAL_SIZE_AT..][..4].copy_from_slice(&(size as u32).to_be_bytes());
        made[MAGIC_AT..][..4].copy_from_slice(&MAGIC_V1.to_be_bytes());
        made[BODY_CRC_AT..][..4].copy_from_slice(&masked_crc(body).to_be_bytes());
        made[PHYSICAL_OFFSET_AT..][..8].copy_from_slice(&7i64.to_be_bytes());
        made[STORE_TIMESTAMP_AT..][..8].copy_from_slice(&9i64.to_be_bytes());
        made[HEAD_V4_BYTES - 4..].copy_from_slice(&(body.len() as u32).to_be_bytes());
        made.extend_from_slice(body);
        made.push(TOPIC.len() as u8);
        made.extend_from_slice(TOPIC);
        made.extend_from_slice(&((properties.len() + crc_bytes) as u16).to_be_bytes());
        made.extend_from_slice(properties);
        if has_crc {
            let digits = digits_of(masked_crc(&made));
            made.extend_from_slice(
                &[CRC_PROPERTY_START, &digits[..], &[CRC_PROPERTY_END]].concat(),
            );
        }
        made
    }

    fn found(bytes: &[u8]) -> Option<Record> {
        Record::of(bytes, 0, bytes.len())
    }

    #[test]
    fn a_good_record_is_found_with_all_its_places() {
        let bytes = record(b"some body", b"K\x01V\x02", true);
        let record = found(&bytes).unwrap();
        assert_eq!((record.physical_offset, record.store_timestamp), (7, 9));
        assert_eq!(&bytes[record.body_at..][..record.body_bytes], b"some body");
        assert_eq!(&bytes[record.topic_at..][..record.topic_bytes], TOPIC);
        assert_eq!(record.properties_at + record.properties_bytes, bytes.len());
        assert!(record.has_crc && record.crc_holds(&bytes, true));
    }

    #[test]
    fn a_record_without_crc_has_that_of_its_body() {
        let mut bytes = record(b"some body", b"", false);
        let record = found(&bytes).unwrap();
        assert!(!record.has_crc && record.crc_holds(&bytes, false));
        assert!(!record.crc_holds(&bytes, true));
        bytes[HEAD_V4_BYTES] ^= 1;
        assert!(!found(&bytes).unwrap().crc_holds(&bytes, false));
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let good = record(b"some body", b"K\x01V\x02", true);
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(found(&bytes).is_none_or(|record| !record.crc_holds(&bytes, true)), "{bit}");
        }
    }

    #[test]
    fn no_length_leads_out_of_the_record() {
        let good = record(b"some body", b"K\x01V\x02", true);
        for size in 0..good.len() {
            assert!(Record::of(&good[..size], 0, size).is_none());
        }
        for at in 0..good.len() - 3 {
            for number in [0, 1, 0x7FFF, 0x7FFF_FFFF, 0x8000_0000, u32::MAX] {
                let mut bytes = good.clone();
                bytes[at..at + 4].copy_from_slice(&number.to_be_bytes());
                if let Some(record) = found(&bytes) {
                    record.crc_holds(&bytes, false);
                    assert!(record.topic_at + record.topic_bytes < record.properties_at);
                }
            }
        }
    }

    #[test]
    fn a_topic_is_the_name_of_a_directory() {
        assert!(is_topic("ü%|a-._".as_bytes()) && is_topic(b"..."));
        for name in [&b"."[..], b"..", b"a/b", b"a\0", b"\xFF"] {
            assert!(!is_topic(name), "{name:?}");
        }
    }
}
