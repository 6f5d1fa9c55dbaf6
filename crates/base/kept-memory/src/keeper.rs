//! What a server asks of the process that outlives it.

use crate::KeptMemory;
use lacuna_contracts::{Error, Result};
use std::fs::File;

/// Holds the memory of a server beyond its death.
pub trait MemoryKeeper: Send + Sync {
    /// The memory that the last server left. It is returned once.
    fn take_left(&self) -> Option<File>;

    /// Holds this memory from now on, in place of any other. When this returns, the death of the
    /// server leaves the memory to its successor.
    fn hold(&self, memory: &KeptMemory) -> Result<()>;

    /// Tells the user that this server keeps nothing beyond its death, and why.
    fn cannot_hold(&self, why: &Error);

    /// Lets go of the memory: all writes in it are durable. No server is started for them then.
    fn release(&self) -> Result<()>;
}
