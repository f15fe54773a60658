//! Many records of one topic, made in the write buffer: `encode_batch` of commitlog/record/batch.py.
//!
//! The interpreter's lock is kept: a batch of a thousand takes less time than its hand-over.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::appender::Topic;
use crate::calls::answered;
use crate::layout::Fields;
use crate::memory::{Bytes, Numbers, Room, Source};

/// Bodies as the caller has them: one buffer, with where each ends, or a list of bytes.
enum Bodies<'py> {
    List(Bound<'py, PyList>),
    Spans(Source, Numbers),
}

impl<'py> Bodies<'py> {
    fn of(bodies: &Bound<'py, PyAny>, bounds: Option<&Bound<'py, PyAny>>) -> PyResult<Self> {
        Ok(match bounds {
            None => Bodies::List(bodies.cast::<PyList>()?.clone()),
            Some(bounds) => Bodies::Spans(Source::of(bodies)?, Numbers::of(bounds, false)?),
        })
    }

    fn count(&self) -> usize {
        match self {
            Bodies::List(list) => list.len(),
            Bodies::Spans(_, bounds) => bounds.len().saturating_sub(1),
        }
    }

    /// Gives the size of a body and what copies it to a place of that size.
    #[inline]
    fn with<T>(
        &self,
        index: usize,
        take: impl FnOnce(usize, &dyn Fn(&mut [u8]) -> Option<()>) -> PyResult<T>,
    ) -> PyResult<T> {
        match self {
            Bodies::List(list) => {
                let item = list.get_item(index)?;
                let body = item.cast::<PyBytes>()?.as_bytes();
                take(body.len(), &|place| {
                    place.copy_from_slice(body);
                    Some(())
                })
            }
            Bodies::Spans(data, bounds) => {
                let bound = |index| bounds.get(index).and_then(|at| usize::try_from(at).ok());
                let (start, end) = bound(index).zip(bound(index + 1)).ok_or_else(outside)?;
                let size = end.checked_sub(start).ok_or_else(outside)?;
                take(size, &|place| data.copy(start, place).then_some(()))
            }
        }
    }
}

fn outside() -> PyErr {
    PyValueError::new_err("a body of the batch is not within its buffer")
}

/// The property string of every record, or those of each.
enum Properties<'py> {
    Same(Bound<'py, PyBytes>),
    Each(Bound<'py, PyList>),
}

/// Bytes of all bodies, of the largest and of the smallest one; None if one is not exactly bytes.
#[pyfunction]
pub fn measure<'py>(bodies: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyAny>> {
    answered(bodies.py(), || Ok(sizes_of(bodies)))
}

fn sizes_of(bodies: &Bound<'_, PyList>) -> Option<(usize, usize, usize)> {
    let (mut total, mut largest, mut smallest) = (0usize, 0, usize::MAX);
    for body in bodies.iter() {
        let size = body.cast_exact::<PyBytes>().ok()?.as_bytes().len();
        total = total.checked_add(size)?;
        largest = largest.max(size);
        smallest = smallest.min(size);
    }
    Some((total, largest, smallest.min(largest)))
}

/// Makes one record for each body at the start of `out`, and puts their physical offsets into
/// `places`. Returns the bytes of all records.
///
/// `bounds` has one number more than there are bodies: body i is [bounds[i], bounds[i + 1]) of the
/// buffer `bodies`. Without it `bodies` is a list of bytes.
#[pyfunction]
#[pyo3(signature = (
    topic, bodies, bounds, properties, first_queue_offset, physical_offset, born_timestamp,
    store_timestamp, out, places
))]
#[allow(clippy::too_many_arguments)]
pub fn encode_batch<'py>(
    topic: &Bound<'py, Topic>,
    bodies: &Bound<'py, PyAny>,
    bounds: Option<&Bound<'py, PyAny>>,
    properties: &Bound<'py, PyAny>,
    first_queue_offset: i64,
    physical_offset: i64,
    born_timestamp: i64,
    store_timestamp: i64,
    out: &Bound<'py, PyAny>,
    places: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let fields = Fields {
        queue_offset: first_queue_offset,
        physical_offset,
        born_timestamp,
        store_timestamp,
    };
    answered(topic.py(), || {
        encode_all(topic, Bodies::of(bodies, bounds)?, properties, fields, out, places)
    })
}

fn encode_all(
    topic: &Bound<'_, Topic>,
    bodies: Bodies<'_>,
    properties: &Bound<'_, PyAny>,
    mut fields: Fields,
    out: &Bound<'_, PyAny>,
    places: &Bound<'_, PyAny>,
) -> PyResult<usize> {
    let template = &topic.get().template;
    let properties = match properties.cast::<PyBytes>() {
        Ok(same) => Properties::Same(same.clone()),
        Err(_) => Properties::Each(properties.cast::<PyList>()?.clone()),
    };
    let (mut room, mut places) = (Room::of(out)?, Numbers::of(places, true)?);
    let mut at = 0;
    for index in 0..bodies.count() {
        let own = match &properties {
            Properties::Same(same) => same.clone(),
            Properties::Each(list) => list.get_item(index)?.cast_into::<PyBytes>()?,
        };
        let own = own.as_bytes();
        let size = bodies.with(index, |body_size, put_body| {
            let size = template.size(body_size, own.len()).ok_or_else(too_small)?;
            let place = room.slice(at, size).ok_or_else(too_small)?;
            let put_properties = |place: &mut [u8]| {
                place.copy_from_slice(own);
                Some(())
            };
            template
                .encode(place, body_size, put_body, own.len(), put_properties, fields)
                .ok_or_else(outside)?;
            Ok(size)
        })?;
        if !places.set(index, fields.physical_offset) {
            return Err(PyTypeError::new_err("there are fewer places than bodies"));
        }
        at += size;
        fields.physical_offset += size as i64;
        fields.queue_offset += 1;
    }
    Ok(at)
}

fn too_small() -> PyErr {
    PyValueError::new_err("the batch does not fit into its memory")
}
