//! A disk below a mounted file system, whose requests wait for cover as long as it takes.
//!
//! A hidden level without cover of its own refuses what no public write covered in time
//! ([`Kind::NoCover`]). A file system to which that happens becomes read-only and gives up what
//! programs wrote since their last sync. So such requests are tried again here until cover comes,
//! and the one who closes learns from [`CoverRetry::refused_since`] that it does not.

use lacuna_contracts::{BlockAddr, Disk, Error, Extent, Kind, Result, Status};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between a refusal and the next try. The disk itself waits longer, unless it was told not to wait
/// at all.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Where the cover for hidden levels comes from that have none of their own. Clones tell of the
/// same disk.
#[derive(Clone, Default)]
pub struct CoverSource(Arc<Source>);

#[derive(Default)]
struct Source {
    /// Level 0 was closed: there is no more cover.
    ended: AtomicBool,
    /// Hidden levels that are mounted.
    users: AtomicUsize,
}

/// What a level has to do with cover.
pub enum Cover {
    /// Nothing: there are no levels, or the disk writes cover by itself.
    Unneeded,
    /// It is level 0, and its writes are the cover.
    Gives(CoverSource),
    /// It is a hidden level that waits for the writes of level 0.
    Needs(CoverSource),
}

impl Cover {
    /// Whether a mounted level gets no cover any more if this one is closed.
    pub fn is_needed(&self) -> bool {
        matches!(self, Cover::Gives(source) if source.0.users.load(Ordering::Acquire) > 0)
    }

    fn may_come(&self) -> bool {
        matches!(self, Cover::Needs(source) if !source.0.ended.load(Ordering::Acquire))
    }
}

/// The disk.
pub struct CoverRetry {
    disk: Arc<dyn Disk>,
    cover: Cover,
    /// Whether what is refused is tried again.
    holding: AtomicBool,
    /// Whether it has nothing to do with cover any more.
    ended: AtomicBool,
    /// Requests that the disk has not answered yet.
    working: AtomicUsize,
    /// The last request that was refused, and when that try began.
    refused: Mutex<Option<(Instant, Error)>>,
}

impl CoverRetry {
    /// A disk that tries nothing again until it is told to [`hold`](Self::hold).
    pub fn new(disk: Arc<dyn Disk>, cover: Cover) -> Self {
        if let Cover::Needs(source) = &cover {
            source.0.users.fetch_add(1, Ordering::AcqRel);
        }
        CoverRetry {
            disk,
            cover,
            holding: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            working: AtomicUsize::new(0),
            refused: Mutex::default(),
        }
    }

    /// What the level has to do with cover.
    pub fn cover(&self) -> &Cover {
        &self.cover
    }

    /// Whether it is worth waiting for cover.
    pub fn is_patient(&self) -> bool {
        self.holding.load(Ordering::Acquire) && self.cover.may_come()
    }

    /// Whether requests are tried again from now on.
    pub fn hold(&self, holding: bool) {
        self.holding.store(holding, Ordering::Release);
    }

    /// The refusal of a try that began at `begun` or later, if there was one: cover was waited for
    /// that long in vain.
    pub fn refused_since(&self, begun: Instant) -> Option<Error> {
        let refused = self.refused.lock();
        refused.as_ref().filter(|(at, _)| *at >= begun).map(|(_, e)| e.clone())
    }

    /// Whether there is a request that the disk has not answered yet.
    pub(crate) fn is_working(&self) -> bool {
        self.working.load(Ordering::Acquire) > 0
    }

    /// Flushes and does not wait for cover longer than the disk does.
    pub fn flush_once(&self) -> Result<()> {
        self.disk.flush()
    }

    /// The disk was closed: it needs no cover any more, and gives none. Threads of a FUSE session
    /// that another mount namespace keeps may hold it for longer.
    pub fn end(&self) {
        if self.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        match &self.cover {
            Cover::Unneeded => {}
            Cover::Gives(source) => source.0.ended.store(true, Ordering::Release),
            Cover::Needs(source) => _ = source.0.users.fetch_sub(1, Ordering::AcqRel),
        }
    }

    /// What `ask` gives; meanwhile the disk is working.
    fn counted<T>(&self, ask: impl FnOnce() -> T) -> T {
        self.working.fetch_add(1, Ordering::AcqRel);
        let answer = ask();
        self.working.fetch_sub(1, Ordering::AcqRel);
        answer
    }

    fn retried(&self, ask: impl Fn(&dyn Disk) -> Result<()>) -> Result<()> {
        if !matches!(self.cover, Cover::Needs(_)) {
            return ask(&*self.disk);
        }
        loop {
            let begun = Instant::now();
            match ask(&*self.disk) {
                Err(e) if e.kind() == Kind::NoCover => {
                    let mut refused = self.refused.lock();
                    *refused = Some((begun, e.clone()));
                    drop(refused);
                    if !self.is_patient() {
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
        self.end();
    }
}

impl Disk for CoverRetry {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }

    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        self.counted(|| self.disk.read(first, buf))
    }

    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.counted(|| self.retried(|disk| disk.write(first, data)))
    }

    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        self.counted(|| self.retried(|disk| disk.discard(first, count)))
    }

    fn flush(&self) -> Result<()> {
        self.counted(|| self.retried(|disk| disk.flush()))
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

    fn read_only(&self) -> bool {
        self.disk.read_only()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    /// Gets no cover so many times.
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

    fn uncovered(times: u32, cover: Cover) -> CoverRetry {
        CoverRetry::new(Arc::new(Uncovered(AtomicU32::new(times))), cover)
    }

    #[test]
    fn cover_is_waited_for_as_long_as_there_can_be_any() {
        let source = CoverSource::default();
        let public = uncovered(0, Cover::Gives(source.clone()));
        assert!(!public.cover().is_needed());
        let disk = uncovered(3, Cover::Needs(source.clone()));
        let begun = Instant::now();
        assert!(public.cover().is_needed() && disk.refused_since(begun).is_none());
        assert_eq!(disk.flush().unwrap_err().kind(), Kind::NoCover);
        assert!(disk.refused_since(begun).is_some() && disk.refused_since(Instant::now()).is_none());
        disk.hold(true);
        disk.write(BlockAddr(0), &[0; 4096]).unwrap();
        // Nothing else is tried again, nor is the close, after which nobody can give cover.
        assert_eq!(disk.discard(BlockAddr(0), 1).unwrap_err().kind(), Kind::Io);
        drop(disk);
        assert!(!public.cover().is_needed());
        let closed = uncovered(1, Cover::Needs(source.clone()));
        closed.hold(true);
        assert_eq!(closed.close().unwrap_err().kind(), Kind::NoCover);
        let hopeless = uncovered(1, Cover::Needs(source));
        hopeless.hold(true);
        drop(public);
        assert_eq!(hopeless.flush().unwrap_err().kind(), Kind::NoCover);
    }
}
