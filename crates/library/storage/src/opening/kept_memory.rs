//! The memory for acknowledged writes of a disk that a keeper holds beyond the death of this
//! process.

use lacuna_contracts::{Result, Secret};
use lacuna_crypto::{derive, keyed_hash};
use lacuna_kept_memory::{KeptMemory, MemoryKeeper, PoolLayout};

/// The owner of the memory of a disk: only a disk with this key, UUID and these parameters adopts
/// it. `label` is that of the format.
pub(crate) fn owner(label: &str, master: &Secret<32>, uuid: &[u8; 16], params: &[u8]) -> [u8; 32] {
    keyed_hash(&derive(master, label, uuid), &[params])
}

/// The memory of a disk: what the last server left, or new memory, which the keeper holds. `None`:
/// the keeper cannot hold any, and has told the user.
///
/// Errors: [`lacuna_contracts::Kind::Changed`] if the last server left the memory of another disk.
pub(crate) fn of_disk(
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
