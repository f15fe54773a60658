//! Memory that Python lends. All access to it is in this module, and every `unsafe` of the crate but
//! the making of a receipt.
//!
//! A lent buffer stays exported as long as the value here lives, so nobody can unmap or resize it.
//! What another process may change at any time is read by volatile loads into memory of our
//! own. A reference to such bytes would be undefined behaviour.

use std::io::Error;
use std::mem::{size_of, transmute};
use std::ptr::{read_volatile, write_volatile};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyBufferError, PyIndexError};
use pyo3::prelude::*;

use crate::calls::answered;
use crate::chunks::{chunks, chunks_mut};
use crate::memory_order;

/// Sixteen bytes that one instruction loads.
#[cfg(target_arch = "x86_64")]
type Pair = std::arch::x86_64::__m128i;
#[cfg(target_arch = "aarch64")]
type Pair = std::arch::aarch64::uint8x16_t;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
type Pair = u128;

fn lent<T: Element>(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<PyBuffer<T>> {
    let buffer = PyBuffer::<T>::get(object)?;
    if !buffer.is_c_contiguous() || (writable && buffer.readonly()) {
        return Err(PyBufferError::new_err(
            "the native core needs contiguous memory, and writable memory to write to",
        ));
    }
    Ok(buffer)
}

/// The words of the control region, which other processes read and write at any time.
pub struct Words(PyBuffer<u64>);

/// The index of a word that exists.
#[derive(Clone, Copy)]
pub struct Word(usize);

/// One of `count` words that begin at `start`.
///
/// # Safety
/// They are there as long as the reference is used, aligned, and nobody accesses them but as whole
/// words.
#[inline(always)]
unsafe fn word_at<'a>(start: *mut u64, count: usize, index: usize) -> &'a AtomicU64 {
    debug_assert!(index < count);
    // SAFETY: the caller's promise
    unsafe { AtomicU64::from_ptr(start.add(index)) }
}

impl Words {
    pub fn of(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Words> {
        lent(object, writable).map(Words)
    }

    pub fn word(&self, index: usize) -> PyResult<Word> {
        if index < self.0.item_count() {
            Ok(Word(index))
        } else {
            Err(PyIndexError::new_err(format!("there is no word {index}")))
        }
    }

    #[inline]
    fn at(&self, word: Word) -> &AtomicU64 {
        // SAFETY: `word` has checked the index, a buffer of u64 is aligned for u64, and all that
        // access shared words do so as whole words
        unsafe { word_at(self.0.buf_ptr().cast(), self.0.item_count(), word.0) }
    }

    /// The words must have been lent to be written to.
    #[inline]
    pub fn publish(&self, word: Word, value: u64) {
        debug_assert!(!self.0.readonly());
        memory_order::publish(self.at(word), value);
    }

    #[inline]
    pub fn observe(&self, word: Word) -> u64 {
        memory_order::observe(self.at(word))
    }

    /// The lower half of a word: a futex has 32 bits.
    fn futex(&self, word: Word) -> *mut u32 {
        self.at(word).as_ptr().cast()
    }

    /// Sleeps for so long, or until the word is not the number, or is woken. False: a signal has come.
    pub fn sleep(&self, until: Word, number: u64, rest: Duration) -> bool {
        let time = libc::timespec {
            tv_sec: rest.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: rest.subsec_nanos() as libc::c_long,
        };
        let (at, number) = (self.futex(until), number as u32);
        // SAFETY: the word and the time live during the call, which keeps neither
        let answer = unsafe { libc::syscall(libc::SYS_futex, at, libc::FUTEX_WAIT, number, &time) };
        if answer == 0 {
            return true;
        }
        match Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => false,
            Some(libc::EAGAIN | libc::ETIMEDOUT) => true,
            // SAFETY: as above; a container's filter of system calls may refuse a futex
            _ => unsafe { libc::nanosleep(&time, std::ptr::null_mut()) == 0 },
        }
    }

    /// Wakes all that sleep until the word changes, in all processes.
    pub fn wake(&self, word: Word) {
        // SAFETY: the kernel takes the address only to find who sleeps there
        unsafe { libc::syscall(libc::SYS_futex, self.futex(word), libc::FUTEX_WAKE, i32::MAX) };
    }
}

/// While it lives, the kernel ends the rests of this thread on time. Otherwise it adds up to 50 µs.
pub struct ExactTimer(libc::c_int);

impl ExactTimer {
    pub fn begin() -> ExactTimer {
        // SAFETY: here and below, the call takes and keeps no memory
        let before = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
        if before > 0 {
            // SAFETY: as above
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000 as libc::c_ulong) };
        }
        ExactTimer(before)
    }
}

impl Drop for ExactTimer {
    fn drop(&mut self) {
        if self.0 > 0 {
            // SAFETY: as above
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, self.0 as libc::c_ulong) };
        }
    }
}

/// `publish` of `shm/memory_order.py`, where the machine itself keeps no order.
#[pyfunction]
pub fn publish(words: &Bound<'_, PyAny>, at: usize, value: u64) -> PyResult<()> {
    let words = Words::of(words, true)?;
    words.publish(words.word(at)?, value);
    Ok(())
}

/// `observe` of `shm/memory_order.py`.
#[pyfunction]
pub fn observe<'py>(words: &Bound<'py, PyAny>, at: usize) -> PyResult<Bound<'py, PyAny>> {
    answered(words.py(), || {
        let words = Words::of(words, false)?;
        Ok(words.observe(words.word(at)?))
    })
}

/// `confirm` of `shm/memory_order.py`.
#[pyfunction]
pub fn confirm<'py>(words: &Bound<'py, PyAny>, at: usize) -> PyResult<Bound<'py, PyAny>> {
    answered(words.py(), || {
        let words = Words::of(words, false)?;
        Ok(memory_order::confirm(words.at(words.word(at)?)))
    })
}

/// Memory that nobody else reads or writes for the time being: a write buffer behind `wrote`, or
/// memory that the caller has just made.
pub struct Room(PyBuffer<u8>);

impl Room {
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Room> {
        lent(object, true).map(Room)
    }

    pub fn len(&self) -> usize {
        self.0.len_bytes()
    }

    /// None if the bytes are not within it.
    #[inline]
    pub fn slice(&mut self, start: usize, length: usize) -> Option<&mut [u8]> {
        let end = start.checked_add(length)?;
        if end > self.0.len_bytes() {
            return None;
        }
        // SAFETY: within the buffer. The lease of the lane excludes other writers, and readers stop
        // at `wrote`, which is at or before `start`.
        Some(unsafe { room_at(self.0.buf_ptr().cast(), start, length) })
    }

    /// All of it as the bytes of numbers of N bytes each.
    pub fn numbers<const N: usize>(&mut self) -> &mut [[u8; N]] {
        chunks_mut(self.slice(0, self.len()).unwrap_or_default()).0
    }
}

/// `length` bytes from `start` on, of memory that begins at `memory`.
///
/// # Safety
/// They are there as long as the reference is used, and nobody else reads or writes them.
#[inline(always)]
unsafe fn room_at<'a>(memory: *mut u8, start: usize, length: usize) -> &'a mut [u8] {
    // SAFETY: the caller's promise
    unsafe { std::slice::from_raw_parts_mut(memory.add(start), length) }
}

/// Bytes that another process may change while they are read: a mapped segment, a write buffer.
pub struct Source(PyBuffer<u8>);

/// A number at any address: one load of the processor's.
#[repr(C, packed)]
struct Unaligned<T>(T);

impl Source {
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Source> {
        lent(object, false).map(Source)
    }

    pub fn len(&self) -> usize {
        self.0.len_bytes()
    }
}

/// Loads a number.
///
/// # Safety
/// All of its bytes are within a source.
#[inline(always)]
unsafe fn load<T: Copy>(from: *const u8) -> T {
    // SAFETY: the caller's promise, and the type needs no alignment
    unsafe { read_volatile(from.cast::<Unaligned<T>>()) }.0
}

/// Bytes that can only be read by copying them: those of a source, or our own.
pub trait Bytes {
    /// Copies the bytes from `start` on. False, and nothing is copied, if they are not all there.
    #[must_use]
    fn copy(&self, start: usize, out: &mut [u8]) -> bool;

    #[inline(always)]
    fn read<const N: usize>(&self, start: usize) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.copy(start, &mut bytes).then_some(bytes)
    }

    /// Whether the bytes from `start` on are these.
    ///
    /// A call of libc's memcmp would cost more than all else that is done for a small record.
    #[inline(always)]
    fn equal(&self, start: usize, wanted: &[u8]) -> bool {
        let (words, rest) = chunks::<8, _>(wanted);
        let (fours, rest) = chunks::<4, _>(rest);
        let mut at = start;
        for word in words {
            if self.read(at) != Some(*word) {
                return false;
            }
            at += 8;
        }
        for four in fours {
            if self.read(at) != Some(*four) {
                return false;
            }
            at += 4;
        }
        for byte in rest {
            if self.read(at) != Some([*byte]) {
                return false;
            }
            at += 1;
        }
        true
    }
}

impl Bytes for Source {
    #[inline(always)]
    fn copy(&self, start: usize, out: &mut [u8]) -> bool {
        if start.checked_add(out.len()).is_none_or(|end| end > self.len()) {
            return false;
        }
        // SAFETY: within the buffer, as was just checked
        unsafe { copy_from(self.0.buf_ptr().cast::<u8>().cast_const().add(start), out) };
        true
    }
}

/// Fills `out` with bytes that others may change meanwhile.
///
/// # Safety
/// As many bytes as `out` has can be loaded there.
#[inline(always)]
unsafe fn copy_from(from: *const u8, out: &mut [u8]) {
    let length = out.len();
    if let Some(last) = out.last_chunk_mut::<8>() {
        // it may overlap the word before it, which takes less time than a loop over the rest
        // SAFETY: here and below, what is loaded has its place in `out`, so it can be loaded
        *last = unsafe { load::<u64>(from.add(length - 8)) }.to_ne_bytes();
        let (pairs, rest) = chunks_mut::<16, _>(out);
        let rest_at = length - rest.len();
        for (index, pair) in pairs.iter_mut().enumerate() {
            // SAFETY: as above, and the type is 16 plain bytes
            *pair = unsafe { transmute::<Pair, [u8; 16]>(load(from.add(index * 16))) };
        }
        for (index, word) in chunks_mut::<8, _>(rest).0.iter_mut().enumerate() {
            // SAFETY: as above
            *word = unsafe { load::<u64>(from.add(rest_at + index * 8)) }.to_ne_bytes();
        }
        return;
    }
    let (fours, rest) = chunks_mut::<4, _>(out);
    for four in fours {
        // SAFETY: as above
        *four = unsafe { load::<u32>(from) }.to_ne_bytes();
    }
    let rest_at = length - rest.len();
    for (index, byte) in rest.iter_mut().enumerate() {
        // SAFETY: as above
        *byte = unsafe { load(from.add(rest_at + index)) };
    }
}

impl Bytes for [u8] {
    #[inline(always)]
    fn copy(&self, start: usize, out: &mut [u8]) -> bool {
        let bytes = self.get(start..).and_then(|rest| rest.get(..out.len()));
        if let Some(bytes) = bytes {
            out.copy_from_slice(bytes);
        }
        bytes.is_some()
    }
}

/// Numbers of an array of numpy's. Python's other threads may change it while the interpreter is
/// given up, so it is read and written by volatile accesses.
pub struct Numbers(PyBuffer<i64>);

impl Numbers {
    pub fn of(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Numbers> {
        lent(object, writable).map(Numbers)
    }

    pub fn len(&self) -> usize {
        self.0.len_bytes() / size_of::<i64>()
    }

    #[inline]
    pub fn get(&self, index: usize) -> Option<i64> {
        // SAFETY: within the buffer, which is aligned for its items
        (index < self.len())
            .then(|| unsafe { read_volatile(self.0.buf_ptr().cast::<i64>().add(index)) })
    }

    /// False if there is no such place. The array must be one that was lent to be written to.
    #[inline]
    #[must_use]
    pub fn set(&mut self, index: usize, value: i64) -> bool {
        let is_there = index < self.len() && !self.0.readonly();
        if is_there {
            // SAFETY: within the buffer, which is aligned for its items and writable
            unsafe { write_volatile(self.0.buf_ptr().cast::<i64>().add(index), value) };
        }
        is_there
    }
}

/// Two threads in the parts of two processes, for Miri: it finds an access that no order protects.
#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::thread;

    use super::*;

    const RECORD: &[u8; 27] = b"a record of twenty-seven by";

    /// The address of memory that two threads share, as two processes do.
    #[derive(Clone, Copy)]
    struct Shared<T>(*mut T);

    // SAFETY: what is done with the address says why it may be done
    unsafe impl<T> Send for Shared<T> {}

    impl<T> Shared<T> {
        fn start(self) -> *mut T {
            self.0
        }
    }

    /// A lessee appends a record, and a reader copies it as soon as the word says that it is there.
    fn send_and_read(publish: fn(&AtomicU64, u64)) {
        let (mut memory, mut words) = ([0; 64], [0; 4]);
        let (bytes, row) = (Shared(memory.as_mut_ptr()), Shared(words.as_mut_ptr()));
        let lessee = move || {
            // SAFETY: the array outlives the threads, and the reader stops at the word
            unsafe { room_at(bytes.start(), 8, RECORD.len()) }.copy_from_slice(RECORD);
            // SAFETY: the words outlive the threads, which access them as words only
            publish(unsafe { word_at(row.start(), 4, 1) }, 8 + RECORD.len() as u64);
        };
        let reader = move || {
            let mut out = [0; RECORD.len()];
            // SAFETY: as above
            while memory_order::observe(unsafe { word_at(row.start(), 4, 1) }) == 0 {
                thread::yield_now();
            }
            // SAFETY: the array has these bytes
            unsafe { copy_from(bytes.start().cast_const().add(8), &mut out) };
            assert_eq!(&out, RECORD);
        };
        thread::scope(|both| {
            both.spawn(lessee);
            both.spawn(reader);
        });
    }

    #[test]
    fn what_is_published_can_be_read() {
        send_and_read(memory_order::publish);
    }

    /// The planted bug: tests/native/test_memory_models.py sees Miri end it for a data race.
    #[test]
    #[ignore = "wrong on purpose"]
    fn planted_relaxed_store() {
        send_and_read(|word, value| word.store(value, Ordering::Relaxed));
    }
}
