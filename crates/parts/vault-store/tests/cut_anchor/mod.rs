//! The anchor of one machine in a simulation.

use lacuna_contracts::Result;
use lacuna_medium::Folder;
use lacuna_sim::CrashFolder;
use lacuna_vault_store::{Anchor, AnchorState, MemoryAnchor};
use std::sync::Arc;

/// An anchor in memory that survives power cuts; a power cut of the folder may interrupt its
/// advance.
pub(crate) struct CutAnchor {
    pub(crate) memory: Arc<MemoryAnchor>,
    pub(crate) folder: CrashFolder,
}

impl Anchor for CutAnchor {
    fn load(&self) -> Result<Option<AnchorState>> {
        self.memory.load()
    }

    fn advance(&self, expected: Option<&AnchorState>, next: &AnchorState) -> Result<()> {
        // The advance counts as an operation of the folder, so that a cut may come before, during
        // and after it.
        match self.folder.sync_names("no such folder") {
            Ok(()) => self.memory.advance(expected, next),
            Err(e) => {
                if self.folder.ops().is_multiple_of(2) {
                    self.memory.advance(expected, next)?;
                }
                Err(e)
            }
        }
    }
}
