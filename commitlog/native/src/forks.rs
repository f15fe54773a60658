//! Tells a forked child from its parent, before Python's own hooks have run in the child.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);

type Hook = Option<extern "C" fn()>;

unsafe extern "C" {
    fn pthread_atfork(prepare: Hook, parent: Hook, child: Hook) -> c_int;
}

extern "C" fn count() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The number of forks between the process that has loaded this module and the present one.
#[inline]
pub fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Begins to count. False: there is no memory for that.
pub fn count_forks() -> bool {
    // SAFETY: the function stays loaded as long as the process runs, and touches an atomic only
    unsafe { pthread_atfork(None, None, Some(count)) == 0 }
}
