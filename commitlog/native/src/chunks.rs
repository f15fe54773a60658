//! Slices as arrays of a fixed length: `as_chunks` of the standard library, which Rust 1.85 lacks.

use std::slice::{from_raw_parts, from_raw_parts_mut};

/// The whole chunks of a slice, and the rest behind them.
#[inline(always)]
pub fn chunks<const N: usize, T>(items: &[T]) -> (&[[T; N]], &[T]) {
    const { assert!(N > 0) };
    let (whole, rest) = items.split_at(items.len() / N * N);
    // SAFETY: so many arrays of N items lie there one after the other, as in the slice
    (unsafe { from_raw_parts(whole.as_ptr().cast(), whole.len() / N) }, rest)
}

/// The same of a slice that may be written to.
#[inline(always)]
pub fn chunks_mut<const N: usize, T>(items: &mut [T]) -> (&mut [[T; N]], &mut [T]) {
    const { assert!(N > 0) };
    let (whole, rest) = items.split_at_mut(items.len() / N * N);
    // SAFETY: as above, and nobody else has the slice
    (unsafe { from_raw_parts_mut(whole.as_mut_ptr().cast(), whole.len() / N) }, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_items_are_in_a_chunk_or_in_the_rest() {
        for length in 0..9 {
            let mut items: Vec<u16> = (0..length).collect();
            let (whole, rest) = chunks::<4, _>(&items);
            assert_eq!([whole.as_flattened(), rest].concat(), items);
            assert!(rest.len() < 4);
            let (whole, rest) = chunks_mut::<4, _>(&mut items);
            whole.as_flattened_mut().fill(100);
            rest.fill(100);
            assert!(items.iter().all(|&item| item == 100));
        }
    }
}
