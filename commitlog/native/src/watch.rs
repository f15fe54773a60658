//! The rest of a reader that follows: it looks at words of shared memory, without the interpreter.
//!
//! A look in Python costs more than the wakeup before it. So what looks again and again is here, and
//! Python is asked when something has come. A stage wakes whoever sleeps here by a futex, which is a
//! counter in its own row. Python's twin is `time.sleep`, one rest at a time.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::calls::answered;
use crate::chunks::chunks;
use crate::memory::{ExactTimer, Word, Words};

/// A shorter rest is timed to the microsecond. Others cost less if they need not be.
const EXACT: Duration = Duration::from_millis(1);

/// Words at equal distances, and the counter of the stage that wakes who sleeps here.
#[pyclass(frozen, module = "commitlog.native._core")]
pub struct Watch {
    words: Words,
    watched: Vec<Word>,
    counter: Word,
}

#[pymethods]
impl Watch {
    #[new]
    fn new(
        words: &Bound<'_, PyAny>,
        first: usize,
        stride: usize,
        count: usize,
        counter: usize,
    ) -> PyResult<Watch> {
        let words = Words::of(words, false)?;
        let place = |number: usize| number.checked_mul(stride)?.checked_add(first);
        let watched = (0..count)
            .map(|number| words.word(place(number).unwrap_or(usize::MAX)))
            .collect::<PyResult<_>>()?;
        let counter = words.word(counter)?;
        Ok(Watch { words, watched, counter })
    }

    /// The bytes of the watched words now, and the numbers of those that are not as they were.
    fn look<'py>(&self, py: Python<'py>, seen: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        answered(py, || {
            let words: Vec<u64> =
                self.watched.iter().map(|word| self.words.observe(*word)).collect();
            let (before, _) = chunks::<8, _>(seen);
            let moved = words.iter().enumerate().filter(|(number, word)| {
                before.get(*number).is_none_or(|before| word.to_ne_bytes() != *before)
            });
            let moved: Vec<usize> = moved.map(|(number, _)| number).collect();
            let words: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
            Ok((PyBytes::new(py, &words), moved))
        })
    }

    /// Sleeps until a watched word is not what it was, the stage says that it has worked, a signal has
    /// come, or `limit` nanoseconds are over. `seen` has the words' bytes.
    fn wait(&self, py: Python<'_>, seen: &[u8], limit: u64) -> PyResult<()> {
        self.rest(py, seen, limit, |_| Duration::MAX)
    }

    /// The same, and it looks after each rest. A rest is one `part` of the time without a message, of
    /// which `idle` nanoseconds are over at the call, and it is not shorter than `shortest`.
    fn look_for(
        &self,
        py: Python<'_>,
        seen: &[u8],
        idle: u64,
        part: NonZeroU64,
        shortest: u64,
        limit: u64,
    ) -> PyResult<()> {
        self.rest(py, seen, limit, |passed| {
            let idle = idle.saturating_add(passed.as_nanos() as u64);
            Duration::from_nanos((idle / part).max(shortest))
        })
    }
}

impl Watch {
    /// `rest_after` says how long a rest is after so long in this call.
    fn rest(
        &self,
        py: Python<'_>,
        seen: &[u8],
        limit: u64,
        rest_after: impl Fn(Duration) -> Duration + Sync,
    ) -> PyResult<()> {
        let (seen, rest) = chunks::<8, _>(seen);
        if seen.len() != self.watched.len() || !rest.is_empty() {
            return Err(PyValueError::new_err("as many words were seen as are watched"));
        }
        let (began, limit) = (Instant::now(), Duration::from_nanos(limit));
        py.detach(|| {
            let mut timer = None;
            loop {
                // It is loaded before the look. So what comes after the look changes it, and then
                // the kernel lets nobody sleep.
                let counted = self.words.observe(self.counter);
                let passed = began.elapsed();
                if passed >= limit || self.has_moved(seen) {
                    return;
                }
                let rest = rest_after(passed).min(limit - passed);
                if rest < EXACT && timer.is_none() {
                    timer = Some(ExactTimer::begin());
                }
                if !self.words.sleep(self.counter, counted, rest) {
                    return;
                }
            }
        });
        Ok(())
    }

    fn has_moved(&self, seen: &[[u8; 8]]) -> bool {
        let mut both = self.watched.iter().zip(seen);
        both.any(|(word, seen)| self.words.observe(*word) != u64::from_ne_bytes(*seen))
    }
}

/// Wakes all that sleep until this word changes.
#[pyfunction]
pub fn wake<'py>(
    py: Python<'py>,
    words: &Bound<'py, PyAny>,
    index: usize,
) -> PyResult<Bound<'py, PyAny>> {
    answered(py, || {
        let words = Words::of(words, false)?;
        words.wake(words.word(index)?);
        Ok(py.None())
    })
}
