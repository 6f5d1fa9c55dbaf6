//! Pools of request buffers. A buffer is reused while requests come; it is dropped after a short
//! idle time, and at once when a disk is purged. Buffers wipe themselves on drop.
//!
//! So plaintext leaves the memory of a server within a second after the last request, and no
//! request pays for the wiping. Each buffer ages separately: background work, such as the periodic
//! writes of a disk with levels, uses few buffers of a pool and does not keep the other ones alive.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

/// Interval of the passes over all pools. A buffer is dropped by the second pass that finds it
/// idle: two intervals must be shorter than the second that docs/threat-model.md promises.
const SWEEP_INTERVAL: Duration = Duration::from_millis(450);

/// A pool of buffers that wipe themselves on drop.
pub struct IdlePool<B>(Arc<Mutex<IdleBuffers<B>>>);

struct IdleBuffers<B> {
    /// Each buffer with the number of passes before it was given back; the oldest first.
    buffers: Vec<(u64, B)>,
    /// Passes so far.
    sweeps: u64,
}

impl<B> Default for IdlePool<B> {
    /// An empty pool that keeps all buffers until [`IdlePool::register_for_sweep`] is called.
    fn default() -> Self {
        IdlePool(Arc::new(Mutex::new(IdleBuffers { buffers: vec![], sweeps: 0 })))
    }
}

impl<B> IdlePool<B> {
    /// Takes the buffer that was given back last among the buffers that fit.
    pub fn take(&self, fits: impl Fn(&B) -> bool) -> Option<B> {
        let mut shelf = self.0.lock();
        let at = shelf.buffers.iter().rposition(|(_, buffer)| fits(buffer))?;
        Some(shelf.buffers.remove(at).1)
    }

    /// Gives a buffer back. The pool drops it if it has `most` buffers already.
    pub fn give(&self, buffer: B, most: usize) {
        let mut shelf = self.0.lock();
        if shelf.buffers.len() < most {
            let looks = shelf.sweeps;
            shelf.buffers.push((looks, buffer));
            drop(shelf);
            wake_sweeper();
        }
    }

    /// Number of idle buffers.
    pub fn len(&self) -> usize {
        self.0.lock().buffers.len()
    }

    /// Whether the pool has no idle buffer.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<B: Send + 'static> IdlePool<B> {
    /// After this call each buffer is dropped once it was idle for half a second to a second, and
    /// [`empty_idle_pools`] drops all.
    pub fn register_for_sweep(&self) {
        let pool: Arc<dyn SweptPool> = self.0.clone();
        let mut pools = POOLS.lock();
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(&pool));
    }
}

/// A pool with any type of buffer.
trait SweptPool: Send + Sync {
    /// Drops the buffers that the previous pass found here too, and says whether any are left.
    fn sweep(&self) -> bool;
    /// Drops all buffers.
    fn empty(&self);
}

impl<B: Send> SweptPool for Mutex<IdleBuffers<B>> {
    fn sweep(&self) -> bool {
        let mut shelf = self.lock();
        shelf.sweeps += 1;
        let looks = shelf.sweeps;
        let idle = shelf.buffers.partition_point(|(given, _)| given + 1 < looks);
        let idle: Vec<(u64, B)> = shelf.buffers.drain(..idle).collect();
        let is_any_left = !shelf.buffers.is_empty();
        drop(shelf);
        // Wiped outside the lock.
        drop(idle);
        is_any_left
    }

    fn empty(&self) {
        // Wiped outside the lock.
        let buffers = std::mem::take(&mut self.lock().buffers);
        drop(buffers);
    }
}

static POOLS: Mutex<Vec<Weak<dyn SweptPool>>> = Mutex::new(vec![]);
/// Whether a buffer was given back, or was left in a pool, since the thread's last pass.
static HAS_IDLE_BUFFERS: AtomicBool = AtomicBool::new(false);
static SWEEPER_LOCK: Mutex<()> = Mutex::new(());
static SWEEPER_WAKEUP: Condvar = Condvar::new();

fn registered_pools() -> Vec<Arc<dyn SweptPool>> {
    POOLS.lock().iter().filter_map(Weak::upgrade).collect()
}

/// Empties every watched pool, for example at the end of a purge: deleted data must not stay in
/// memory.
pub fn empty_idle_pools() {
    registered_pools().iter().for_each(|pool| pool.empty());
}

/// Starts the thread if necessary and makes it do a pass after one interval.
fn wake_sweeper() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // If the system cannot start a thread, pools are emptied by purges and when their owners
        // are dropped.
        drop(std::thread::Builder::new().name("lacuna-wipe".into()).spawn(sweep_loop));
    });
    if !HAS_IDLE_BUFFERS.load(Ordering::Acquire) && !HAS_IDLE_BUFFERS.swap(true, Ordering::SeqCst) {
        // A sleeping thread has checked `HAS_IDLE_BUFFERS` under this lock.
        drop(SWEEPER_LOCK.lock());
        SWEEPER_WAKEUP.notify_one();
    }
}

fn sweep_loop() {
    loop {
        let mut asleep = SWEEPER_LOCK.lock();
        while !HAS_IDLE_BUFFERS.swap(false, Ordering::SeqCst) {
            SWEEPER_WAKEUP.wait(&mut asleep);
        }
        drop(asleep);
        std::thread::sleep(SWEEP_INTERVAL);
        let left = registered_pools().iter().filter(|pool| pool.sweep()).count();
        if left > 0 {
            HAS_IDLE_BUFFERS.store(true, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// Counts the buffers that are alive.
    struct Buffer(Arc<AtomicUsize>, usize);

    impl Drop for Buffer {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn unused_buffers_are_dropped() {
        let alive = Arc::new(AtomicUsize::new(0));
        let pool = IdlePool::default();
        let new = |len: usize| {
            alive.fetch_add(1, Ordering::SeqCst);
            Buffer(alive.clone(), len)
        };
        (0..5).for_each(|len| pool.give(new(len), 4));
        assert_eq!((pool.len(), alive.load(Ordering::SeqCst)), (4, 4));
        // The last buffer that fits.
        assert_eq!(pool.take(|buffer| buffer.1 <= 2).map(|buffer| buffer.1), Some(2));
        assert!(pool.take(|buffer| buffer.1 > 3).is_none());
        pool.register_for_sweep();
        pool.give(new(7), 4);
        while alive.load(Ordering::SeqCst) > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(pool.is_empty());
        // Again, after the thread has slept.
        pool.give(new(1), 4);
        while !pool.is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        pool.give(new(1), 4);
        empty_idle_pools();
        assert_eq!(alive.load(Ordering::SeqCst), 0);
        drop(pool);
    }

    /// Two passes keep the promise of docs/threat-model.md for idle memory, which the tests of
    /// servers do not measure.
    #[test]
    fn two_sweeps_take_less_than_a_second_and_drop_every_idle_buffer() {
        assert!(2 * SWEEP_INTERVAL < Duration::from_secs(1));
        let pool: IdlePool<&str> = IdlePool::default();
        let looks = || pool.0.sweep();
        ["used", "idle", "used"].iter().for_each(|buffer| pool.give(*buffer, 4));
        // Buffers that are used between any two passes stay, and do not keep an idle buffer alive.
        for look in 1..5 {
            assert!(looks());
            let used = [pool.take(|buffer| *buffer == "used"), pool.take(|buffer| *buffer == "used")];
            assert_eq!((used, pool.len()), ([Some("used"); 2], usize::from(look < 2)));
            used.into_iter().flatten().for_each(|buffer| pool.give(buffer, 4));
        }
        // The last use was before this pass.
        assert!(looks());
        assert!(!looks() && pool.is_empty());
    }
}
