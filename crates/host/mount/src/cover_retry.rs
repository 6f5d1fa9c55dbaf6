//! A disk below a mounted file system that retries requests until there is cover.
//!
//! A hidden level without cover of its own fails a write that no public write covers in time
//! ([`Kind::NoCover`]). A file system that gets this error becomes read-only and drops data that
//! programs wrote since their last sync. So this disk retries such requests until cover comes, and
//! a close learns from [`CoverRetry::refused_since`] that cover does not come.

use lacuna_contracts::{BlockAddr, Disk, Error, Extent, Kind, Result, Status};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time between a refusal and the next try. The disk itself waits longer, unless it was
/// configured not to wait at all.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The source of cover for hidden levels that write none of their own. Clones share the state of
/// one disk.
#[derive(Clone, Default)]
pub struct CoverSource(Arc<CoverSourceState>);

#[derive(Default)]
struct CoverSourceState {
    /// Level 0 was closed: there is no more cover.
    ended: AtomicBool,
    /// The number of mounted hidden levels.
    users: AtomicUsize,
}

/// The relation of a level to cover.
pub enum CoverRole {
    /// None: the disk has no levels, or writes cover by itself.
    Unneeded,
    /// Level 0: its writes are the cover.
    Gives(CoverSource),
    /// A hidden level that waits for writes of level 0.
    Needs(CoverSource),
}

impl CoverRole {
    /// Whether a mounted level loses its cover if this level is closed.
    pub fn is_needed(&self) -> bool {
        matches!(self, CoverRole::Gives(source) if source.0.users.load(Ordering::Acquire) > 0)
    }

    fn can_still_come(&self) -> bool {
        matches!(self, CoverRole::Needs(source) if !source.0.ended.load(Ordering::Acquire))
    }
}

/// A [`Disk`] that retries requests refused for want of cover.
pub struct CoverRetry {
    disk: Arc<dyn Disk>,
    cover: CoverRole,
    /// Whether refused requests are retried.
    is_retrying: AtomicBool,
    /// Whether the disk was closed, so that it neither needs nor gives cover.
    is_closed: AtomicBool,
    /// Requests in flight on the disk.
    in_flight: AtomicUsize,
    /// The last refused request, and the start of that try.
    refused: Mutex<Option<(Instant, Error)>>,
}

impl CoverRetry {
    /// Wraps a disk. It retries nothing until [`set_retrying`](Self::set_retrying) is called.
    pub fn new(disk: Arc<dyn Disk>, cover: CoverRole) -> Self {
        if let CoverRole::Needs(source) = &cover {
            source.0.users.fetch_add(1, Ordering::AcqRel);
        }
        CoverRetry {
            disk,
            cover,
            is_retrying: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            refused: Mutex::default(),
        }
    }

    /// The relation of the level to cover.
    pub fn cover(&self) -> &CoverRole {
        &self.cover
    }

    /// Whether refused requests are retried: this is enabled, and cover can still come.
    pub fn is_retrying(&self) -> bool {
        self.is_retrying.load(Ordering::Acquire) && self.cover.can_still_come()
    }

    /// Enables or disables retries.
    pub fn set_retrying(&self, holding: bool) {
        self.is_retrying.store(holding, Ordering::Release);
    }

    /// The refusal of a try that began at `begun` or later, if there was one: since then the disk
    /// waited for cover in vain.
    pub fn refused_since(&self, begun: Instant) -> Option<Error> {
        let refused = self.refused.lock();
        refused.as_ref().filter(|(at, _)| *at >= begun).map(|(_, e)| e.clone())
    }

    /// Whether a request is in flight on the disk.
    pub(crate) fn has_requests_in_flight(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) > 0
    }

    /// Flushes without a retry: waits for cover no longer than the disk itself does.
    pub fn flush_once(&self) -> Result<()> {
        self.disk.flush()
    }

    /// Records that the disk was closed: it neither needs nor gives cover any more. Threads of a
    /// FUSE session that another mount namespace keeps may hold this value for longer.
    pub fn mark_closed(&self) {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        match &self.cover {
            CoverRole::Unneeded => {}
            CoverRole::Gives(source) => source.0.ended.store(true, Ordering::Release),
            CoverRole::Needs(source) => _ = source.0.users.fetch_sub(1, Ordering::AcqRel),
        }
    }

    /// Runs `ask` and counts it as in flight.
    fn count_in_flight<T>(&self, ask: impl FnOnce() -> T) -> T {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        let answer = ask();
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        answer
    }

    fn retry_without_cover(&self, ask: impl Fn(&dyn Disk) -> Result<()>) -> Result<()> {
        if !matches!(self.cover, CoverRole::Needs(_)) {
            return ask(&*self.disk);
        }
        loop {
            let begun = Instant::now();
            match ask(&*self.disk) {
                Err(e) if e.kind() == Kind::NoCover => {
                    let mut refused = self.refused.lock();
                    *refused = Some((begun, e.clone()));
                    drop(refused);
                    if !self.is_retrying() {
                        return Err(e);
                    }
                    sleep(RETRY_PAUSE);
                }
                other => return other,
            }
        }
    }
}

impl Drop for CoverRetry {
    fn drop(&mut self) {
        self.mark_closed();
    }
}

impl Disk for CoverRetry {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }

    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        self.count_in_flight(|| self.disk.read(first, buf))
    }

    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.count_in_flight(|| self.retry_without_cover(|disk| disk.write(first, data)))
    }

    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        self.count_in_flight(|| self.retry_without_cover(|disk| disk.discard(first, count)))
    }

    fn flush(&self) -> Result<()> {
        self.count_in_flight(|| self.retry_without_cover(|disk| disk.flush()))
    }

    fn purge(&self) -> Result<Status> {
        self.disk.purge()
    }

    fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        self.disk.extents(first, count)
    }

    fn status(&self) -> Status {
        self.disk.status()
    }

    fn close(&self) -> Result<()> {
        self.disk.close()
    }

    fn is_read_only(&self) -> bool {
        self.disk.is_read_only()
    }
}

#[cfg(test)]
pub(crate) use tests::uncovered;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    /// Refuses this many requests for want of cover.
    struct Uncovered(AtomicU32);

    impl Disk for Uncovered {
        fn blocks(&self) -> u64 {
            1
        }

        fn read(&self, _: BlockAddr, _: &mut [u8]) -> Result<()> {
            Ok(())
        }

        fn write(&self, _: BlockAddr, _: &[u8]) -> Result<()> {
            self.flush()
        }

        fn discard(&self, _: BlockAddr, _: u64) -> Result<()> {
            Err(Error::new(Kind::Io, "no discard"))
        }

        fn flush(&self) -> Result<()> {
            let left = self.0.load(Ordering::SeqCst);
            if left == 0 {
                return Ok(());
            }
            self.0.store(left - 1, Ordering::SeqCst);
            Err(Error::new(Kind::NoCover, "no cover"))
        }

        fn extents(&self, _: BlockAddr, _: u64) -> Result<Vec<Extent>> {
            Ok(Vec::new())
        }

        fn status(&self) -> Status {
            Status::default()
        }

        fn close(&self) -> Result<()> {
            self.flush()
        }
    }

    /// Wraps a disk that refuses this many requests for want of cover.
    pub(crate) fn uncovered(times: u32, cover: CoverRole) -> CoverRetry {
        CoverRetry::new(Arc::new(Uncovered(AtomicU32::new(times))), cover)
    }

    #[test]
    fn requests_are_retried_while_cover_can_come() {
        let source = CoverSource::default();
        let public = uncovered(0, CoverRole::Gives(source.clone()));
        assert!(!public.cover().is_needed());
        let disk = uncovered(3, CoverRole::Needs(source.clone()));
        let begun = Instant::now();
        assert!(public.cover().is_needed() && disk.refused_since(begun).is_none());
        assert_eq!(disk.flush().unwrap_err().kind(), Kind::NoCover);
        assert!(disk.refused_since(begun).is_some() && disk.refused_since(Instant::now()).is_none());
        disk.set_retrying(true);
        disk.write(BlockAddr(0), &[0; 4096]).unwrap();
        // Other errors are not retried. Neither is the close, after which no level can give cover.
        assert_eq!(disk.discard(BlockAddr(0), 1).unwrap_err().kind(), Kind::Io);
        drop(disk);
        assert!(!public.cover().is_needed());
        let closed = uncovered(1, CoverRole::Needs(source.clone()));
        closed.set_retrying(true);
        assert_eq!(closed.close().unwrap_err().kind(), Kind::NoCover);
        let hopeless = uncovered(1, CoverRole::Needs(source));
        hopeless.set_retrying(true);
        drop(public);
        assert_eq!(hopeless.flush().unwrap_err().kind(), Kind::NoCover);
    }
}
