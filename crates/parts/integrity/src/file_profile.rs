//! `FileProfile`: the profile of a file for the choice `auto`, from samples of its content and
//! counts of reads and writes, and the scheme that suits it.
//!
//! Table 7 of the paper weighs SHA-1 against an entropy test and a wide-block cipher at half the
//! speed of a hash. Here a tag comes with the encryption and an entry of the tree costs nothing
//! until a commit. So on the paper's axes (content; reads against writes) MT-EINT is the fastest to
//! write whatever the content, and RAND-EINT takes 1.5 times as long. COMP-EINT reads compressible
//! content a little faster than MT-EINT, since it reads no tree, and writes it up to four times as
//! slowly. So a file is under MT-EINT until it has been read often enough for a conversion to pay.

use crate::scheme::Scheme;
use crate::schemes::block_ciphers::{MOST_BLOCK_SIZE, SAVED};
use crate::schemes::compress::compress;
use crate::schemes::entropy::is_random_looking;
use lacuna_contracts::{LeReader, WipeOnDrop};
use std::sync::atomic::{AtomicU64, Ordering};

/// One in this number of written blocks is sampled: compressing a block takes as long as encrypting
/// eight.
const EVERY: u64 = 256;
/// The number of blocks before the first sample.
const FIRST: u64 = 16;
/// When there are this number of samples, all counts are halved.
const MAX_SAMPLES: u16 = 256;
/// The least number of samples for a conversion.
const MIN_SAMPLES: u16 = 4;
/// At most one in this number of blocks may be incompressible in a compressible file.
const INCOMPRESSIBLE_SHARE: u16 = 8;
/// The number of times that a file must have been read before converting it to COMP-EINT pays: each
/// reading saves 3%, and converting takes two passes over the file.
const MIN_READS_FOR_COMP: u64 = 64;
/// The number of times that a file must have been overwritten before converting it back pays.
const MIN_WRITES_FOR_MT: u64 = 4;

/// Samples of written blocks, and the numbers of blocks read and written.
#[derive(Debug)]
pub(crate) struct FileProfile {
    samples: u16,
    random: u16,
    incompressible: u16,
    /// Whether a conversion from MT-EINT was given up, because it would make too many counter
    /// intervals.
    given_up: bool,
    writes: u64,
    reads: AtomicU64,
    /// Blocks until the next sample.
    until: u64,
}

impl Default for FileProfile {
    fn default() -> Self {
        let (samples, random, incompressible, given_up) = (0, 0, 0, false);
        let (writes, reads) = (0, AtomicU64::new(0));
        FileProfile { samples, random, incompressible, given_up, writes, reads, until: FIRST }
    }
}

impl FileProfile {
    /// Bytes in TS.
    pub(crate) const LEN: usize = 8;

    /// The numbers of samples, of random-looking and of incompressible samples, and whether a
    /// conversion was given up (u16 each). Reads and writes are counted anew after each opening.
    pub(crate) fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let numbers = [self.samples, self.random, self.incompressible, self.given_up.into()];
        for (place, number) in bytes.chunks_exact_mut(2).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Parses the output of [`FileProfile::to_bytes`]. Any bytes are valid: they are only hints.
    pub(crate) fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let record = LeReader(&bytes);
        let samples = record.u16(0).min(MAX_SAMPLES);
        let [random, incompressible] = [2, 4].map(|at| record.u16(at).min(samples));
        let given_up = record.u16(6) != 0;
        FileProfile { samples, random, incompressible, given_up, until: EVERY, ..FileProfile::default() }
    }

    /// Counts and samples blocks that are written.
    pub(crate) fn note_written(&mut self, plain: &[u8], block_size: usize) {
        let count = (plain.len() / block_size) as u64;
        self.writes = self.writes.saturating_add(count);
        while self.until < count {
            self.sample(&plain[self.until as usize * block_size..][..block_size]);
            self.until += EVERY;
        }
        self.until -= count;
    }

    fn sample(&mut self, block: &[u8]) {
        if self.samples >= MAX_SAMPLES {
            self.samples /= 2;
            self.random /= 2;
            self.incompressible /= 2;
        }
        let mut packed = WipeOnDrop::new([0u8; MOST_BLOCK_SIZE]);
        let packed = &mut packed[..block.len() - size_of::<crate::keys::Tag>()];
        self.samples += 1;
        self.random += u16::from(is_random_looking(block));
        self.incompressible += u16::from(compress(block, packed, SAVED).is_none());
    }

    pub(crate) fn note_read(&self, blocks: u64) {
        self.reads.fetch_add(blocks, Ordering::Relaxed);
    }

    /// An estimate of the random-looking blocks among `blocks`, by the samples; `None` without
    /// samples.
    pub(crate) fn random_looking(&self, blocks: u64) -> Option<u64> {
        let (random, samples) = (u128::from(self.random), u128::from(self.samples));
        (u128::from(blocks) * random).checked_div(samples).map(|estimate| estimate as u64)
    }

    /// Notes that a conversion from MT-EINT was given up.
    pub(crate) fn give_up(&mut self) {
        self.given_up = true;
    }

    /// Permits a conversion again: the file is empty, or its user has changed the choice.
    pub(crate) fn permit_conversion(&mut self) {
        self.given_up = false;
    }

    pub(crate) fn has_given_up(&self) -> bool {
        self.given_up
    }

    /// A better scheme for a file of `blocks` blocks, if it would save more than the conversion
    /// costs.
    pub(crate) fn recommended_scheme(&self, now: Scheme, blocks: u64) -> Option<Scheme> {
        let reads = self.reads.load(Ordering::Relaxed);
        let compressible = self.incompressible <= self.samples / INCOMPRESSIBLE_SHARE;
        match now {
            Scheme::Mt => {
                let often = reads >= MIN_READS_FOR_COMP.saturating_mul(blocks).max(MIN_READS_FOR_COMP)
                    && reads / MIN_WRITES_FOR_MT >= self.writes;
                (self.samples >= MIN_SAMPLES && compressible && often).then_some(Scheme::Comp)
            }
            Scheme::None => Some(Scheme::Mt),
            Scheme::Rand | Scheme::Comp => {
                let written = self.writes >= MIN_WRITES_FOR_MT.saturating_mul(blocks).max(MIN_WRITES_FOR_MT)
                    && self.writes > reads;
                (written || !compressible).then_some(Scheme::Mt)
            }
        }
    }

    /// Restarts the counts of reads and writes after a change of scheme.
    pub(crate) fn reset_counts(&mut self) {
        self.writes = 0;
        *self.reads.get_mut() = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_sim::Rng;

    #[test]
    fn only_compressible_files_that_are_read_often_leave_mt_eint() {
        let text = vec![b'a'; 4096 * 1024];
        let random = Rng::new(1).bytes(4096 * 1024);
        for (content, expected) in [(&text, Some(Scheme::Comp)), (&random, None)] {
            let mut nature = FileProfile::default();
            nature.note_written(content, 4096);
            assert_eq!(nature.recommended_scheme(Scheme::Mt, 1024), None);
            nature.note_read(1024 * MIN_READS_FOR_COMP);
            assert_eq!(nature.recommended_scheme(Scheme::Mt, 1024), expected);
            let kept = FileProfile::from_bytes(nature.to_bytes());
            assert_eq!(kept.to_bytes(), nature.to_bytes());
            assert_eq!(kept.recommended_scheme(Scheme::Mt, 1024), None);
        }
    }

    #[test]
    fn overwritten_and_incompressible_files_return_to_mt_eint() {
        let mut nature = FileProfile::default();
        nature.note_written(&vec![b'a'; 4096 * 1024], 4096);
        nature.reset_counts();
        assert_eq!(nature.recommended_scheme(Scheme::Comp, 1024), None);
        (0..MIN_WRITES_FOR_MT).for_each(|_| nature.note_written(&vec![b'b'; 4096 * 1024], 4096));
        assert_eq!(nature.recommended_scheme(Scheme::Comp, 1024), Some(Scheme::Mt));
        let mut nature = FileProfile::default();
        nature.note_written(&Rng::new(1).bytes(4096 * 1024), 4096);
        assert_eq!(nature.recommended_scheme(Scheme::Comp, 1024), Some(Scheme::Mt));
        assert_eq!(nature.random_looking(1024), Some(1024));
        // The blocks before the first sample tell nothing.
        let mut nature = FileProfile::default();
        nature.note_written(&Rng::new(1).bytes(4096 * FIRST as usize), 4096);
        assert_eq!(nature.random_looking(FIRST), None);
    }
}
