//! The one source of all randomness.
//!
//! The generator is AES-256-CTR. Every refill replaces the key by output of the generator, so the
//! memory of the process does not reveal earlier output.

use crate::ffi::AesBlock;
use crate::resumption::{ResumptionDetector, coarse_now};
use crate::vector_stream;
use lacuna_contracts::{Error, Kind, Result, Secret};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use zeroize::Zeroize;

/// Bytes of key stream made at once for small requests.
const BUFFER: usize = 1024;
/// Requests of at least this many bytes bypass the buffer.
const LARGE: usize = 512;
/// Bytes after which a refill mixes fresh entropy from the system into the key.
const RESEED_AFTER: u64 = 1 << 30;
/// Nanoseconds after which a refill does so. Two copies of a running machine diverge then, because
/// their kernels have different keys.
const RESEED_EVERY: i64 = 1_000_000_000;
/// Generators that share the load of many threads.
const SHARDS: usize = 8;

/// A source of uniformly random bytes, used by many threads at once.
pub trait RandomSource: Send + Sync {
    /// Fills `buf` with random bytes.
    fn fill(&self, buf: &mut [u8]);

    /// The number of times that this source found that the process may run as a copy, in a virtual
    /// machine that was resumed from a snapshot. Another copy may have drawn the earlier bytes too;
    /// bytes drawn after the number changed are new.
    fn resumptions(&self) -> u64 {
        0
    }
}

impl<T: RandomSource + ?Sized> RandomSource for Arc<T> {
    fn fill(&self, buf: &mut [u8]) {
        (**self).fill(buf);
    }

    fn resumptions(&self) -> u64 {
        (**self).resumptions()
    }
}

/// A fresh random key, generated in its final memory.
pub fn random_secret<const N: usize>(random: &dyn RandomSource) -> Secret<N> {
    in_place(|bytes| random.fill(bytes))
}

/// A secret written in place by a function that cannot fail.
pub(crate) fn in_place<const N: usize>(fill: impl FnOnce(&mut [u8; N])) -> Secret<N> {
    let filled = Secret::fill_with::<Infallible>(|bytes| {
        fill(bytes);
        Ok(())
    });
    match filled {
        Ok(secret) => secret,
        Err(never) => match never {},
    }
}

/// AES-256-CTR with key erasure: each key makes one run of key stream, and its first 32 bytes are
/// the next key.
struct Generator {
    schedule: AesBlock,
    buffer: Box<[u8; BUFFER]>,
    used: usize,
    since_reseed: u64,
    reseeded_at: i64,
    reseeds: bool,
}

impl Generator {
    fn new(key: &Secret<32>, reseeds: bool) -> Self {
        Generator {
            schedule: AesBlock::new(key),
            buffer: Box::new([0; BUFFER]),
            used: BUFFER,
            since_reseed: 0,
            reseeded_at: coarse_now(),
            reseeds,
        }
    }

    fn fill(&mut self, buf: &mut [u8]) {
        if buf.len() >= LARGE {
            // The refill below starts at counter 0; the top bit keeps the two runs of key stream
            // apart.
            let mut counter = [0u8; 16];
            counter[0] = 0x80;
            let (head, _) = counter.split_first_chunk::<12>().expect("a counter of 16 bytes");
            if !vector_stream::fill(&self.schedule, head, buf) {
                buf.fill(0);
                self.schedule.xor_stream(&counter, buf);
            }
            self.refill(buf.len());
            return;
        }
        let mut rest = buf;
        while !rest.is_empty() {
            if self.used == BUFFER {
                self.refill(0);
            }
            let part = rest.len().min(BUFFER - self.used);
            let (now, later) = std::mem::take(&mut rest).split_at_mut(part);
            let given = &mut self.buffer[self.used..self.used + part];
            now.copy_from_slice(given);
            given.zeroize();
            self.used += part;
            rest = later;
        }
    }

    /// Makes a new buffer of key stream, and mixes in fresh entropy if it is due.
    fn refill(&mut self, already_given: usize) {
        let due =
            self.since_reseed >= RESEED_AFTER || coarse_now().wrapping_sub(self.reseeded_at) >= RESEED_EVERY;
        if self.reseeds && due {
            self.reseed();
        }
        self.rekey(already_given, false);
    }

    /// Mixes fresh entropy into the key and discards the buffer, so later output is new.
    fn reseed(&mut self) {
        self.rekey(0, true);
        self.buffer.zeroize();
        self.used = BUFFER;
    }

    /// Makes a new buffer of key stream. Its first 32 bytes become the next key.
    fn rekey(&mut self, already_given: usize, reseeds: bool) {
        self.buffer.fill(0);
        self.schedule.xor_stream(&[0; 16], &mut self.buffer[..]);
        self.since_reseed += (BUFFER + already_given) as u64;
        let (key, _) = self.buffer.split_first_chunk_mut::<32>().expect("the buffer is longer than a key");
        if reseeds {
            let mut fresh = [0u8; 32];
            // If the system gives no entropy, the generator continues safely from its own output.
            if getrandom::fill(&mut fresh).is_ok() {
                key.iter_mut().zip(&fresh).for_each(|(k, f)| *k ^= f);
                (self.since_reseed, self.reseeded_at) = (0, coarse_now());
            }
            fresh.zeroize();
        }
        self.schedule = AesBlock::from_bytes(key);
        key.zeroize();
        self.used = 32;
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        self.buffer.zeroize();
    }
}

/// The random source of a running program, keyed by the operating system.
///
/// Create it after any `fork`: two processes that share a source would draw the same bytes.
pub struct SystemRandom {
    shards: Vec<Mutex<Generator>>,
    detector: ResumptionDetector,
}

impl SystemRandom {
    /// A source under fresh keys. Fails if the system has no entropy.
    pub fn new() -> Result<Self> {
        let shard = || -> Result<Mutex<Generator>> {
            let key = Secret::fill_with(|bytes| getrandom::fill(bytes)).map_err(|e| {
                Error::new(Kind::Other, "cannot draw random bytes from the system")
                    .found(e.to_string())
                    .expected("getrandom or /dev/urandom to work")
                    .hint("make /dev/urandom available to this process")
            })?;
            Ok(Mutex::new(Generator::new(&key, true)))
        };
        let shards = (0..SHARDS).map(|_| shard()).collect::<Result<_>>()?;
        Ok(SystemRandom { shards, detector: ResumptionDetector::new() })
    }
}

impl RandomSource for SystemRandom {
    fn fill(&self, buf: &mut [u8]) {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static SHARD: usize = THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS);
        let shard = SHARD.try_with(|s| *s).unwrap_or(0);
        self.shards[shard].lock().fill(buf);
    }

    fn resumptions(&self) -> u64 {
        let (times, resumed) = self.detector.check();
        if resumed {
            self.shards.iter().for_each(|shard| shard.lock().reseed());
        }
        times
    }
}

/// The random source of a test: equal seeds and calls give equal bytes.
pub struct SeededRandom(Mutex<Generator>);

impl SeededRandom {
    /// The source with this seed.
    pub fn new(seed: u64) -> Self {
        let seed_key = in_place(|key: &mut [u8; 32]| key[..8].copy_from_slice(&seed.to_le_bytes()));
        let key = crate::kdf::derive(&seed_key, "seeded random", b"");
        SeededRandom(Mutex::new(Generator::new(&key, false)))
    }
}

impl RandomSource for SeededRandom {
    fn fill(&self, buf: &mut [u8]) {
        self.0.lock().fill(buf);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn equal_seeds_give_equal_bytes() {
        let draw = |seed| {
            let random = SeededRandom::new(seed);
            let mut all = Vec::new();
            for len in [0, 1, 16, 511, 512, 513, 16, 4096, 100_000, 3] {
                let mut buf = vec![0xaa; len];
                random.fill(&mut buf);
                all.extend(buf);
            }
            all
        };
        assert!(draw(7) == draw(7));
        assert!(draw(7) != draw(8));
    }

    #[test]
    fn no_block_ever_repeats() {
        let random = SeededRandom::new(1);
        let mut seen = HashSet::new();
        for len in [16usize, 4096, 16, 512, 48, 1024, 65536].into_iter().cycle().take(700) {
            let mut buf = vec![0; len];
            random.fill(&mut buf);
            for block in buf.chunks_exact(16) {
                assert!(seen.insert(<[u8; 16]>::try_from(block).unwrap()));
            }
        }
    }

    #[test]
    fn bits_are_balanced() {
        let mut buf = vec![0; 1 << 20];
        SeededRandom::new(3).fill(&mut buf);
        let ones: u64 = buf.iter().map(|b| u64::from(b.count_ones())).sum();
        // Half of 2^23 bits; the standard deviation is 1448.
        assert!(ones.abs_diff(1 << 22) < 8 * 1448, "{ones} ones");
    }

    #[test]
    fn copies_of_a_generator_diverge_after_a_reseed() {
        let copy = || Generator::new(&in_place(|key: &mut [u8; 32]| key.fill(5)), false);
        let (mut one, mut other) = (copy(), copy());
        let draw = |generator: &mut Generator| {
            let mut bytes = [0; 100];
            generator.fill(&mut bytes);
            bytes
        };
        assert_eq!(draw(&mut one), draw(&mut other));
        one.reseed();
        other.reseed();
        let (first, second) = (draw(&mut one), draw(&mut other));
        assert!(first.chunks(16).all(|part| second.chunks(16).all(|other| part != other)));
    }

    #[test]
    fn threads_of_the_system_source_draw_different_bytes() {
        let random = SystemRandom::new().unwrap();
        let drawn = Mutex::new(HashSet::new());
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let mut bytes = [0; 16];
                        random.fill(&mut bytes);
                        assert!(drawn.lock().insert(bytes));
                    }
                });
            }
        });
        assert_ne!(random_secret::<64>(&random).expose(), &[0; 64]);
    }
}
