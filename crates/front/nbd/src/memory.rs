//! Limits on the memory of requests: of one connection, of all connections to a level, and of the
//! whole server.
//!
//! Deniability contract: each level has memory of its own, by its number, whether or not it is
//! open. Requests of one level that take long, such as hidden writes that wait for cover, never
//! delay requests of another level or make them fail.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The largest buffer that is kept between requests.
pub(crate) const MOST_KEPT: usize = 4 << 20;
/// Bytes kept for the requests of level 0: enough for 32 requests of 1 MiB in flight.
const KEPT_BY_PUBLIC: usize = 32 << 20;
/// Bytes kept for the requests of each further level.
const KEPT_BY_HIDDEN: usize = 8 << 20;
/// Maximum number of levels of a disk.
const LEVELS: usize = 8;
/// Memory of level 0 for large requests, as a multiple of the share of each further level. With a
/// server's default memory, a share is as large as the longest request.
const PUBLIC_SHARES: usize = 3;
/// How long a request of level 0 waits for memory that requests of other connections hold. This is
/// longer than well-behaved clients delay each other, and short enough for the client to get the
/// error before it gives up.
const PATIENCE: Duration = Duration::from_secs(5);

/// A server's memory for requests, by level.
pub(crate) struct ServerMemory([Arc<LevelMemory>; LEVELS]);

impl ServerMemory {
    /// `large` bytes for those requests of level 0 that have no kept buffer, and a third of that
    /// for each further level.
    pub(crate) fn new(large: usize) -> Self {
        ServerMemory(std::array::from_fn(|level| match level {
            0 => Arc::new(LevelMemory::new(large, Some(PATIENCE), KEPT_BY_PUBLIC)),
            _ => Arc::new(LevelMemory::new(large / PUBLIC_SHARES, None, KEPT_BY_HIDDEN)),
        }))
    }

    /// The memory of a level. Levels beyond the last share its memory.
    pub(crate) fn of(&self, level: usize) -> &Arc<LevelMemory> {
        &self.0[level.min(LEVELS - 1)]
    }
}

/// The memory that the requests of all connections to a level share.
pub(crate) struct LevelMemory {
    large: MemoryPool,
    /// How long a request waits for memory that requests of other connections hold; `None` for a
    /// hidden level: its requests take as long as cover does, and then end.
    wait_limit: Option<Duration>,
    max_kept: usize,
    kept: AtomicUsize,
}

impl LevelMemory {
    fn new(large: usize, patience: Option<Duration>, keepable: usize) -> Self {
        LevelMemory {
            large: MemoryPool::new(large),
            wait_limit: patience,
            max_kept: keepable,
            kept: AtomicUsize::new(0),
        }
    }

    /// Total bytes for large requests.
    pub(crate) fn large(&self) -> usize {
        self.large.size
    }

    /// Takes a part of the memory for large requests; `None` if it is not available.
    pub(crate) fn share(&self, bytes: usize) -> Option<PoolShare<'_>> {
        self.large.share(bytes, self.wait_limit)
    }

    /// A right to keep memory, initially for zero bytes.
    pub(crate) fn keep_quota(self: &Arc<Self>) -> KeepQuota {
        KeepQuota { from: self.clone(), bytes: 0 }
    }
}

/// The right to keep memory between requests, so that requests of the usual large sizes cost no
/// allocation.
pub(crate) struct KeepQuota {
    from: Arc<LevelMemory>,
    bytes: usize,
}

impl KeepQuota {
    /// Number of bytes that may be kept.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether `bytes` may be kept; asks the level for more if necessary.
    pub(crate) fn try_grow_to(&mut self, bytes: usize) -> bool {
        if bytes <= self.bytes {
            return true;
        }
        let more = bytes - self.bytes;
        let grow = |kept: usize| kept.checked_add(more).filter(|sum| *sum <= self.from.max_kept);
        let granted = bytes <= MOST_KEPT
            && self.from.kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow).is_ok();
        if granted {
            self.bytes = bytes;
        }
        granted
    }
}

impl Drop for KeepQuota {
    fn drop(&mut self) {
        self.from.kept.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A number of bytes that may be in use at a time.
pub(crate) struct MemoryPool {
    size: usize,
    free: Mutex<usize>,
    freed: Condvar,
}

impl MemoryPool {
    pub(crate) fn new(size: usize) -> Self {
        MemoryPool { size, free: Mutex::new(size), freed: Condvar::new() }
    }

    /// Waits for `bytes`, for at most `patience` if given. `None`: not available.
    pub(crate) fn share(&self, bytes: usize, patience: Option<Duration>) -> Option<PoolShare<'_>> {
        if bytes > self.size {
            return None;
        }
        let until = patience.map(|patience| Instant::now() + patience);
        let mut free = self.free.lock();
        while *free < bytes {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            match left {
                Some(Duration::ZERO) => return None,
                Some(left) => _ = self.freed.wait_for(&mut free, left),
                None => self.freed.wait(&mut free),
            }
        }
        *free -= bytes;
        Some(PoolShare { from: self, bytes })
    }
}

/// A part of a [`MemoryPool`], given back on drop.
pub(crate) struct PoolShare<'a> {
    from: &'a MemoryPool,
    bytes: usize,
}

impl Drop for PoolShare<'_> {
    fn drop(&mut self) {
        *self.from.free.lock() += self.bytes;
        self.from.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::MAX_REQUEST;

    #[test]
    fn a_pool_never_exceeds_its_size() {
        let pool = MemoryPool::new(10);
        let at_once = Some(Duration::ZERO);
        let held = pool.share(7, at_once).unwrap();
        assert!(pool.share(4, at_once).is_none());
        assert!(pool.share(11, None).is_none());
        let rest = pool.share(3, at_once).unwrap();
        drop(held);
        assert!(pool.share(7, at_once).is_some());
        drop(rest);
        assert!(pool.share(10, at_once).is_some());
    }

    #[test]
    fn levels_do_not_share_memory() {
        let server = ServerMemory::new(192 << 20);
        let held: Vec<_> =
            (1..LEVELS).map(|level| server.of(level).share(MAX_REQUEST as usize).unwrap()).collect();
        assert!(server.of(1).large.share(1, Some(Duration::ZERO)).is_none());
        assert!(server.of(0).share(192 << 20).is_some());
        let sum = |of: fn(&LevelMemory) -> usize| server.0.iter().map(|level| of(level)).sum::<usize>();
        // These numbers are stated in docs/threat-model.md.
        assert_eq!((sum(|level| level.large.size), sum(|level| level.max_kept)), (640 << 20, 88 << 20));
        drop(held);
    }

    #[test]
    fn kept_memory_stays_within_the_level() {
        let server = Arc::new(LevelMemory::new(0, None, 64 << 20));
        let mut all: Vec<_> = (0..64).map(|_| server.keep_quota()).collect();
        assert!(all.iter_mut().all(|kept| kept.try_grow_to(1 << 20) && kept.try_grow_to(1 << 20)));
        let mut late = server.keep_quota();
        assert!(!late.try_grow_to(1) && !late.try_grow_to(1 << 20) && !all[0].try_grow_to(2 << 20));
        all.truncate(63);
        assert!(late.try_grow_to(1 << 20) && !late.try_grow_to((1 << 20) + 1) && late.bytes() == 1 << 20);
        drop((all, late));
        assert!(!server.keep_quota().try_grow_to(MOST_KEPT + 1));
        assert_eq!(server.kept.load(Ordering::Relaxed), 0);
    }
}
