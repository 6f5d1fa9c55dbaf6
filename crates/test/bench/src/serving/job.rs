//! A job: the requests of a client to a server, their number, and the state of the caches before.

use std::fmt;

/// Whether a job reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    Read,
    Write,
}

impl Direction {
    /// The name for display.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Direction::Read => "read",
            Direction::Write => "write",
        }
    }
}

/// The state of the caches when a job begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CacheState {
    /// The whole disk was read once through the server.
    Warm,
    /// The disk's file was in the page cache when the server started, which may have dropped it;
    /// the server has not received a request.
    JustStarted,
    /// The page cache was emptied after the start of the server, which has not received a request.
    Cold,
}

/// One kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IoJob {
    /// The direction of the requests.
    pub direction: Direction,
    /// Whether addresses are random.
    pub random: bool,
    /// Bytes per request.
    pub size: u32,
    /// Requests in flight.
    pub depth: u32,
    /// Number of writes before each flush, which waits for them.
    pub fsync: Option<u32>,
    /// The state of the caches.
    pub caches: CacheState,
}

/// Jobs with at least this request size are measured in bytes, the rest in requests.
const LARGE: u32 = 256 << 10;

impl IoJob {
    /// A job with warm caches and without flushes in between: random requests with depth 32 below
    /// 256 KiB, sequential ones with depth 8 otherwise.
    pub(crate) const fn of_size(direction: Direction, size: u32) -> IoJob {
        let random = size < LARGE;
        IoJob {
            direction,
            random,
            size,
            depth: if random { 32 } else { 8 },
            fsync: None,
            caches: CacheState::Warm,
        }
    }

    /// Whether its figures are bytes per second rather than requests per second.
    pub(crate) fn in_bytes(&self) -> bool {
        self.size >= LARGE
    }

    /// The name for display: `random 4 KiB write, depth 32`.
    pub(crate) fn name(&self) -> String {
        let order = if self.random { "random" } else { "sequential" };
        let fsync = self.fsync.map(|n| format!(", fsync every {n}")).unwrap_or_default();
        let caches = match self.caches {
            CacheState::Warm => "",
            CacheState::JustStarted => ", just started",
            CacheState::Cold => ", cold",
        };
        let (size, direction, depth) = (RequestSize(self.size), self.direction.name(), self.depth);
        format!("{order} {size} {direction}, depth {depth}{fsync}{caches}")
    }

    /// Requests of a turn on a disk of `disk` bytes. The number is the same for all servers, so
    /// that deferred work is an equal fraction of every turn.
    pub(crate) fn requests(&self, disk: u64) -> u64 {
        let once = disk / u64::from(self.size);
        let most = match self.caches {
            // After one pass the caches hold the data.
            CacheState::JustStarted | CacheState::Cold if self.in_bytes() => once,
            CacheState::Cold => 2048,
            _ if self.in_bytes() => 2 * once,
            _ if self.fsync.is_some() => 2048,
            _ if self.depth == 1 => 6144,
            _ => 16_384,
        };
        most.min(2 * once).max(u64::from(self.depth))
    }

    /// The number divided by `divisor`. Sequential writes still cover the whole disk: a turn that
    /// rewrote a part of a full log would leave it in another state than it found it.
    pub(crate) fn requests_of_turn(&self, disk: u64, divisor: u64) -> u64 {
        let is_sequential_write = !self.random && self.direction == Direction::Write;
        let least = if is_sequential_write { disk / u64::from(self.size) } else { u64::from(self.depth) };
        (self.requests(disk) / divisor).max(least)
    }
}

/// Bytes of a request, formatted for display: `4 KiB`, `1 MiB`.
pub(crate) struct RequestSize(pub u32);

impl fmt::Display for RequestSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 >= 1 << 20 { write!(f, "{} MiB", self.0 >> 20) } else { write!(f, "{} KiB", self.0 >> 10) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_a_name_for_people() {
        let job = IoJob::of_size(Direction::Write, 4096);
        assert_eq!(job.name(), "random 4 KiB write, depth 32");
        assert_eq!(IoJob { fsync: Some(32), ..job }.name(), "random 4 KiB write, depth 32, fsync every 32");
        let started = IoJob { caches: CacheState::JustStarted, ..IoJob::of_size(Direction::Read, 1 << 20) };
        assert_eq!(started.name(), "sequential 1 MiB read, depth 8, just started");
    }

    #[test]
    fn large_requests_go_over_the_disk_twice_and_cold_ones_once() {
        let job = IoJob::of_size(Direction::Write, 1 << 20);
        assert_eq!(job.requests(512 << 20), 1024);
        assert_eq!(IoJob { caches: CacheState::Cold, ..job }.requests(512 << 20), 512);
        assert_eq!(IoJob::of_size(Direction::Read, 4096).requests(512 << 20), 16_384);
        assert_eq!(IoJob::of_size(Direction::Read, 4096).requests(16 << 20), 8192);
    }

    #[test]
    fn sequential_writes_cover_the_disk_in_shorter_turns_too() {
        let job = IoJob::of_size(Direction::Write, 1 << 20);
        let requests = |job: IoJob| job.requests_of_turn(128 << 20, 4);
        assert_eq!((requests(job), job.requests_of_turn(128 << 20, 1)), (128, 256));
        assert_eq!(requests(IoJob { direction: Direction::Read, ..job }), 64);
        assert_eq!(requests(IoJob::of_size(Direction::Write, 4096)), 4096);
        assert_eq!(IoJob::of_size(Direction::Read, 1 << 20).requests_of_turn(16 << 20, 4), 8);
    }
}
