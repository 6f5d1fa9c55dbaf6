//! The places of requests on a disk.

use crate::serving::job::IoJob;
use lacuna_sim::Rng;

/// The places of a job's requests; the same for all servers with the same seed.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::job::Direction;

    #[test]
    fn sequential_requests_begin_anew_at_the_end_and_random_ones_depend_on_the_seed() {
        let write = IoJob::of_size(Direction::Write, 1 << 20);
        let random = IoJob { random: true, ..write };
        let places = |job: IoJob, seed: u64| -> Vec<u64> {
            let mut offsets = RequestOffsets::new(seed);
            (0..20).map(|_| offsets.next(job, 8 << 20) >> 20).collect()
        };
        assert_eq!(places(write, 1)[..10], [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]);
        assert!(places(random, 1).iter().all(|place| *place < 8));
        assert_eq!(places(random, 1), places(random, 1));
        assert_ne!(places(random, 1), places(random, 2));
    }
}
