//! One record: its fields, its places and its CRCs.
//!
//! A record is good here exactly if `decode` of Python accepts it.

use crate::crc::{digits_of, masked_crc};
use crate::layout::{
    BODY_CRC_AT, BODY_LENGTH_BYTES, BORN_HOST_V6, BORN_TIMESTAMP_AT, CRC_PROPERTY_BYTES,
    CRC_PROPERTY_END, CRC_PROPERTY_START, FLAG_AT, HEAD_V4_BYTES, HOST_V6_MORE, MAGIC_AT, MAGIC_V1,
    MAGIC_V2, PHYSICAL_OFFSET_AT, PROPERTIES_LENGTH_BYTES, QUEUE_ID_AT, QUEUE_OFFSET_AT,
    RECORD_BYTES_MIN, STORE_HOST_V6, STORE_TIMESTAMP_AT, SYS_FLAG_AT, TAIL_BYTES_MIN,
    TOPIC_BYTES_MAX, TOTAL_SIZE_AT,
};
use crate::memory::Bytes;

/// A record whose lengths fill it. Its places are bytes from its start.
pub struct Record {
    pub size: usize,
    body_crc: u32,
    pub queue_id: i32,
    pub flag: i32,
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
