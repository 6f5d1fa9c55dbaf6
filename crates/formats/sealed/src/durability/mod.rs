//! How acknowledged writes become durable, and how they leave the journal.

pub(crate) mod batch_builder;
pub(crate) mod commit;
pub(crate) mod destage;
pub(crate) mod flush;
pub(crate) mod signals;
pub(crate) mod worker;
