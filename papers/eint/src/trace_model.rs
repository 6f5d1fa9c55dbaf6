//! Synthetic traces modelled on LAIR, DEASNA and HOME02, the Harvard traces that EINT replays and
//! that may not be published.
//!
//! The numbers of files, of blocks written and of blocks read are exact (Table 6). Chosen to agree
//! with the paper: bytes of counter intervals per file (Table 1), the share of files with intervals
//! that fit into 200 bytes (Figure 17), and tails that are straight on a log-log scale (Figures 4
//! and 5). Everything else is a guess; each trace is marked as synthetic.

use crate::measure::{AccessKind, Trace, TraceRequest};
use lacuna_sim::Rng;

/// A model of one of the three traces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceModel {
    /// The name of the original trace.
    pub name: &'static str,
    /// Table 6: files, and blocks written and read.
    pub files: usize,
    pub writes: u64,
    pub reads: u64,
    /// Table 1: bytes of counter intervals per file.
    pub interval_bytes: f64,
    /// Figure 17: percentage of files with intervals that fit into 200 bytes.
    pub fitting: f64,
    /// Written files per 1000; the other files are only read.
    written: u64,
    /// Files per 1000 that are written in scattered places, such as databases and edited mailboxes.
    scattered: u64,
    /// Files per 1000 that are partly overwritten once: two or three intervals.
    partial: u64,
    /// Percentage of the writes that go to scattered files.
    scattered_writes: u64,
}

/// The three traces.
pub(crate) const MODELS: [TraceModel; 3] = [
    TraceModel {
        name: "LAIR",
        files: 7017,
        writes: 66_331,
        reads: 23_281,
        interval_bytes: 5.0,
        fitting: 100.0,
        written: 560,
        scattered: 0,
        partial: 30,
        scattered_writes: 0,
    },
    TraceModel {
        name: "DEASNA",
        files: 890,
        writes: 64_091,
        reads: 521,
        interval_bytes: 9.0,
        fitting: 100.0,
        written: 940,
        scattered: 0,
        partial: 80,
        scattered_writes: 0,
    },
    TraceModel {
        name: "HOME02",
        files: 183,
        writes: 89_425,
        reads: 11_815,
        interval_bytes: 163.0,
        fitting: 88.0,
        written: 960,
        scattered: 120,
        partial: 250,
        scattered_writes: 20,
    },
];

/// Maximum blocks of a request.
const REQUEST: u64 = 8;

impl TraceModel {
    /// Generates the trace; the same seed gives the same trace. `part` divides all counts, for
    /// quick runs.
    pub(crate) fn trace(&self, seed: u64, part: u64) -> Trace {
        let mut rng = Rng::new(seed);
        let files = (self.files / part as usize).max(8);
        let of_thousand = |share: u64| (files as u64 * share / 1000) as usize;
        let scattered = (of_thousand(self.scattered)).max(usize::from(self.scattered > 0));
        let written = of_thousand(self.written).max(scattered + 1);
        let to_scattered = self.writes / part * self.scattered_writes / 100;
        let mut queues: Vec<Vec<TraceRequest>> = vec![Vec::new(); files];
        let mut lengths = vec![0; files];
        let shares = heavy_shares(&mut rng, scattered, to_scattered);
        for (file, writes) in shares.into_iter().enumerate() {
            lengths[file] = scatter_writes(&mut rng, file, writes, &mut queues[file]);
        }
        let shares = heavy_shares(&mut rng, written - scattered, self.writes / part - to_scattered);
        let partial = of_thousand(self.partial);
        for (file, writes) in (scattered..).zip(shares) {
            lengths[file] = sequential(&mut rng, file, writes, file - scattered < partial, &mut queues[file]);
        }
        read(&mut rng, written, self.reads / part, &mut queues, &mut lengths);
        Trace {
            comments: vec![
                format!(
                    "synthetic: like {} in Tables 1 and 6 and Figures 4, 5 and 17 of paper 002",
                    self.name
                ),
                format!("seed {seed}, one {part}th"),
            ],
            files: (0..files)
                .map(|file| {
                    (format!("f{file}"), if queues_read_first(&queues[file]) { lengths[file] } else { 0 })
                })
                .collect(),
            requests: interleave(&mut rng, queues),
        }
    }
}

/// Adds reads from the start of files, including the files that are only read; requests of a file
/// keep their order.
fn read(rng: &mut Rng, written: usize, reads: u64, queues: &mut [Vec<TraceRequest>], lengths: &mut [u64]) {
    let only_read = queues.len() - written;
    let mut left = reads;
    // Every file that is never written is read, starting at its first block.
    let shares = heavy_shares(rng, only_read, (reads / 2).max(only_read as u64).min(reads));
    for (file, blocks) in (written..).zip(shares) {
        lengths[file] = blocks;
        runs(0, blocks, |first, count| {
            queues[file].push(TraceRequest { access: AccessKind::Read, file, first, count });
        });
        left -= blocks;
    }
    while left > 0 {
        let file = rng.below(written as u64) as usize;
        let blocks = lengths[file].min(left).min(1 + rng.below(64));
        let first = if rng.chance(4, 5) { 0 } else { rng.below(lengths[file] - blocks + 1) };
        runs(first, blocks, |first, count| {
            queues[file].push(TraceRequest { access: AccessKind::Read, file, first, count });
        });
        left -= blocks;
    }
}

/// Whether a file needs its blocks before the trace begins.
fn queues_read_first(queue: &[TraceRequest]) -> bool {
    queue.first().is_some_and(|request| request.access == AccessKind::Read)
}

/// Splits `sum` into `count` shares of at least one, most of them small and a few large (Pareto,
/// exponent 1.1).
fn heavy_shares(rng: &mut Rng, count: usize, sum: u64) -> Vec<u64> {
    if count == 0 {
        return Vec::new();
    }
    let weights: Vec<f64> = (0..count)
        .map(|_| (rng.below(1 << 30) as f64 / f64::from(1 << 30)).mul_add(-0.999, 1.0).powf(-1.0 / 1.1))
        .collect();
    let all: f64 = weights.iter().sum();
    let spare = sum - count as u64;
    let mut shares: Vec<u64> =
        weights.iter().map(|weight| 1 + (spare as f64 * weight / all) as u64).collect();
    let given: u64 = shares.iter().sum();
    shares[0] += sum - given;
    shares
}

/// A file that is written from end to end, several times; its length follows from its writes.
/// Returns its length.
fn sequential(rng: &mut Rng, file: usize, writes: u64, partial: bool, queue: &mut Vec<TraceRequest>) -> u64 {
    // The number of passes is straight on a log-log scale (Figure 4).
    let mut passes = 1;
    while passes < 64 && rng.chance(1, 3) {
        passes *= 2;
    }
    let passes = passes.min(writes).max(1);
    let length = writes / passes;
    let mut push = |first, count| queue.push(TraceRequest { access: AccessKind::Write, file, first, count });
    let mut left = writes;
    if length > 1 && partial {
        runs(0, length, &mut push);
        let some = (left - length).min(1 + rng.below(length - 1));
        runs(0, some, &mut push);
        left -= length + some;
        // The remaining writes append to the file.
        runs(length, left, &mut push);
        return length + left;
    }
    while left >= length {
        runs(0, length, &mut push);
        left -= length;
    }
    // The remainder of the division extends the file; appended blocks are written once.
    runs(length, left, &mut push);
    length + left
}

/// A file with overwrites of scattered blocks: each adds an interval. Returns its length.
fn scatter_writes(rng: &mut Rng, file: usize, writes: u64, queue: &mut Vec<TraceRequest>) -> u64 {
    let length = (writes / 2).max(1);
    let mut push = |first, count| queue.push(TraceRequest { access: AccessKind::Write, file, first, count });
    runs(0, length, &mut push);
    let mut left = writes - length;
    while left > 0 {
        let count = left.min(1 + rng.below(4)).min(length);
        push(rng.below(length - count + 1), count);
        left -= count;
    }
    length
}

/// Splits a run of blocks into requests.
fn runs(first: u64, count: u64, mut push: impl FnMut(u64, u64)) {
    for at in (0..count).step_by(REQUEST as usize) {
        push(first + at, (count - at).min(REQUEST));
    }
}

/// Merges the requests of all files as from many clients: several requests of a file, then another
/// file.
fn interleave(rng: &mut Rng, mut queues: Vec<Vec<TraceRequest>>) -> Vec<TraceRequest> {
    queues.iter_mut().for_each(|queue| queue.reverse());
    let mut busy: Vec<usize> = (0..queues.len()).filter(|file| !queues[*file].is_empty()).collect();
    let mut all = Vec::new();
    while !busy.is_empty() {
        let at = rng.below(busy.len() as u64) as usize;
        let queue = &mut queues[busy[at]];
        for _ in 0..=rng.below(16) {
            all.extend(queue.pop());
        }
        if queue.is_empty() {
            busy.swap_remove(at);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace_counters::CounterStats;

    /// Table 6 is met exactly, Table 1 and Figure 17 approximately.
    #[test]
    fn the_traces_match_the_figures_of_the_paper() {
        for model in MODELS {
            let trace = model.trace(1, 1);
            assert_eq!(trace.files.len(), model.files);
            assert_eq!(trace.blocks(AccessKind::Write), model.writes, "{}", model.name);
            assert_eq!(trace.blocks(AccessKind::Read), model.reads, "{}", model.name);
            let counted = CounterStats::of(&trace);
            let bytes = counted.interval_bytes();
            let near = bytes / model.interval_bytes;
            assert!((0.75..=1.25).contains(&near), "{}: {bytes} bytes of intervals", model.name);
            let fitting = counted.fitting(200);
            assert!((fitting - model.fitting).abs() <= 3.0, "{}: {fitting} % fit", model.name);
            assert_eq!(Trace::parse(&trace.text()).unwrap(), trace);
        }
    }
}
