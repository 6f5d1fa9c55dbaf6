//! Measures the cost of the schemes with the metrics of EINT, section 2.

mod figures;
mod memory;
mod replay;
mod subject;
mod trace;

pub use figures::{Figures, measure_files};
pub use memory::CountingMemory;
pub use replay::{Contents, replay};
pub use subject::{CacheKind, Driven, Subject};
pub use trace::{Access, Request, Trace};
