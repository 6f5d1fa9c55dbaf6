//! Opening a store: superblock, replay of the journal, and the judgement by the anchor.

pub(crate) mod assembly;
pub(crate) mod recovered;
pub(crate) mod recovery;
pub(crate) mod replay;
pub(crate) mod rollback;
pub(crate) mod session;
pub(crate) mod superblock;
