//! The memory for acknowledged writes of an engine, which a keeper holds.

use lacuna_contracts::Result;
use lacuna_kept_memory::{KeptMemory, MemoryKeeper, PoolLayout};

/// The memory that the last server left, or new memory that the keeper holds from now on. `owner`
/// identifies the disk with its parameters. `None`: the keeper can hold none, and tells the user.
///
/// Errors: [`lacuna_contracts::Kind::Changed`] if the memory that was left is of another disk.
pub(crate) fn held_memory(
    keeper: &dyn MemoryKeeper,
    owner: &[u8; 32],
    layout: &[PoolLayout],
) -> Result<Option<KeptMemory>> {
    if let Some(left) = keeper.take_left() {
        return KeptMemory::adopt(left, owner, layout).map(Some);
    }
    // A limit of file sizes counts for this memory too.
    match KeptMemory::shared(owner, layout).and_then(|memory| keeper.hold(&memory).map(|()| memory)) {
        Ok(memory) => Ok(Some(memory)),
        Err(e) => {
            keeper.cannot_hold(&e);
            Ok(None)
        }
    }
}
