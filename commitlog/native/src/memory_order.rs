//! The order in which other processes see what is stored: the twin of `shm/memory_order.py`.
//!
//! `publish`, `observe` and `confirm` are the only ways to a word that another process reads or
//! writes. On x86-64 each is one plain instruction. `src/models.rs` tries all orders that a weaker
//! machine may show.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A word that is loaded and stored as a whole: the machine's, or one of a model's.
pub trait SharedWord {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn fence(order: Ordering);
}

impl SharedWord for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }

    #[inline(always)]
    fn fence(order: Ordering) {
        fence(order);
    }
}

/// Stores a word. Who observes this value sees everything that was stored before it.
#[inline(always)]
pub fn publish(word: &impl SharedWord, value: u64) {
    word.store(value, Ordering::Release);
}

/// Loads a word. Everything that was stored before the value is seen from here on.
#[inline(always)]
pub fn observe(word: &impl SharedWord) -> u64 {
    word.load(Ordering::Acquire)
}

/// Loads a word which says whether memory is used again. What was loaded before was there before
/// the value, and what is stored from here on comes after it.
#[inline(always)]
pub fn confirm<W: SharedWord>(word: &W) -> u64 {
    W::fence(Ordering::Acquire);
    let value = observe(word);
    W::fence(Ordering::Release);
    value
}
