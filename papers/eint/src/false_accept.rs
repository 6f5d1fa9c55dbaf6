//! Counts the statistic of IsRand over hundreds of millions of uniformly random blocks, beside the
//! bound that proves its thresholds (`entropy_bound.rs`, `docs/integrity.md`). The seeds are fixed:
//! the figures are the same on every machine.

use crate::entropy_bound::{RUN_BOUND, TailBound};
use lacuna_bench::pages::table::{Table, head};
use lacuna_bench::workspace::Workspace;
use lacuna_contracts::Result;
use lacuna_crypto::{RandomSource, SeededRandom};
use lacuna_integrity::{STATISTIC_BITS, is_random_looking, statistic, threshold};

/// Block sizes: those of the paper's sweeps. Vaults use the last one.
pub(crate) const SIZES: [usize; 6] = [128, 256, 512, 1024, 2048, 4096];
/// Bytes that are drawn and tested at a time.
const CHUNK_LEN: usize = 1 << 20;
/// Minimum count for a comparison with the bound; lower counts scatter.
pub(crate) const MIN_COUNT: u64 = 100;

/// The statistic T of random blocks of one size, counted by whole bits of divergence n·D = 8n -
/// n·log2(n) + T.
pub(crate) struct StatisticCounts {
    /// Bytes of a block.
    pub size: usize,
    /// Blocks tested.
    pub blocks: u64,
    /// Number of blocks for each value of the divergence in bits, rounded down.
    bits: Vec<u64>,
    /// Blocks that do not look random to IsRand.
    pub accepted: u64,
    bound: TailBound,
}

pub(crate) struct FalseAccept {
    counted: Vec<StatisticCounts>,
}

pub(crate) fn measure(work: &Workspace) -> Result<FalseAccept> {
    let mut counted = Vec::new();
    for size in SIZES {
        let blocks = match (work.scale.quick, size) {
            (true, _) => 40_000,
            (false, 4096) => 300_000_000,
            (false, _) => 100_000_000,
        };
        work.report_progress(&format!("false accepts: {blocks} random blocks of {size} bytes"))?;
        counted.push(count(work, size, blocks)?);
    }
    Ok(FalseAccept { counted })
}

/// Counts in two threads, each with a seed of its own.
fn count(work: &Workspace, size: usize, blocks: u64) -> Result<StatisticCounts> {
    let threads = 2;
    let mut all =
        StatisticCounts { size, blocks: 0, bits: Vec::new(), accepted: 0, bound: TailBound::new(size) };
    let parts: Vec<Result<ThreadCounts>> = std::thread::scope(|scope| {
        let one = |seed: u64| scope.spawn(move || count_part(work, size, blocks / threads, seed));
        let running: Vec<_> = (0..threads).map(|thread| one(size as u64 * threads + thread)).collect();
        running.into_iter().map(|part| part.join().expect("counting does not panic")).collect()
    });
    for part in parts {
        let ThreadCounts { blocks, bits, accepted } = part?;
        all.blocks += blocks;
        all.accepted += accepted;
        all.bits.resize(all.bits.len().max(bits.len()), 0);
        all.bits.iter_mut().zip(&bits).for_each(|(sum, count)| *sum += count);
    }
    Ok(all)
}

/// The counts of one thread.
#[derive(Default)]
struct ThreadCounts {
    blocks: u64,
    bits: Vec<u64>,
    pub accepted: u64,
}

fn count_part(work: &Workspace, size: usize, blocks: u64, seed: u64) -> Result<ThreadCounts> {
    let random = SeededRandom::new(seed);
    let mut counted = ThreadCounts::default();
    let mut drawn = vec![0; CHUNK_LEN];
    while counted.blocks < blocks {
        work.interrupt.check()?;
        random.fill(&mut drawn);
        let left = (blocks - counted.blocks).min((CHUNK_LEN / size) as u64) as usize;
        for block in drawn.chunks_exact(size).take(left) {
            let bits = divergence(size, statistic(block)) as usize;
            if counted.bits.len() <= bits {
                counted.bits.resize(bits + 1, 0);
            }
            counted.bits[bits] += 1;
            counted.accepted += u64::from(!is_random_looking(block));
        }
        counted.blocks += left as u64;
    }
    Ok(counted)
}

/// n·D in bits: 8n - n·log2(n) plus the statistic. Rounding may make the sum negative; then it is
/// 0.
fn divergence(size: usize, statistic: u64) -> u64 {
    (equal_bytes(size) + (statistic >> STATISTIC_BITS) as i64).max(0) as u64
}

/// 8n - n·log2(n): n·D in bits for a statistic of zero, when all bytes are as different as
/// possible.
fn equal_bytes(size: usize) -> i64 {
    size as i64 * (8 - i64::from(size.ilog2()))
}

impl StatisticCounts {
    /// For each observed divergence in bits: the number of blocks with at least this divergence,
    /// and its probability.
    pub(crate) fn points(&self) -> impl Iterator<Item = (u64, u64, f64)> {
        let mut reached = 0;
        let mut points: Vec<(u64, u64, f64)> = Vec::new();
        for (bits, count) in self.bits.iter().enumerate().rev().filter(|(_, count)| **count > 0) {
            reached += count;
            points.push((bits as u64, reached, reached as f64 / self.blocks as f64));
        }
        points.into_iter().rev()
    }

    /// The bound on the probability of at least this divergence, as a logarithm to base 2.
    pub(crate) fn bound(&self, bits: u64) -> f64 {
        let statistic = (bits as i64 - equal_bytes(self.size)).max(0) as u64;
        self.bound.log2(statistic << STATISTIC_BITS)
    }

    /// Divergence in bits at the threshold.
    pub(crate) fn threshold(&self) -> u64 {
        divergence(self.size, threshold(self.size).expect("these sizes are judged"))
    }
}

impl FalseAccept {
    /// The counts, for the plot.
    pub(crate) fn counted(&self) -> &[StatisticCounts] {
        &self.counted
    }

    pub(crate) fn table(&self) -> Table {
        let heads = [
            "random blocks",
            "largest divergence, bits",
            "bound on its probability",
            "threshold, bits",
            "entropy at the threshold, bits a byte",
            "bound at the threshold",
            "accepted",
        ];
        let mut table =
            Table::new("IsRand on uniformly random blocks", head("block", heads.map(str::to_owned)));
        for counted in &self.counted {
            let most = counted.points().last().map_or(0, |(bits, ..)| bits);
            let threshold = counted.threshold();
            table.row(
                format!("{} bytes", counted.size),
                [
                    counted.blocks.to_string(),
                    most.to_string(),
                    format!("2^{:.1}", counted.bound(most)),
                    threshold.to_string(),
                    format!("{:.3}", 8.0 - threshold as f64 / counted.size as f64),
                    format!("2^-{RUN_BOUND}"),
                    counted.accepted.to_string(),
                ],
            );
        }
        table
    }
}
