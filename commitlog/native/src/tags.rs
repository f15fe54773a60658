//! The tags code of a property string.
//!
//! `tags_code(decode_properties(…).get("TAGS"))` of Python is the specification. A pair ends at
//! 0x02 or with the string, the first 0x01 divides it, an empty value does not count, and the last
//! of two pairs wins.

use crate::chunks::chunks;

const LOW_BITS: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = LOW_BITS << 7;

/// Java's hash of the value of TAGS, 0 without one.
#[inline]
pub fn tags_code(properties: &[u8]) -> i32 {
    let (mut left, mut found) = (properties, None);
    while !left.is_empty() {
        let end = position_of(2, left).unwrap_or(left.len());
        let (pair, rest) = left.split_at(end);
        match pair.split_first_chunk() {
            Some((b"TAGS\x01", value)) if !value.is_empty() => found = Some(value),
            _ => {}
        }
        left = rest.get(1..).unwrap_or_default();
    }
    found.map_or(0, java_hash)
}

/// String.hashCode of Java's: the UTF-16 units, each times a power of 31, in 32 bits. Bytes that
/// are not UTF-8 count as U+FFFD.
fn java_hash(text: &[u8]) -> i32 {
    let add = |hash: i32, unit: u16| hash.wrapping_mul(31).wrapping_add(i32::from(unit));
    if text.is_ascii() {
        text.iter().fold(0, |hash, &byte| add(hash, u16::from(byte)))
    } else {
        String::from_utf8_lossy(text).encode_utf16().fold(0, add)
    }
}

/// Where a byte stands for the first time. Eight bytes are looked at together.
#[inline]
fn position_of(wanted: u8, bytes: &[u8]) -> Option<usize> {
    let (words, rest) = chunks::<8, _>(bytes);
    for (index, word) in words.iter().enumerate() {
        let zero_if_wanted = u64::from_le_bytes(*word) ^ (LOW_BITS * u64::from(wanted));
        // the lowest bit that is set belongs to the first byte that is zero
        let hits = zero_if_wanted.wrapping_sub(LOW_BITS) & !zero_if_wanted & HIGH_BITS;
        if hits != 0 {
            return Some(index * 8 + hits.trailing_zeros() as usize / 8);
        }
    }
    let at = rest.iter().position(|&byte| byte == wanted)?;
    Some(words.len() * 8 + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_java() {
        assert_eq!(java_hash(b""), 0);
        assert_eq!(java_hash(b"TagA"), 2_598_919);
        assert_eq!(java_hash(b"polygenelubricants"), i32::MIN);
        assert_eq!(java_hash("é".as_bytes()), 0xE9);
        assert_eq!(java_hash("😀".as_bytes()), 0xD83D * 31 + 0xDE00); // two units
        assert_eq!(java_hash(b"\xFF"), 0xFFFD);
    }

    #[test]
    fn tags_are_found_as_the_parser_finds_them() {
        let a = i32::from(b'a');
        for (properties, code) in [
            (&b""[..], 0),
            (b"TAGS\x01a\x02", a),
            (b"TAGS\x01a", a),
            (b"KEYS\x01some key\x02TAGS\x01a\x02", a),
            (b"XTAGS\x01a\x02", 0),
            (b"TAGS\x02a\x01TAGS\x01\x02", 0),
            (b"TAGS\x01b\x02TAGS\x01a\x02TAGS\x01\x02", a),
            (b"\x02\x02TAGS\x01a", a),
            (b"TAGS\x01\x01", 1),
            (b"TAGS", 0),
        ] {
            assert_eq!(tags_code(properties), code, "{properties:?}");
        }
    }

    #[test]
    fn every_place_of_a_byte_is_found() {
        for length in 0..40 {
            let mut bytes = vec![3; length];
            assert_eq!(position_of(2, &bytes), None);
            for place in (0..length).rev() {
                bytes[place] = 2;
                assert_eq!(position_of(2, &bytes), Some(place));
            }
        }
    }
}
