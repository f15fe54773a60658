//! What `Producer.send` does for nearly every message. Anything unusual goes to its twin in Python,
//! `Producer._send`, which is also the specification.
//!
//! RocketMQ's DefaultAppendMessageCallback, with the lease of a lane in place of a lock. The
//! interpreter's lock is held throughout, so no other thread comes in between, and no signal
//! handler: a handler of Python's runs when the call has returned. While the appender is borrowed
//! nothing is called that may run code of Python's. An allocation may collect garbage, and a
//! finalizer may send; so the receipt is allocated before.

use std::ffi::c_void;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFrozenSet, PyInt, PyString, PyTuple, PyType,
};

use crate::calls::{call_method, make};
use crate::failpoints::reached;
use crate::forks::forks;
use crate::layout::{Fields, Template};
use crate::memory::{Room, Word, Words};
use crate::properties::Properties;

const RECEIPT_VALUES: ffi::Py_ssize_t = 5;

/// What a producer keeps of a topic that it has sent to: base of `_Topic` of producer.py.
#[pyclass(frozen, subclass)]
pub struct Topic {
    pub template: Template,
    next_offset: AtomicI64,
}

#[pymethods]
impl Topic {
    #[new]
    fn new(head: &[u8], topic_part: &[u8], has_crc: bool, next_offset: i64) -> PyResult<Topic> {
        let template = Template::new(head, topic_part, has_crc)
            .ok_or_else(|| PyValueError::new_err("these bytes are not the head of a record"))?;
        Ok(Topic { template, next_offset: AtomicI64::new(next_offset) })
    }

    #[getter(next_offset)]
    fn offset_to_come<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        number_or_error(py, self.next_offset())
    }

    #[setter]
    pub fn set_next_offset(&self, value: i64) {
        self.next_offset.store(value, Ordering::Relaxed);
    }
}

impl Topic {
    pub fn next_offset(&self) -> i64 {
        self.next_offset.load(Ordering::Relaxed)
    }
}

/// What stays the same as long as a producer has its lane.
struct Lane {
    words: Words,
    wrote: Word,
    messages: Word,
    sleep: Word,
    progress: Py<PyAny>,
    receipt: Py<PyType>,
    allocate: ffi::allocfunc,
    reserved: Py<PyFrozenSet>,
}

/// A write buffer, the log offset of its first byte, and where a record may end at most.
struct Place {
    room: Room,
    start: i64,
    limit: i64,
}

/// The state of `Producer.send`: base of `Producer`, which gives it the memory to write to.
#[pyclass(subclass)]
pub struct Appender {
    lane: Option<Lane>,
    place: Option<Place>,
    #[pyo3(get, set, name = "_topics")]
    topics: Option<Py<PyDict>>,
    /// True: free. False: free, and the state is to be read anew. None: a call has it.
    #[pyo3(get, set, name = "_token")]
    token: Option<bool>,
    #[pyo3(set, name = "_wrote")]
    wrote: i64,
    /// Whether the core has written behind the place at which Python's writer is.
    #[pyo3(get, set, name = "_is_ahead")]
    is_ahead: bool,
    #[pyo3(set, name = "_messages")]
    messages: u64,
    #[pyo3(set, name = "_seen")]
    seen: i64,
    #[pyo3(set, name = "_timestamp")]
    timestamp: i64,
    #[pyo3(set, name = "_next_tick")]
    next_tick: i64,
    #[pyo3(get, set, name = "_sync")]
    sync: bool,
    #[pyo3(set)]
    message_bytes_max: i64,
    /// How many forks there were above this process when the appender was made.
    forks: u32,
}

#[pymethods]
impl Appender {
    #[new]
    #[pyo3(signature = (*_arguments, **_keywords))]
    fn new(_arguments: &Bound<'_, PyTuple>, _keywords: Option<&Bound<'_, PyDict>>) -> Appender {
        Appender {
            lane: None,
            place: None,
            topics: None,
            token: Some(false),
            wrote: 0,
            is_ahead: false,
            messages: 0,
            seen: -1,
            timestamp: 0,
            next_tick: 0,
            sync: false,
            message_bytes_max: 0,
            forks: forks(),
        }
    }

    /// Tells where the lane's words are (indexes into the control region), and what receipts are.
    #[allow(clippy::too_many_arguments)]
    fn _take_lane(
        &mut self,
        words: &Bound<'_, PyAny>,
        wrote: usize,
        messages: usize,
        sleep: usize,
        progress: Py<PyAny>,
        receipt: Bound<'_, PyType>,
        reserved: Bound<'_, PyFrozenSet>,
    ) -> PyResult<()> {
        let words = Words::of(words, true)?;
        let (wrote, messages, sleep) =
            (words.word(wrote)?, words.word(messages)?, words.word(sleep)?);
        let (allocate, reserved) = (allocator_of(&receipt)?, reserved.unbind());
        let receipt = receipt.unbind();
        self.lane =
            Some(Lane { words, wrote, messages, sleep, progress, receipt, allocate, reserved });
        Ok(())
    }

    /// From now on records go to `buffer`, whose first byte has the log offset `start`, and end at
    /// `limit` at most. None: Python writes them, wherever that is.
    fn _write_to(
        &mut self,
        buffer: Option<&Bound<'_, PyAny>>,
        start: i64,
        limit: i64,
    ) -> PyResult<()> {
        self.place = None;
        if let Some(buffer) = buffer {
            self.place = Some(Place { room: Room::of(buffer)?, start, limit });
        }
        Ok(())
    }

    #[doc = include_str!("send.txt")]
    #[pyo3(
        signature = (
            topic, value, key=None, headers=None, tags=None,
            wait=Usual(None), flag=Usual(None), born_timestamp=None
        ),
        text_signature = "($self, topic, value, key=None, headers=None, tags=None, wait=True, \
                          flag=0, born_timestamp=None)"
    )]
    #[allow(clippy::too_many_arguments)]
    fn send<'py>(
        slf: &Bound<'py, Self>,
        topic: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        key: Option<&Bound<'py, PyAny>>,
        headers: Option<&Bound<'py, PyAny>>,
        tags: Option<&Bound<'py, PyAny>>,
        wait: Usual<'py>,
        flag: Usual<'py>,
        born_timestamp: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let waits = match &wait.0 {
            None => Some(true),
            Some(given) => given.cast_exact::<PyBool>().ok().map(|given| given.is_true()),
        };
        if let (Some(waits), None, None) = (waits, &flag.0, born_timestamp) {
            let sent = Appender::send_usual(slf, topic, value, key, headers, tags, waits);
            if let Some((receipt, to_tell)) = sent {
                if let Some(end) = to_tell {
                    Appender::answer(slf, end)?;
                }
                return Ok(receipt);
            }
        }
        let py = slf.py();
        let wait = wait.0.unwrap_or_else(|| PyBool::new(py, true).to_owned().into_any());
        let flag = flag.0.unwrap_or_else(|| PyInt::new(py, 0).into_any());
        let none = py.None().into_bound(py);
        let (key, headers, tags) =
            (key.unwrap_or(&none), headers.unwrap_or(&none), tags.unwrap_or(&none));
        let born_timestamp = born_timestamp.unwrap_or(&none);
        let arguments = [topic, value, key, headers, tags, &wait, &flag, born_timestamp];
        call_method(slf, send_name(py), arguments)
    }

    #[getter(_wrote)]
    fn wrote<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        number_or_error(py, self.wrote)
    }

    #[getter(_messages)]
    fn messages<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        number_or_error(py, self.messages as i64)
    }

    #[getter(_seen)]
    fn seen<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        number_or_error(py, self.seen)
    }

    #[getter(_timestamp)]
    fn timestamp<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        number_or_error(py, self.timestamp)
    }

    #[getter(_next_tick)]
    fn next_tick<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        number_or_error(py, self.next_tick)
    }

    #[getter]
    fn message_bytes_max<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        number_or_error(py, self.message_bytes_max)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Some(topics) = &self.topics {
            visit.call(topics)?;
        }
        if let Some(lane) = &self.lane {
            visit.call(&lane.progress)?;
            visit.call(&lane.receipt)?;
        }
        Ok(())
    }

    fn __clear__(&mut self) {
        self.topics = None;
        self.lane = None;
    }
}

/// Makes the names of Python's methods, when the module is loaded.
///
/// A thread that makes one waits for the interpreter while it holds that name's lock. A child that is
/// forked just then would wait for the lock for ever.
pub fn make_names(py: Python<'_>) {
    answer_name(py);
    send_name(py);
}

fn answer_name(py: Python<'_>) -> &Bound<'_, PyString> {
    intern!(py, "_answer_changed_word")
}

fn send_name(py: Python<'_>) -> &Bound<'_, PyString> {
    intern!(py, "_send")
}

/// An argument that is nearly never given. Python's `None` is a value that was given.
struct Usual<'py>(Option<Bound<'py, PyAny>>);

impl<'a, 'py> FromPyObject<'a, 'py> for Usual<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Usual(Some(object.to_owned())))
    }
}

impl Appender {
    /// Tells Python that the word has changed which `send` looks at.
    ///
    /// The message is in the log, so a lack of memory is no error: the next call tells it again.
    fn answer(slf: &Bound<'_, Self>, end: i64) -> PyResult<()> {
        let py = slf.py();
        let told = match number(py, end) {
            Some(end) => call_method(slf, answer_name(py), [&end]).map(drop),
            None => Err(PyMemoryError::new_err(())),
        };
        match told {
            Err(error) if error.is_instance_of::<PyMemoryError>(py) => {
                slf.try_borrow_mut()?.seen = -1;
                Ok(())
            }
            told => told,
        }
    }

    /// The receipt, and the record's end if somebody is to be told of it. None: nothing was done,
    /// and Python is to do it.
    #[inline]
    fn send_usual<'py>(
        slf: &Bound<'py, Self>,
        topic: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        key: Option<&Bound<'py, PyAny>>,
        headers: Option<&Bound<'py, PyAny>>,
        tags: Option<&Bound<'py, PyAny>>,
        wait: bool,
    ) -> Option<(Bound<'py, PyAny>, Option<i64>)> {
        let py = slf.py();
        {
            let this = slf.try_borrow().ok()?;
            if this.token != Some(true) || this.sync || this.place.is_none() {
                return None; // at once: it may be so for every message
            }
            if this.forks != forks() {
                return None; // this is a child, and Python has not left the lane to the parent yet
            }
        }
        let name = topic.cast_exact::<PyString>().ok()?;
        let value = match value.cast_exact::<PyBytes>() {
            Ok(bytes) => bytes.clone(),
            // a copy, as Python's own: nobody may change a record while its CRC is computed
            Err(_) => copy_of(value.cast_exact::<PyByteArray>().ok()?)?,
        };
        // both first, because they may collect garbage: the second where it makes an error
        let (receipt, reserved) = Appender::empty_receipt(slf)?;
        let properties = Properties::of(key, tags, headers, wait, &reserved)?;
        let mut this = slf.try_borrow_mut().ok()?;
        let this = &mut *this;
        if this.token != Some(true) {
            return None; // garbage that was collected has sent
        }
        let lane = this.lane.as_ref()?;
        let topic = this.topics.as_ref()?.bind(py).get_item(name).ok()??;
        let topic = topic.cast::<Topic>().ok()?.get();
        let size = topic.template.size(value.as_bytes().len(), properties.size)?;
        let place = this.place.as_mut()?;
        let start = this.wrote;
        let end = start.checked_add(i64::try_from(size).ok()?)?;
        if end > place.limit || end - start > this.message_bytes_max {
            return None;
        }
        let out = place.room.slice(usize::try_from(start.checked_sub(place.start)?).ok()?, size)?;
        let now = store_timestamp(this.timestamp);
        let offset = topic.next_offset();
        let fields = Fields {
            queue_offset: offset,
            physical_offset: start,
            born_timestamp: now,
            store_timestamp: now,
        };
        let value = value.as_bytes();
        let put_value = |place: &mut [u8]| {
            place.copy_from_slice(value);
            Some(())
        };
        let put_properties = |place: &mut [u8]| properties.put(place);
        let template = &topic.template;
        template.encode(out, value.len(), put_value, properties.size, put_properties, fields)?;
        let numbers = [number(py, offset)?, number(py, start)?, number(py, end)?];
        reached("encoded");
        lane.words.publish(lane.wrote, end as u64); // accepted
        reached("wrote");
        lane.words.publish(lane.messages, this.messages + 1);
        reached("messages");
        topic.set_next_offset(offset + 1);
        reached("next_offset");
        (this.wrote, this.messages, this.timestamp) = (end, this.messages + 1, now);
        this.is_ahead = true;
        // No fence between the stores and this load: a stage that goes to sleep stores `sleep`, and
        // looks once more a millisecond later, when these stores have long arrived.
        let to_tell = lane.words.observe(lane.sleep) as i64 != this.seen;
        fill(&receipt, lane.progress.clone_ref(py), name, numbers);
        Some((receipt, to_tell.then_some(end)))
    }

    /// A receipt whose values are not set yet, and the names that no header may have. Nobody sees
    /// the receipt before its values are set.
    #[inline]
    fn empty_receipt<'py>(
        slf: &Bound<'py, Self>,
    ) -> Option<(Bound<'py, PyAny>, Bound<'py, PyFrozenSet>)> {
        let py = slf.py();
        let (allocate, receipt, reserved) = {
            let this = slf.try_borrow().ok()?;
            let lane = this.lane.as_ref()?;
            (lane.allocate, lane.receipt.clone_ref(py), lane.reserved.bind(py).clone())
        };
        // SAFETY: the type is a subclass of tuple, whose tp_alloc makes one of any length, as
        // tuple's own tp_new does; its items are null until `fill` sets them
        let made = unsafe { make(receipt.bind(py), allocate, RECEIPT_VALUES) };
        if made.is_none() {
            PyErr::take(py); // no memory: Python says so
        }
        made.map(|receipt| (receipt, reserved))
    }
}

/// The same bytes as an object that nobody changes. None if there is no memory: Python says so.
fn copy_of<'py>(value: &Bound<'py, PyByteArray>) -> Option<Bound<'py, PyBytes>> {
    // SAFETY: it gives a reference that is ours, or null and an error
    let copy = unsafe {
        Bound::from_owned_ptr_or_err(value.py(), ffi::PyBytes_FromObject(value.as_ptr()))
    };
    copy.ok()?.cast_into().ok()
}

/// How objects of a subclass of tuple are made.
fn allocator_of(receipt: &Bound<'_, PyType>) -> PyResult<ffi::allocfunc> {
    if !receipt.is_subclass_of::<PyTuple>()? {
        return Err(PyValueError::new_err("a receipt is a tuple"));
    }
    // SAFETY: tp_alloc of a type is null or an allocfunc, which an Option of one can hold
    unsafe {
        let slot = ffi::PyType_GetSlot(receipt.as_type_ptr(), ffi::Py_tp_alloc);
        std::mem::transmute::<*mut c_void, Option<ffi::allocfunc>>(slot)
    }
    .ok_or_else(|| PyValueError::new_err("a receipt's type makes no objects"))
}

#[inline]
fn fill(
    receipt: &Bound<'_, PyAny>,
    progress: Py<PyAny>,
    topic: &Bound<'_, PyString>,
    numbers: [Bound<'_, PyAny>; 3],
) {
    let [offset, start, end] = numbers;
    let values = [
        progress.into_ptr(),
        topic.clone().into_ptr(),
        offset.into_ptr(),
        start.into_ptr(),
        end.into_ptr(),
    ];
    for (place, value) in (0..).zip(values) {
        // SAFETY: a new tuple of five places that nobody else has; it takes the reference
        unsafe { ffi::PyTuple_SetItem(receipt.as_ptr(), place, value) };
    }
}

/// A number as an object, or Python's error if there is no memory: pyo3's own would panic.
fn number_or_error(py: Python<'_>, value: i64) -> PyResult<Bound<'_, PyAny>> {
    number(py, value).ok_or_else(|| PyMemoryError::new_err(()))
}

/// A number as an object. Numbers are no containers, so this collects no garbage.
#[inline]
fn number(py: Python<'_>, value: i64) -> Option<Bound<'_, PyAny>> {
    // SAFETY: a new reference, or null with an error set
    let made = unsafe { Bound::from_owned_ptr_or_opt(py, ffi::PyLong_FromLongLong(value)) };
    if made.is_none() {
        PyErr::take(py);
    }
    made
}

/// STORETIMESTAMP in ms: the clock's, or the lane's last one where the clock has gone back.
#[inline]
fn store_timestamp(last: i64) -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    last.max(i64::try_from(since.as_millis()).unwrap_or(last))
}
