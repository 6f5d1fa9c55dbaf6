//! Memory that requests used, kept for the next ones for as long as they come: a pool that nothing used for a moment is emptied, and
//! every pool is when a disk is purged. What it holds wipes itself when it is dropped.
//!
//! Plaintext so leaves the memory of a server within a second after the last request, and no request pays for it.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

/// How far apart two looks at all pools are: one that was not used between them is emptied.
const LOOK: Duration = Duration::from_millis(450);

/// A pool of buffers, which wipe themselves on drop.
pub struct IdlePool<B>(Arc<Pool<B>>);

struct Pool<B> {
    buffers: Mutex<Vec<B>>,
    /// Since the last look.
    used: AtomicBool,
}

impl<B> Default for IdlePool<B> {
    /// An empty one that keeps what it is given until it is watched.
    fn default() -> Self {
        IdlePool(Arc::new(Pool { buffers: Mutex::default(), used: AtomicBool::new(false) }))
    }
}

impl<B> IdlePool<B> {
    /// The buffer that was given last of those that fit.
    pub fn take(&self, fits: impl Fn(&B) -> bool) -> Option<B> {
        let mut buffers = self.0.buffers.lock();
        buffers.iter().rposition(fits).map(|at| buffers.swap_remove(at))
    }

    /// Keeps a buffer, unless the pool has `most` already.
    pub fn give(&self, buffer: B, most: usize) {
        let mut buffers = self.0.buffers.lock();
        if buffers.len() < most {
            buffers.push(buffer);
            drop(buffers);
            self.0.used.store(true, Ordering::Relaxed);
            wake();
        }
    }

    /// How many buffers are here.
    pub fn len(&self) -> usize {
        self.0.buffers.lock().len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<B: Send + 'static> IdlePool<B> {
    /// From now on it is emptied when nothing has used it for half a second to a second, and by [`empty_idle_pools`].
    pub fn watch(&self) {
        let pool: Arc<dyn Watched> = self.0.clone();
        let mut pools = POOLS.lock();
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(&pool));
    }
}

/// A pool of any kind.
trait Watched: Send + Sync {
    /// Whether nothing was given to it since the last look.
    fn is_idle(&self) -> bool;
    /// Drops what is in it.
    fn empty(&self);
    /// Whether anything is.
    fn has_any(&self) -> bool;
}

impl<B: Send> Watched for Pool<B> {
    fn is_idle(&self) -> bool {
        !self.used.swap(false, Ordering::Relaxed)
    }

    fn empty(&self) {
        // Not wiped under the lock.
        let buffers = std::mem::take(&mut *self.buffers.lock());
        drop(buffers);
    }

    fn has_any(&self) -> bool {
        !self.buffers.lock().is_empty()
    }
}

static POOLS: Mutex<Vec<Weak<dyn Watched>>> = Mutex::new(vec![]);
/// Something was given to a pool since the thread looked last.
static GIVEN: AtomicBool = AtomicBool::new(false);
static SLEEP: Mutex<()> = Mutex::new(());
static WAKE: Condvar = Condvar::new();

fn all() -> Vec<Arc<dyn Watched>> {
    POOLS.lock().iter().filter_map(Weak::upgrade).collect()
}

/// Empties every pool that is watched, as at the end of a purge: what was deleted must not be found in memory.
pub fn empty_idle_pools() {
    all().iter().for_each(|pool| pool.empty());
}

/// Sees to it that the thread looks at the pools after a while.
fn wake() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // Where the system has no thread to give, pools are emptied by purges, and when their owners end.
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
        for pool in all() {
            if pool.is_idle() {
                pool.empty();
            } else if pool.has_any() {
                GIVEN.store(true, Ordering::SeqCst);
            }
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
    fn buffers_are_kept_until_nothing_uses_the_pool() {
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
}
