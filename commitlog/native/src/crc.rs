//! The CRC-32 of records: zlib's, without its highest bit, and its ten digits.

const MASK: u32 = 0x7FFF_FFFF;

#[inline]
pub fn masked_crc(data: &[u8]) -> u32 {
    crc32fast::hash(data) & MASK
}

/// Ten decimal digits, the least significant first.
///
/// They are made in two halves, because a processor can do two divisions at a time.
#[inline]
pub fn digits_of(crc: u32) -> [u8; 10] {
    let (mut low, mut high) = (crc % 100_000, crc / 100_000);
    let mut digits = [0; 10];
    for place in 0..5 {
        digits[place] = b'0' + (low % 10) as u8;
        digits[place + 5] = b'0' + (high % 10) as u8;
        low /= 10;
        high /= 10;
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_reversed() {
        assert_eq!(&digits_of(0), b"0000000000");
        assert_eq!(&digits_of(2_147_483_647), b"7463847412");
        assert_eq!(&digits_of(100_000), b"0000010000");
    }

    #[test]
    fn the_highest_bit_is_not_stored() {
        assert_eq!(masked_crc(b"123456789"), 0xCBF4_3926 & MASK);
        assert_eq!(masked_crc(b""), 0);
    }
}
