//! Where a test kills its own process within native code (cargo feature `failpoints`).
//!
//! COMMITLOG_FAILPOINT=name:count ends the process at once, the count-th time that `name` is reached.
//! In a build without the feature nothing of it is there.

#[cfg(feature = "failpoints")]
pub fn reached(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicI64, Ordering};

    static WANTED: OnceLock<Option<(String, AtomicI64)>> = OnceLock::new();
    let wanted = WANTED.get_or_init(|| {
        let value = std::env::var("COMMITLOG_FAILPOINT").ok()?;
        let (name, count) = value.split_once(':')?;
        Some((name.to_owned(), AtomicI64::new(count.parse().ok()?)))
    });
    let is_last = |(wanted, left): &(String, AtomicI64)| {
        wanted == name && left.fetch_sub(1, Ordering::Relaxed) == 1
    };
    if wanted.as_ref().is_some_and(is_last) {
        std::process::abort(); // a signal like SIGKILL that nobody handles, and no `unsafe` for a test
    }
}

#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn reached(_name: &str) {}
