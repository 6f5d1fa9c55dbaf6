//! Figure 14 of EINT: the parts of the time of a block, for text and compressed files; and Figure
//! 15: the effect of caches of tree nodes.

use crate::files::{ClassSample, FileClass};
use crate::measure::{CacheKind, CostFigures, MeasuredScheme, measure_files};
use crate::speed::{BLOCK, Speeds, both_times, median, read_time, write_time};
use crate::tables::BlockShares;
use lacuna_bench::pages::table::{Table, figure, head};
use lacuna_bench::workspace::Workspace;
use lacuna_contracts::Result;
use lacuna_integrity::{PACKED_HEADER, compress, decompress, is_random_looking};
use sha2::{Digest, Sha256};
use std::hint::black_box;
use std::time::Instant;

/// Bytes that compression must save: a SHA-256 hash and the header, as in the reference scheme.
const SAVED: usize = 32 + PACKED_HEADER;
/// The classes in the figure.
const SHOWN: [FileClass; 2] = [FileClass::Text, FileClass::Compressed];
/// Cache sizes in bytes. The paper's hashes have 20 bytes, those here 32.
const CACHES: [usize; 4] = [512, 1024, 2048, 4096];

/// Nanoseconds per block of a class, each primitive measured alone.
struct Primitives {
    class: FileClass,
    hash: f64,
    is_random: f64,
    compress: f64,
    decompress: f64,
}

pub(crate) struct TimeParts {
    primitives: Vec<Primitives>,
    caches: Vec<CacheResult>,
}

/// A cache with one subject and some classes, compared with no cache.
struct CacheResult {
    kind: CacheKind,
    bytes: usize,
    subject: MeasuredScheme,
    low: bool,
    /// Ratios of the time with the cache to the time without: write, read.
    times: [f64; 2],
    /// Share of node accesses that the cache served: write, read.
    hits: [f64; 2],
}

pub(crate) fn measure(work: &Workspace, whole: &[ClassSample], fewer: &[ClassSample]) -> Result<TimeParts> {
    work.report_progress("integrity: parts of the time of a block")?;
    let of = |class: &FileClass| whole.iter().find(|sample| sample.class == *class);
    let primitives = SHOWN.iter().filter_map(of).map(|sample| primitives(work, sample)).collect();
    let mut caches = Vec::new();
    for low in [true, false] {
        let classes: &[FileClass] = if low { &FileClass::LOW_ENTROPY } else { &FileClass::HIGH_ENTROPY };
        let files: Vec<Vec<u8>> = fewer
            .iter()
            .filter(|sample| classes.contains(&sample.class))
            .flat_map(|sample| sample.files.iter().cloned())
            .collect();
        for subject in &MeasuredScheme::PAPER[2..] {
            work.report_progress(&format!("integrity: caches of {}", subject.name()))?;
            caches.extend(measure_caches(work, *subject, low, &files)?);
        }
    }
    Ok(TimeParts { primitives, caches })
}

fn measure_caches(
    work: &Workspace,
    subject: MeasuredScheme,
    low: bool,
    files: &[Vec<u8>],
) -> Result<Vec<CacheResult>> {
    let mut cached = Vec::new();
    let ways =
        [CacheKind::List, CacheKind::Table].into_iter().flat_map(|kind| CACHES.map(|bytes| (kind, bytes)));
    let ways: Vec<(CacheKind, usize)> = ways.collect();
    let mut without = Vec::new();
    let mut with: Vec<Vec<CostFigures>> = vec![Vec::new(); ways.len()];
    for _ in 0..work.scale.rounds.div_ceil(2) {
        without.push(measure_files(subject, BLOCK, None, files)?);
        for (way, runs) in ways.iter().zip(&mut with) {
            runs.push(measure_files(subject, BLOCK, Some(*way), files)?);
        }
    }
    for ((kind, bytes), runs) in ways.into_iter().zip(with) {
        let ratio = |of: fn(&CostFigures) -> f64| {
            let ratios = runs.iter().zip(&without).map(|(with, without)| of(with) / of(without));
            median(ratios.collect()).unwrap_or(1.0)
        };
        let hits = |of: fn(&CostFigures) -> u64| match of(&without[0]) {
            0 => 0.0,
            all => 1.0 - of(&runs[0]) as f64 / all as f64,
        };
        let hits = [hits(|figures| figures.write_us), hits(|figures| figures.read_us)];
        cached.push(CacheResult {
            kind,
            bytes,
            subject,
            low,
            times: [ratio(write_time), ratio(read_time)],
            hits,
        });
    }
    Ok(cached)
}

/// Nanoseconds that `what` takes per block, the median of some passes.
fn per_block<R>(work: &Workspace, sample: &ClassSample, mut what: impl FnMut(&[u8]) -> R) -> f64 {
    let blocks = sample.blocks(BLOCK).count().max(1);
    let pass = |_| {
        let began = Instant::now();
        sample.blocks(BLOCK).for_each(|block| drop(black_box(what(block))));
        began.elapsed().as_nanos() as f64 / blocks as f64
    };
    median((0..work.scale.rounds.max(3)).map(pass).collect()).unwrap_or(0.0)
}

fn primitives(work: &Workspace, sample: &ClassSample) -> Primitives {
    let hash = per_block(work, sample, |block| Sha256::digest(block));
    let is_random = per_block(work, sample, is_random_looking);
    let mut packed = vec![0; BLOCK - 32];
    let pack = per_block(work, sample, |block| compress(block, &mut packed, SAVED));
    let mut all = Vec::new();
    for block in sample.blocks(BLOCK) {
        if compress(block, &mut packed, SAVED).is_some() {
            all.extend_from_slice(&packed);
        }
    }
    let mut block = vec![0; BLOCK];
    let began = Instant::now();
    for packed in all.chunks_exact(BLOCK - 32) {
        black_box(decompress(packed, &mut block));
    }
    let blocks = sample.blocks(BLOCK).count().max(1);
    let unpack = began.elapsed().as_nanos() as f64 / blocks as f64;
    Primitives { class: sample.class, hash, is_random, compress: pack, decompress: unpack }
}

impl TimeParts {
    /// Figure 14. The remaining time is the tree, the counters and US.
    pub(crate) fn table(&self, speeds: &Speeds, shares: &BlockShares) -> Table {
        let heads = [
            "encryption and blocks",
            "SHA-256 of blocks",
            "entropy test or (de)compression",
            "tree, counters, US",
            "all",
        ];
        let title = "Parts of the time of a block of 4096 bytes, ns (paper 002, Figure 14)";
        let mut table = Table::new(title, head("", heads.map(str::to_owned)));
        for Primitives { class, hash, is_random, compress, decompress } in &self.primitives {
            let (random, _) = shares.of_class(*class);
            for (does, of) in [("write", write_time as fn(&CostFigures) -> f64), ("read", read_time)] {
                let reads = does == "read";
                let rows = [
                    (MeasuredScheme::ReferenceMt, MeasuredScheme::Aes, *hash, 0.0),
                    (MeasuredScheme::ReferenceRand, MeasuredScheme::Wide, hash * random, *is_random),
                    (
                        MeasuredScheme::ReferenceComp,
                        MeasuredScheme::Aes,
                        *hash,
                        if reads { *decompress } else { *compress },
                    ),
                ];
                for (subject, cipher, hash, test) in rows {
                    let mean = |subject| speeds.mean(of, subject, &[*class], BLOCK);
                    let (Some(all), Some(cipher)) = (mean(subject), mean(cipher)) else { continue };
                    let rest = (all - cipher - hash - test).max(0.0);
                    let name = format!("{}: {does} {}", class.name(), subject.name());
                    table.row(name, [cipher, hash, test, rest, all].map(|value| format!("{value:.0}")));
                }
            }
        }
        table
    }

    /// Figure 15.
    pub(crate) fn caches(&self) -> Table {
        let heads = [
            "list: write / read",
            "list: nodes found",
            "hash table: write / read",
            "hash table: nodes found",
        ];
        let title =
            "Caches of tree nodes: ratio of time to no cache, US accesses saved (paper 002, Figure 15)";
        let mut table = Table::new(title, head("", heads.map(str::to_owned)));
        for low in [true, false] {
            for subject in &MeasuredScheme::PAPER[2..] {
                for bytes in CACHES {
                    let of = |kind| {
                        self.caches.iter().find(|cached| {
                            (cached.kind, cached.bytes, cached.subject, cached.low)
                                == (kind, bytes, *subject, low)
                        })
                    };
                    let cells = [CacheKind::List, CacheKind::Table].into_iter().flat_map(|kind| {
                        let two = |pair: Option<[f64; 2]>, scale: f64, decimals| {
                            let one = |at: usize| figure(pair.map(|pair| pair[at] * scale), decimals);
                            format!("{} / {}", one(0), one(1))
                        };
                        let found = of(kind);
                        [
                            two(found.map(|cached| cached.times), 1.0, 2),
                            format!("{} %", two(found.map(|cached| cached.hits), 100.0, 0)),
                        ]
                    });
                    let entropy = if low { "low" } else { "high" };
                    table.row(format!("{entropy} entropy, {}, {bytes} bytes", subject.name()), cells);
                }
            }
        }
        table
    }

    /// The time of HCTR2 relative to AES-XTS, for the method section.
    pub(crate) fn of_wide(speeds: &Speeds) -> Option<f64> {
        speeds.ratio(both_times, [MeasuredScheme::Wide, MeasuredScheme::Aes], &FileClass::ALL, BLOCK)
    }
}
