//! Limits of pending data in memory, derived from the budget and the journal.

use crate::geometry::Params;
use crate::journal::{Journal, RETIRED_AREA};
use lacuna_contracts::{BLOCK_SIZE, Budget};

/// Bytes of the budget that a hole in the cache takes.
pub(crate) const HOLE_COST: u64 = 64;
/// The most copy-on-write segments at a time; each keeps up to 32 KiB of metadata in memory.
pub(crate) const MAX_COW_SEGMENTS: usize = 256;

/// The limits of pending data.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes only in memory at which writers wait.
    pub(crate) max_dirty: u64,
    /// Bytes only in memory at which the background thread commits.
    pub(crate) commit_at: u64,
    /// Bytes in the journal and not destaged at which the background thread destages them.
    pub(crate) destage_at: u64,
    /// Bytes in the journal and not destaged at which a commit destages them before it ends.
    pub(crate) max_to_destage: u64,
    /// Bytes of the journal in use at which a background thread makes a checkpoint.
    pub(crate) checkpoint_at: u64,
    /// Bytes of the journal in use at which a commit makes a checkpoint before it ends.
    pub(crate) max_used: u64,
    /// The most data blocks in one batch of newest versions, which takes one sync.
    pub(crate) commit_blocks: usize,
    /// The same for other batches, and for all in the full-medium state.
    pub(crate) batch_blocks: usize,
    /// The number of copy-on-write segments at which the whole ones are committed.
    pub(crate) cow_segments: usize,
}

impl Limits {
    /// The limits for these parameters and this budget for all caches. `background`: whether a
    /// background thread commits.
    pub(crate) fn of(params: &Params, budget: Budget, background: bool) -> Limits {
        let usable = params.journal_len - Journal::reserve_of(params.journal_len);
        let dirty = (budget.get() / 8).min(usable / 4).max(64 * BLOCK_SIZE as u64);
        let to_destage = (budget.get() / 8).min(params.journal_len / 4);
        let room = params.journal_len - RETIRED_AREA - Journal::reserve_of(params.journal_len);
        // If the checkpoint finds a full medium, the journal takes the writes of its own commit,
        // and the same amount of writes that are acknowledged meanwhile.
        let max_used = if background { (room * 3 / 4).min(room.saturating_sub(2 * dirty)) } else { room / 2 };
        let journal_blocks = params.journal_len as usize / BLOCK_SIZE;
        let batch_blocks = (journal_blocks / 16).clamp(64, 512);
        // A thread commits half of what may be dirty, with one sync, while writers fill the other
        // half.
        let commit_blocks = if background { (journal_blocks / 8).clamp(64, 1024) } else { batch_blocks };
        Limits {
            max_dirty: dirty,
            commit_at: if background { dirty / 2 } else { dirty / 4 },
            destage_at: to_destage,
            max_to_destage: if background { 2 * to_destage } else { to_destage },
            checkpoint_at: if background { max_used * 2 / 3 } else { max_used },
            max_used,
            commit_blocks,
            batch_blocks,
            cow_segments: params.spare as usize / 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_crypto::Cipher;

    #[test]
    fn a_journal_in_use_has_room_for_twice_what_may_be_dirty() {
        let plan = Params::plan(Cipher::Gcm, 1 << 20, None).unwrap();
        for journal_len in [8 << 20, 20 << 20, 128 << 20] {
            for budget in [1 << 20, 64 << 20, 1 << 30] {
                let limits = Limits::of(&Params { journal_len, ..plan }, Budget::bytes(budget), true);
                let room = journal_len - RETIRED_AREA - Journal::reserve_of(journal_len);
                assert!(limits.max_used + 2 * limits.max_dirty <= room, "{journal_len}, {budget}");
                assert!((1..limits.max_used).contains(&limits.checkpoint_at), "{journal_len}, {budget}");
            }
        }
    }
}
