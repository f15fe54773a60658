//! Where a record's fields are, and a record's bytes.
//!
//! `commitlog/record/record_layout.py` is the specification; a test compares these numbers with it.

use crate::crc::{digits_of, masked_crc};

pub const TOTAL_SIZE_AT: usize = 0;
pub const MAGIC_AT: usize = 4;
pub const BODY_CRC_AT: usize = 8;
pub const QUEUE_ID_AT: usize = 12;
pub const FLAG_AT: usize = 16;
pub const QUEUE_OFFSET_AT: usize = 20;
pub const PHYSICAL_OFFSET_AT: usize = 28;
pub const SYS_FLAG_AT: usize = 36;
pub const BORN_TIMESTAMP_AT: usize = 40;
/// With an IPv4 born host. HOST_V6_MORE is added for an IPv6 one.
pub const STORE_TIMESTAMP_AT: usize = 56;
/// With an IPv4 born host, as STORE_TIMESTAMP_AT.
pub const STORE_HOST_AT: usize = 64;
/// Up to the body, with two IPv4 hosts.
pub const HEAD_V4_BYTES: usize = 88;
pub const HOST_V6_MORE: usize = 12;
pub const BORN_HOST_V6: u32 = 0x10;
pub const STORE_HOST_V6: u32 = 0x20;
pub const BODY_LENGTH_BYTES: usize = 4;
pub const PROPERTIES_LENGTH_BYTES: usize = 2;
pub const PROPERTIES_BYTES_MAX: usize = 32_767;
pub const TOPIC_BYTES_MAX: usize = 255;
/// What follows the body of a V1 record with empty topic and properties. V2 has one byte more.
pub const TAIL_BYTES_MIN: usize = 3;
pub const RECORD_BYTES_MIN: usize = 92;
pub const MAGIC_V1: u32 = 0xDAA3_20A7;
pub const MAGIC_V2: u32 = 0xDAA3_20AB;
/// The whole-record CRC, the last property: its start, ten digits, its end.
pub const CRC_PROPERTY_BYTES: usize = 20;
pub const CRC_PROPERTY_START: &[u8; 9] = b"__CRC32#\x01";
pub const CRC_PROPERTY_END: u8 = 2;

/// The numbers above by the names that Python has for them, for the test that compares them.
pub const NUMBERS: [(&str, usize); 20] = [
    ("TOTAL_SIZE_AT", TOTAL_SIZE_AT),
    ("MAGIC_AT", MAGIC_AT),
    ("QUEUE_ID_AT", QUEUE_ID_AT),
    ("QUEUE_OFFSET_AT", QUEUE_OFFSET_AT),
    ("PHYSICAL_OFFSET_AT", PHYSICAL_OFFSET_AT),
    ("SYS_FLAG_AT", SYS_FLAG_AT),
    ("STORE_TIMESTAMP_AT", STORE_TIMESTAMP_AT),
    ("STORE_HOST_AT", STORE_HOST_AT),
    ("HEAD_V4_BYTES", HEAD_V4_BYTES),
    ("HOST_V6_MORE", HOST_V6_MORE),
    ("BODY_LENGTH_BYTES", BODY_LENGTH_BYTES),
    ("PROPERTIES_LENGTH_BYTES", PROPERTIES_LENGTH_BYTES),
    ("PROPERTIES_BYTES_MAX", PROPERTIES_BYTES_MAX),
    ("TAIL_BYTES_MIN", TAIL_BYTES_MIN),
    ("RECORD_BYTES_MIN", RECORD_BYTES_MIN),
    ("MAGIC_V1", MAGIC_V1 as usize),
    ("MAGIC_V2", MAGIC_V2 as usize),
    ("CRC_PROPERTY_BYTES", CRC_PROPERTY_BYTES),
    ("BORN_HOST_V6", BORN_HOST_V6 as usize),
    ("STORE_HOST_V6", STORE_HOST_V6 as usize),
];

/// What all records of a topic and a lane have in common. Python's encoder makes these bytes,
/// because it knows versions and hosts.
pub struct Template {
    head: Box<[u8]>,
    store_timestamp_at: usize,
    topic: Box<[u8]>,
    has_crc: bool,
}

/// What is different in every record.
#[derive(Clone, Copy, Debug)]
pub struct Fields {
    pub queue_offset: i64,
    pub physical_offset: i64,
    pub born_timestamp: i64,
    pub store_timestamp: i64,
}

impl Template {
    /// `head` is that of any record, `topic` is TOPICLEN and TOPIC. None if they can't be.
    pub fn new(head: &[u8], topic: &[u8], has_crc: bool) -> Option<Template> {
        let sys_flag = u32::from_be_bytes(*head.get(SYS_FLAG_AT..)?.first_chunk()?);
        let more = |bit| if sys_flag & bit == 0 { 0 } else { HOST_V6_MORE };
        let (born_more, store_more) = (more(BORN_HOST_V6), more(STORE_HOST_V6));
        let is_whole = head.len() == HEAD_V4_BYTES + born_more + store_more;
        (is_whole && topic.len() > 1).then(|| Template {
            head: head.into(),
            store_timestamp_at: STORE_TIMESTAMP_AT + born_more,
            topic: topic.into(),
            has_crc,
        })
    }

    #[inline]
    fn crc_bytes(&self) -> usize {
        if self.has_crc { CRC_PROPERTY_BYTES } else { 0 }
    }

    /// The most bytes that the property string of a message may have.
    #[inline]
    pub fn properties_bytes_max(&self) -> usize {
        PROPERTIES_BYTES_MAX - self.crc_bytes()
    }

    /// TOTALSIZE of a record. None if there is no such number.
    #[inline]
    pub fn size(&self, body: usize, properties: usize) -> Option<usize> {
        let fixed = self.head.len() + self.topic.len() + PROPERTIES_LENGTH_BYTES + self.crc_bytes();
        let size = body.checked_add(properties)?.checked_add(fixed)?;
        (size <= i32::MAX as usize).then_some(size)
    }

    /// Makes a record in `out`, which has exactly the record's size.
    ///
    /// `put_body` and `put_properties` fill the places of the body and of the property string,
    /// which have the sizes that are given. None if one can't, or if the sizes do not fit together.
    #[inline]
    pub fn encode(
        &self,
        out: &mut [u8],
        body: usize,
        put_body: impl FnOnce(&mut [u8]) -> Option<()>,
        properties: usize,
        put_properties: impl FnOnce(&mut [u8]) -> Option<()>,
        fields: Fields,
    ) -> Option<()> {
        let size = self.size(body, properties)?;
        if out.len() != size || properties > self.properties_bytes_max() {
            return None;
        }
        let (head, rest) = out.split_at_mut(self.head.len());
        head.copy_from_slice(&self.head);
        put(head, TOTAL_SIZE_AT, (size as u32).to_be_bytes());
        put(head, QUEUE_OFFSET_AT, fields.queue_offset.to_be_bytes());
        put(head, PHYSICAL_OFFSET_AT, fields.physical_offset.to_be_bytes());
        put(head, BORN_TIMESTAMP_AT, fields.born_timestamp.to_be_bytes());
        put(head, self.store_timestamp_at, fields.store_timestamp.to_be_bytes());
        put(head, self.head.len() - BODY_LENGTH_BYTES, (body as u32).to_be_bytes());
        let (place, rest) = rest.split_at_mut(body);
        put_body(place)?;
        put(head, BODY_CRC_AT, masked_crc(place).to_be_bytes());
        let (place, rest) = rest.split_at_mut(self.topic.len());
        place.copy_from_slice(&self.topic);
        let (place, rest) = rest.split_at_mut(PROPERTIES_LENGTH_BYTES);
        place.copy_from_slice(&((properties + self.crc_bytes()) as u16).to_be_bytes());
        put_properties(&mut rest[..properties])?;
        if self.has_crc {
            let (record, property) = out.split_at_mut(size - CRC_PROPERTY_BYTES);
            property[..9].copy_from_slice(CRC_PROPERTY_START);
            property[9..19].copy_from_slice(&digits_of(masked_crc(record)));
            property[19] = CRC_PROPERTY_END;
        }
        Some(())
    }
}

#[inline]
fn put<const N: usize>(out: &mut [u8], at: usize, value: [u8; N]) {
    out[at..at + N].copy_from_slice(&value);
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: Fields = Fields {
        queue_offset: 7,
        physical_offset: 1 << 40,
        born_timestamp: -1,
        store_timestamp: 5,
    };

    fn head(sys_flag: u32, size: usize) -> Vec<u8> {
        let mut head = vec![0; size];
        put(&mut head, SYS_FLAG_AT, sys_flag.to_be_bytes());
        head
    }

    fn copy<'a>(from: &'a [u8]) -> impl FnOnce(&mut [u8]) -> Option<()> + 'a {
        move |place| (place.len() == from.len()).then(|| place.copy_from_slice(from))
    }

    #[test]
    fn a_head_of_the_wrong_length_is_refused() {
        for (sys_flag, size) in [(0, 88), (BORN_HOST_V6, 100), (BORN_HOST_V6 | STORE_HOST_V6, 112)]
        {
            assert!(Template::new(&head(sys_flag, size), b"\x01t", true).is_some());
            assert!(Template::new(&head(sys_flag, size + 1), b"\x01t", true).is_none());
            assert!(Template::new(&head(sys_flag, size), b"\x00", true).is_none());
        }
        assert!(Template::new(b"short", b"\x01t", true).is_none());
    }

    #[test]
    fn every_byte_of_a_record_is_written() {
        for has_crc in [true, false] {
            let template = Template::new(&head(0, 88), b"\x01t", has_crc).unwrap();
            let size = template.size(3, 4).unwrap();
            let mut made = Vec::new();
            for filler in [0x00, 0xFF] {
                let mut out = vec![filler; size];
                let encoded =
                    template.encode(&mut out, 3, copy(b"abc"), 4, copy(b"a\x01b\x02"), FIELDS);
                assert_eq!(encoded, Some(()));
                made.push(out);
            }
            assert_eq!(made[0], made[1]);
            let record = &made[0];
            assert_eq!(&record[..4], (size as u32).to_be_bytes());
            assert_eq!(&record[8..12], masked_crc(b"abc").to_be_bytes());
            assert_eq!(&record[QUEUE_OFFSET_AT..][..8], 7i64.to_be_bytes());
            assert_eq!(&record[84..91], b"\x00\x00\x00\x03abc");
            let properties = 4 + if has_crc { CRC_PROPERTY_BYTES } else { 0 };
            assert_eq!(record[91..95], [1, b't', 0, properties as u8]);
            assert_eq!(&record[95..99], b"a\x01b\x02");
            if has_crc {
                let (covered, property) = record.split_at(size - CRC_PROPERTY_BYTES);
                assert_eq!(property[9..19], digits_of(masked_crc(covered)));
            }
        }
    }

    #[test]
    fn sizes_that_do_not_fit_make_nothing() {
        let template = Template::new(&head(0, 88), b"\x01t", true).unwrap();
        let mut out = vec![0; template.size(3, 0).unwrap()];
        assert!(template.encode(&mut out[1..], 3, copy(b"abc"), 0, copy(b""), FIELDS).is_none());
        assert!(template.encode(&mut out, 3, copy(b"ab"), 0, copy(b""), FIELDS).is_none());
        let most = template.properties_bytes_max();
        let mut out = vec![0; template.size(0, most + 1).unwrap()];
        assert!(template.encode(&mut out, 0, copy(b""), most + 1, |_| Some(()), FIELDS).is_none());
        assert_eq!(template.size(usize::MAX, 1), None);
        assert_eq!(template.size(i32::MAX as usize, 0), None);
    }
}
