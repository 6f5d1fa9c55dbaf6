//! Locks for ranges of blocks, so that a write of a part of a block excludes only requests nearby.
//!
//! Consecutive blocks form groups, and groups are mapped to a fixed number of locks. A thread takes
//! the locks of a range in ascending order and holds no other range locks meanwhile, so no deadlock
//! is possible.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Blocks of a group: 1 MiB.
const GROUP: u64 = 256;
const LOCKS: u64 = 64;

/// The locks of one disk.
pub(crate) struct RangeLocks([RwLock<()>; LOCKS as usize]);

impl Default for RangeLocks {
    fn default() -> Self {
        RangeLocks(std::array::from_fn(|_| RwLock::default()))
    }
}

impl RangeLocks {
    /// Locks a range, which is not empty, in shared mode.
    pub(crate) fn lock_shared(&self, first: u64, count: u64) -> Vec<RwLockReadGuard<'_, ()>> {
        let groups = first / GROUP..=(first + count - 1) / GROUP;
        let touched = |lock: &u64| {
            // All locks, or the locks of a run of groups that is shorter than one lap.
            let ahead = (lock + LOCKS - groups.start() % LOCKS) % LOCKS;
            ahead <= groups.end() - groups.start()
        };
        let held = (0..LOCKS).filter(touched).map(|lock| &self.0[lock as usize]);
        held.map(|lock| lock.read()).collect()
    }

    /// Locks a block, with all blocks of its lock, in exclusive mode.
    pub(crate) fn lock_exclusive(&self, block: u64) -> RwLockWriteGuard<'_, ()> {
        self.0[(block / GROUP % LOCKS) as usize].write()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_holds_the_locks_of_its_groups_and_no_others() {
        let locks = RangeLocks::default();
        for (first, count) in [
            (0, 1),
            (255, 1),
            (255, 2),
            (63 * 256, 512),
            (5 * 256, 64 * 256),
            (7, 1 << 30),
            (u64::MAX - 9, 9),
        ] {
            let held = locks.lock_shared(first, count);
            for lock in 0..LOCKS {
                let groups = first / GROUP..=(first + count - 1) / GROUP;
                let touched = groups.end() - groups.start() >= LOCKS - 1
                    || groups.into_iter().any(|group| group % LOCKS == lock);
                let taken = locks.0[lock as usize].try_write().is_none();
                assert_eq!(taken, touched, "lock {lock} of {count} blocks at {first}");
            }
            drop(held);
        }
        drop(locks.lock_exclusive(300));
        let _shared = locks.lock_shared(0, 256);
        drop(locks.lock_exclusive(256));
        assert!(locks.0[0].try_write().is_none());
    }
}
