//! A job: what a client asks a server for, how much of it, and what the caches hold before.

use std::fmt;

/// Whether a job reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    Read,
    Write,
}

impl Direction {
    /// The word for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Direction::Read => "read",
            Direction::Write => "write",
        }
    }
}

/// What the caches hold when a job begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Caches {
    /// The whole disk was read once through the server.
    Warm,
    /// The disk's file was in the page cache when the server started, which may have dropped it;
    /// nothing was asked of the server since.
    JustStarted,
    /// The page cache was emptied after the server had started; nothing was asked of the server.
    Cold,
}

/// One kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Job {
    /// Reads or writes.
    pub direction: Direction,
    /// Whether addresses are random.
    pub random: bool,
    /// Bytes per request.
    pub size: u32,
    /// Requests in flight.
    pub depth: u32,
    /// A flush after this number of writes, which waits for them.
    pub fsync: Option<u32>,
    /// The state of the caches.
    pub caches: Caches,
}

/// From this size on a job is counted in bytes, below in requests.
const LARGE: u32 = 256 << 10;

impl Job {
    /// A job on warm caches, without flushes in between: random requests below 256 KiB with a depth
    /// of 32, sequential ones with a depth of 8 from there.
    pub(crate) const fn of_size(direction: Direction, size: u32) -> Job {
        let random = size < LARGE;
        Job { direction, random, size, depth: if random { 32 } else { 8 }, fsync: None, caches: Caches::Warm }
    }

    /// Whether its figures are in bytes per second; otherwise they are in requests per second.
    pub(crate) fn in_bytes(&self) -> bool {
        self.size >= LARGE
    }

    /// For people: `random 4 KiB write, depth 32`.
    pub(crate) fn name(&self) -> String {
        let order = if self.random { "random" } else { "sequential" };
        let fsync = self.fsync.map(|n| format!(", fsync every {n}")).unwrap_or_default();
        let caches = match self.caches {
            Caches::Warm => "",
            Caches::JustStarted => ", just started",
            Caches::Cold => ", cold",
        };
        let (size, direction, depth) = (Size(self.size), self.direction.name(), self.depth);
        format!("{order} {size} {direction}, depth {depth}{fsync}{caches}")
    }

    /// Requests of one turn on a disk of `disk` bytes. The number is the same for all servers, so
    /// that work that a server puts off is the same part of every turn.
    pub(crate) fn requests(&self, disk: u64) -> u64 {
        let once = disk / u64::from(self.size);
        let most = match self.caches {
            // From then on nothing is new to the caches.
            Caches::JustStarted | Caches::Cold if self.in_bytes() => once,
            Caches::Cold => 2048,
            _ if self.in_bytes() => 2 * once,
            _ if self.fsync.is_some() => 2048,
            _ if self.depth == 1 => 6144,
            _ => 16_384,
        };
        most.min(2 * once).max(u64::from(self.depth))
    }
}

/// Bytes of a request, for people: `4 KiB`, `1 MiB`.
pub(crate) struct Size(pub u32);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 >= 1 << 20 { write!(f, "{} MiB", self.0 >> 20) } else { write!(f, "{} KiB", self.0 >> 10) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_a_name_for_people() {
        let job = Job::of_size(Direction::Write, 4096);
        assert_eq!(job.name(), "random 4 KiB write, depth 32");
        assert_eq!(Job { fsync: Some(32), ..job }.name(), "random 4 KiB write, depth 32, fsync every 32");
        let started = Job { caches: Caches::JustStarted, ..Job::of_size(Direction::Read, 1 << 20) };
        assert_eq!(started.name(), "sequential 1 MiB read, depth 8, just started");
    }

    #[test]
    fn large_requests_go_over_the_disk_twice_and_cold_ones_once() {
        let job = Job::of_size(Direction::Write, 1 << 20);
        assert_eq!(job.requests(512 << 20), 1024);
        assert_eq!(Job { caches: Caches::Cold, ..job }.requests(512 << 20), 512);
        assert_eq!(Job::of_size(Direction::Read, 4096).requests(512 << 20), 16_384);
        assert_eq!(Job::of_size(Direction::Read, 4096).requests(16 << 20), 8192);
    }
}
