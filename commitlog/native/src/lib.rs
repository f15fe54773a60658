//! The loops of commitlog that Python is too slow for. Each has a twin in Python, which is the
//! specification, and which runs where this is missing.

mod appender;
mod batch;
mod calls;
mod chunks;
mod crc;
mod failpoints;
mod follow;
mod forks;
mod layout;
mod memory;
mod memory_order;
mod message;
mod properties;
mod record;
mod scan;
mod tags;
mod watch;

use pyo3::prelude::*;

/// Changes whenever a signature here changes. `commitlog/native/__init__.py` refuses another one.
const ABI: u32 = 6;

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::appender::{Appender, Topic};
    #[pymodule_export]
    use super::batch::{encode_batch, measure};
    #[pymodule_export]
    use super::follow::follow;
    #[pymodule_export]
    use super::memory::{confirm, observe, publish};
    #[pymodule_export]
    use super::message::{message_class, messages};
    #[pymodule_export]
    use super::properties::keyed_properties;
    #[pymodule_export]
    use super::scan::{scan, tabulate, take};
    #[pymodule_export]
    use super::watch::{Watch, wake};

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::appender::make_names(module.py());
        if !super::forks::count_forks() {
            return Err(pyo3::exceptions::PyMemoryError::new_err(()));
        }
        module.add("ABI", super::ABI)?;
        module.add(
            "LAYOUT",
            super::layout::NUMBERS.into_iter().collect::<std::collections::HashMap<_, _>>(),
        )
    }
}
