//! The places of requests on a disk, and the places where sequential writes go on from job to job.

use crate::serving::job::{Direction, IoJob};
use lacuna_sim::Rng;
use std::sync::atomic::{AtomicU64, Ordering};

/// The places of a job's requests; the same for all servers with the same seed and start.
pub(crate) struct RequestOffsets {
    rng: Rng,
    /// Offset in bytes of the next sequential request; at the end of the disk it begins anew.
    next: u64,
}

impl RequestOffsets {
    /// The places of a seed; sequential requests begin at the start of the disk.
    pub(crate) fn new(seed: u64) -> RequestOffsets {
        RequestOffsets { rng: Rng::new(seed), next: 0 }
    }

    /// The next place on a disk of `disk` bytes: an offset in bytes, a multiple of the size of the
    /// job's requests.
    pub(crate) fn next(&mut self, job: IoJob, disk: u64) -> u64 {
        let size = u64::from(job.size);
        let places = (disk / size).max(1);
        if job.random {
            return self.rng.below(places) * size;
        }
        let offset = self.next / size % places * size;
        self.next = offset + size;
        offset
    }
}

/// The place where the sequential writes to an export go on: the end of the last job with such
/// writes. If each job began at the start of the disk, a log would get the same first part again
/// and again, and would have to carry the rest.
#[derive(Debug, Default)]
pub(crate) struct WritePosition(AtomicU64);

impl WritePosition {
    /// The places of a job with this seed. Sequential reads begin at the start of the disk.
    pub(crate) fn offsets(&self, job: IoJob, seed: u64) -> RequestOffsets {
        let next = match job.direction {
            Direction::Read => 0,
            Direction::Write => self.0.load(Ordering::Relaxed),
        };
        RequestOffsets { rng: Rng::new(seed), next }
    }

    /// Moves to the end of a job that used these places.
    pub(crate) fn move_to_end(&self, job: IoJob, offsets: &RequestOffsets) {
        if job.direction == Direction::Write {
            self.0.store(offsets.next, Ordering::Relaxed);
        }
    }
}

/// The positions on one disk.
#[derive(Debug, Default)]
pub(crate) struct WritePositions {
    /// On the export of the jobs.
    pub job: WritePosition,
    /// On the export with the cover for them.
    pub cover: WritePosition,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const DISK: u64 = 8 * MIB;

    /// The places of `count` requests of a job, in MiB.
    fn places(position: &WritePosition, job: IoJob, count: usize) -> Vec<u64> {
        let mut offsets = position.offsets(job, 7);
        let places = (0..count).map(|_| offsets.next(job, DISK) / MIB).collect();
        position.move_to_end(job, &offsets);
        places
    }

    #[test]
    fn sequential_writes_go_on_after_those_of_the_last_job_and_begin_anew_at_the_end() {
        let position = WritePosition::default();
        let (one, two) =
            (IoJob::of_size(Direction::Write, 1 << 20), IoJob::of_size(Direction::Write, 2 << 20));
        assert_eq!(places(&position, one, 3), [0, 1, 2]);
        assert_eq!(places(&position, one, 6), [3, 4, 5, 6, 7, 0]);
        // A place is a multiple of the size of the requests.
        assert_eq!(places(&position, two, 4), [0, 2, 4, 6]);
        assert_eq!(places(&position, two, 1), [0]);
        assert_eq!(places(&position, one, 8), [2, 3, 4, 5, 6, 7, 0, 1]);
        // Two passes and one request.
        assert_eq!(places(&position, one, 17)[..2], [2, 3]);
        assert_eq!(places(&position, one, 1), [3]);
    }

    #[test]
    fn sequential_reads_begin_at_the_start_and_random_requests_depend_on_the_seed_alone() {
        let position = WritePosition::default();
        let write = IoJob::of_size(Direction::Write, 1 << 20);
        let read = IoJob { direction: Direction::Read, ..write };
        let random = IoJob { random: true, ..write };
        let at_start = places(&position, random, 20);
        assert_eq!(places(&position, write, 3), [0, 1, 2]);
        assert_eq!(places(&position, read, 10), [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]);
        assert_eq!(places(&position, random, 20), at_start);
        assert!(at_start.iter().all(|place| *place < 8));
        assert_eq!(places(&position, write, 2), [3, 4]);
    }
}
