//! Memory that requests used, kept for the next ones for as long as they come: a buffer that
//! nothing used for a moment is dropped, and all are when a disk is purged. What a pool holds wipes
//! itself when it is dropped.
//!
//! Plaintext so leaves the memory of a server within a second after the last request, and no
//! request pays for it. Each buffer counts for itself: what goes on in the background, such as the
//! beats of a disk with levels, uses few of a pool and keeps no other.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

/// How far apart two looks at all pools are. The second look that finds a buffer drops it: two of
/// them must take less than the second that docs/threat-model.md promises.
const LOOK: Duration = Duration::from_millis(450);

/// A pool of buffers, which wipe themselves on drop.
pub struct IdlePool<B>(Arc<Mutex<Shelf<B>>>);

struct Shelf<B> {
    /// Each with the number of looks before it was given: the one that lies here for longest first.
    buffers: Vec<(u64, B)>,
    /// Looks so far.
    looks: u64,
}

impl<B> Default for IdlePool<B> {
    /// An empty one that keeps what it is given until it is watched.
    fn default() -> Self {
        IdlePool(Arc::new(Mutex::new(Shelf { buffers: vec![], looks: 0 })))
    }
}

impl<B> IdlePool<B> {
    /// The buffer that was given last of those that fit.
    pub fn take(&self, fits: impl Fn(&B) -> bool) -> Option<B> {
        let mut shelf = self.0.lock();
        let at = shelf.buffers.iter().rposition(|(_, buffer)| fits(buffer))?;
        Some(shelf.buffers.remove(at).1)
    }

    /// Keeps a buffer, unless the pool has `most` already.
    pub fn give(&self, buffer: B, most: usize) {
        let mut shelf = self.0.lock();
        if shelf.buffers.len() < most {
            let looks = shelf.looks;
            shelf.buffers.push((looks, buffer));
            drop(shelf);
            wake();
        }
    }

    /// How many buffers are here.
    pub fn len(&self) -> usize {
        self.0.lock().buffers.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<B: Send + 'static> IdlePool<B> {
    /// From now on each buffer is dropped when nothing has used it for half a second to a second,
    /// and all are by [`empty_idle_pools`].
    pub fn watch(&self) {
        let pool: Arc<dyn Watched> = self.0.clone();
        let mut pools = POOLS.lock();
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(&pool));
    }
}

/// A pool of any kind.
trait Watched: Send + Sync {
    /// Drops the buffers that the look before this one found here, and says whether any other is
    /// left.
    fn look(&self) -> bool;
    /// Drops what is in it.
    fn empty(&self);
}

impl<B: Send> Watched for Mutex<Shelf<B>> {
    fn look(&self) -> bool {
        let mut shelf = self.lock();
        shelf.looks += 1;
        let looks = shelf.looks;
        let idle = shelf.buffers.partition_point(|(given, _)| given + 1 < looks);
        let idle: Vec<(u64, B)> = shelf.buffers.drain(..idle).collect();
        let is_any_left = !shelf.buffers.is_empty();
        drop(shelf);
        // Not wiped under the lock.
        drop(idle);
        is_any_left
    }

    fn empty(&self) {
        // Not wiped under the lock.
        let buffers = std::mem::take(&mut self.lock().buffers);
        drop(buffers);
    }
}

static POOLS: Mutex<Vec<Weak<dyn Watched>>> = Mutex::new(vec![]);
/// Something was given to a pool since the thread looked last, or was left there.
static GIVEN: AtomicBool = AtomicBool::new(false);
static SLEEP: Mutex<()> = Mutex::new(());
static WAKE: Condvar = Condvar::new();

fn all() -> Vec<Arc<dyn Watched>> {
    POOLS.lock().iter().filter_map(Weak::upgrade).collect()
}

/// Empties every pool that is watched, as at the end of a purge: what was deleted must not be found
/// in memory.
pub fn empty_idle_pools() {
    all().iter().for_each(|pool| pool.empty());
}

/// Sees to it that the thread looks at the pools after a while.
fn wake() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // Where the system has no thread to give, pools are emptied by purges, and when their
        // owners end.
        drop(std::thread::Builder::new().name("lacuna-wipe".into()).spawn(watch_pools));
    });
    if !GIVEN.load(Ordering::Acquire) && !GIVEN.swap(true, Ordering::SeqCst) {
        // A thread that sleeps has looked at `GIVEN` under this lock.
        drop(SLEEP.lock());
        WAKE.notify_one();
    }
}

fn watch_pools() {
    loop {
        let mut asleep = SLEEP.lock();
        while !GIVEN.swap(false, Ordering::SeqCst) {
            WAKE.wait(&mut asleep);
        }
        drop(asleep);
        std::thread::sleep(LOOK);
        let left = all().iter().filter(|pool| pool.look()).count();
        if left > 0 {
            GIVEN.store(true, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// Counts what is alive.
    struct Buffer(Arc<AtomicUsize>, usize);

    impl Drop for Buffer {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn buffers_are_kept_until_nothing_uses_them() {
        let alive = Arc::new(AtomicUsize::new(0));
        let pool = IdlePool::default();
        let new = |len: usize| {
            alive.fetch_add(1, Ordering::SeqCst);
            Buffer(alive.clone(), len)
        };
        (0..5).for_each(|len| pool.give(new(len), 4));
        assert_eq!((pool.len(), alive.load(Ordering::SeqCst)), (4, 4));
        // The last one that fits.
        assert_eq!(pool.take(|buffer| buffer.1 <= 2).map(|buffer| buffer.1), Some(2));
        assert!(pool.take(|buffer| buffer.1 > 3).is_none());
        pool.watch();
        pool.give(new(7), 4);
        while alive.load(Ordering::SeqCst) > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(pool.is_empty());
        // Once more, after the thread has slept.
        pool.give(new(1), 4);
        while !pool.is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        pool.give(new(1), 4);
        empty_idle_pools();
        assert_eq!(alive.load(Ordering::SeqCst), 0);
        drop(pool);
    }

    /// What docs/threat-model.md promises of idle memory, and what tests of servers do not measure.
    #[test]
    fn two_looks_take_less_than_a_second_and_no_buffer_outlasts_them() {
        assert!(2 * LOOK < Duration::from_secs(1));
        let pool: IdlePool<&str> = IdlePool::default();
        let looks = || pool.0.look();
        ["used", "idle", "used"].iter().for_each(|buffer| pool.give(*buffer, 4));
        // Those that something uses between any two looks serve for as long as it does, and keep no
        // other here.
        for look in 1..5 {
            assert!(looks());
            let used = [pool.take(|buffer| *buffer == "used"), pool.take(|buffer| *buffer == "used")];
            assert_eq!((used, pool.len()), ([Some("used"); 2], usize::from(look < 2)));
            used.into_iter().flatten().for_each(|buffer| pool.give(buffer, 4));
        }
        // The last use was before this look.
        assert!(looks());
        assert!(!looks() && pool.is_empty());
    }
}
