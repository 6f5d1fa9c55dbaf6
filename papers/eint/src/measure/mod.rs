//! Measures the cost of the schemes with the metrics of EINT, section 2.

mod figures;
mod memory;
mod replay;
mod subject;
mod trace;

pub use figures::{CostFigures, measure_files};
pub use memory::CountingMemory;
pub use replay::{SyntheticContents, replay};
pub use subject::{CacheKind, MeasuredFile, MeasuredScheme};
pub use trace::{AccessKind, Trace, TraceRequest};
