//! The protocols of shared memory, tried in all orders that a weak machine may show.
//!
//! loom runs each model again and again: with every interleaving of its threads, and with every
//! value that a load may give under the memory model of C++. A thread stands for a process. The
//! words are loaded and stored by the functions of the native core itself. Each model has a planted
//! mistake, which loom must find.
#![cfg(test)]

#[path = "../../../../commitlog/native/src/memory_order.rs"]
mod memory_order;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;
use memory_order::{SharedWord, confirm, observe, publish};

/// How often a thread may be stopped between two of its steps in one run. All mistakes that are known
/// need one or two; without a bound the model of four processes takes hours.
const PREEMPTIONS: usize = 3;

type Publish = fn(&AtomicU64, u64);
type Look = fn(&AtomicU64) -> u64;

impl SharedWord for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }

    fn fence(order: Ordering) {
        fence(order);
    }
}

fn relaxed_store(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
}

fn relaxed_load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

/// Bytes that no two processes may access at the same time. loom ends the model where they do.
#[derive(Default)]
struct Bytes(UnsafeCell<u64>);

// SAFETY: what loom checks
unsafe impl Sync for Bytes {}

impl Bytes {
    fn put(&self, value: u64) {
        // SAFETY: what loom checks
        self.0.with_mut(|bytes| unsafe { *bytes = value });
    }

    fn get(&self) -> u64 {
        // SAFETY: what loom checks
        self.0.with(|bytes| unsafe { *bytes })
    }
}

/// What a process does, given the shared memory.
type Process<S> = Box<dyn Fn(&S) + Send + Sync>;

/// Runs a model with a thread for each of its processes.
fn run<S, const N: usize>(make: fn() -> S, processes: [Process<S>; N])
where
    S: Send + Sync + 'static,
{
    let processes = std::sync::Arc::new(processes);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(move || {
        let state = Arc::new(make());
        let threads: Vec<_> = (1..N)
            .map(|number| {
                let (state, processes) = (state.clone(), processes.clone());
                thread::spawn(move || processes[number](&state))
            })
            .collect();
        processes[0](&state);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// A lane with one record: its bytes in the write buffer, those in the file, and its positions.
#[derive(Default)]
struct Lane {
    buffer: Bytes,
    file: Bytes,
    wrote: AtomicU64,
    committed: AtomicU64,
    flushed: AtomicU64,
}

/// The appender publishes a record, the committer copies it, the flusher flushes it, and a reader
/// reads it.
fn pipeline(publish: Publish) {
    run(
        Lane::default,
        [
            Box::new(move |lane| {
                lane.buffer.put(7);
                publish(&lane.wrote, 1);
            }),
            Box::new(move |lane| {
                if observe(&lane.wrote) == 1 {
                    lane.file.put(lane.buffer.get());
                    publish(&lane.committed, 1);
                }
            }),
            Box::new(move |lane| {
                if observe(&lane.committed) == 1 {
                    publish(&lane.flushed, 1);
                }
            }),
            Box::new(move |lane| {
                if observe(&lane.flushed) == 1 {
                    assert_eq!(lane.file.get(), 7);
                    // who loads the smaller position first sees them in order
                    assert_eq!((observe(&lane.committed), observe(&lane.wrote)), (1, 1));
                }
            }),
        ],
    );
}

#[test]
fn a_position_covers_the_bytes_below_it() {
    pipeline(publish);
}

#[test]
#[should_panic = "Causality violation"]
fn planted_a_relaxed_store_publishes_nothing() {
    pipeline(relaxed_store);
}

/// A buffer that is used again, and a reader of what is only accepted. Its bytes are loaded and
/// stored as they come, because the reader looks afterwards whether they were those of its segment.
#[derive(Default)]
struct Slot {
    bytes: AtomicU64,
    wrote: AtomicU64,
    flushed: AtomicU64,
}

fn accepted_reader(of_lessee: Look, of_reader: Look) {
    run(
        Slot::default,
        [
            Box::new(move |slot| {
                relaxed_store(&slot.bytes, 1);
                publish(&slot.wrote, 1);
                if of_lessee(&slot.flushed) == 1 {
                    publish(&slot.wrote, 2);
                    relaxed_store(&slot.bytes, 2); // of the next segment in this buffer
                }
            }),
            Box::new(|slot| {
                if observe(&slot.wrote) == 1 {
                    publish(&slot.flushed, 1);
                }
            }),
            Box::new(move |slot| {
                if observe(&slot.wrote) > 0 {
                    let copy = relaxed_load(&slot.bytes);
                    if of_reader(&slot.flushed) == 0 {
                        assert_eq!(copy, 1, "of another segment");
                    }
                }
            }),
        ],
    );
}

#[test]
fn accepted_bytes_are_those_of_their_segment() {
    accepted_reader(confirm, confirm);
}

#[test]
#[should_panic = "of another segment"]
fn planted_a_reader_that_looks_before_its_copy_is_there() {
    accepted_reader(confirm, observe);
}

#[test]
#[should_panic = "of another segment"]
fn planted_a_lessee_that_writes_before_its_look() {
    accepted_reader(observe, confirm);
}

/// How many entries the consume queues have, and up to where: two words that are replaced.
#[derive(Default)]
struct Count {
    at: AtomicU64,
    entries: AtomicU64,
}

fn counted_entries(publish: Publish) {
    const NOWHERE: u64 = u64::MAX;
    run(
        Count::default,
        [
            Box::new(move |count| {
                for position in [10, 20] {
                    publish(&count.at, NOWHERE);
                    publish(&count.entries, position * 2);
                    publish(&count.at, position);
                }
            }),
            Box::new(|count| {
                let position = observe(&count.at);
                if position != NOWHERE {
                    let entries = observe(&count.entries);
                    if confirm(&count.at) == position {
                        assert_eq!(entries, position * 2, "of another position");
                    }
                }
            }),
        ],
    );
}

#[test]
fn a_count_is_that_of_its_position() {
    counted_entries(publish);
}

#[test]
#[should_panic = "of another position"]
fn planted_a_count_that_is_stored_in_any_order() {
    counted_entries(relaxed_store);
}

/// A stage that goes to sleep, and a producer that sends once. A send is far shorter than the
/// millisecond that the stage waits for. So it is over when the millisecond ends, or it begins when
/// the millisecond has begun: the two exclude each other.
#[derive(Default)]
struct Sleeper {
    wrote: AtomicU64,
    sleep: AtomicU64,
    millisecond: Mutex<()>,
    rung: Bytes,
}

fn sleeper(looks_again: bool) {
    loom::model(move || {
        let state = Arc::new(Sleeper::default());
        let producer = state.clone();
        let producer = thread::spawn(move || {
            let state = producer;
            let _send = state.millisecond.lock().unwrap();
            publish(&state.wrote, 1);
            state.rung.put(observe(&state.sleep));
        });
        publish(&state.sleep, 1);
        let mut is_seen = observe(&state.wrote) == 1;
        if looks_again && !is_seen {
            drop(state.millisecond.lock().unwrap());
            is_seen = observe(&state.wrote) == 1;
        }
        producer.join().unwrap();
        assert!(is_seen || state.rung.get() == 1, "nobody wakes the stage");
    });
}

#[test]
fn no_wakeup_is_lost() {
    sleeper(true);
}

#[test]
#[should_panic = "nobody wakes the stage"]
fn planted_a_sleeper_that_looks_once() {
    sleeper(false);
}

/// A reader that sleeps until a stage wakes it: a futex on the stage's counter of its actions. The
/// kernel compares the counter and lets the reader sleep in one step.
#[derive(Default)]
struct WokenReader {
    committed: AtomicU64,
    actions: AtomicU64,
    kernel: Mutex<Futex>,
}

#[derive(Default)]
struct Futex {
    sleeps: bool,
    is_woken: bool,
}

fn woken_reader(publish: Publish) {
    loom::model(move || {
        let state = Arc::new(WokenReader::default());
        let stage = state.clone();
        let stage = thread::spawn(move || {
            publish(&stage.committed, 1);
            publish(&stage.actions, 1);
            let mut futex = stage.kernel.lock().unwrap();
            futex.is_woken = futex.sleeps;
        });
        let seen = observe(&state.actions);
        if observe(&state.committed) == 0 {
            let mut futex = state.kernel.lock().unwrap();
            futex.sleeps = observe(&state.actions) == seen;
        }
        stage.join().unwrap();
        let futex = state.kernel.lock().unwrap();
        assert!(!futex.sleeps || futex.is_woken, "nobody wakes the reader");
    });
}

#[test]
fn a_reader_that_sleeps_is_woken() {
    woken_reader(publish);
}

#[test]
#[should_panic = "nobody wakes the reader"]
fn planted_a_counter_that_is_seen_before_the_position() {
    woken_reader(relaxed_store);
}
