//! Replays a trace: the requests of EINT, section 7.2, with synthetic contents.

use crate::measure::figures::CostFigures;
use crate::measure::memory::CountingMemory;
use crate::measure::subject::{MeasuredFile, MeasuredScheme};
use crate::measure::trace::{AccessKind, Trace, TraceRequest};
use lacuna_contracts::Result;
use std::time::Instant;

/// Distinct blocks of each kind.
const VARIETY: usize = 64;
/// Maximum blocks of a call.
const RUN: u64 = 32;

/// Synthetic contents of blocks: text-like, random-looking, or a random mixture of both.
pub struct SyntheticContents {
    low: Vec<Vec<u8>>,
    high: Vec<Vec<u8>>,
    /// Percentage of random-looking blocks.
    percent: u64,
    state: u64,
}

impl SyntheticContents {
    /// Contents with `percent` % of random-looking blocks. The same seed gives the same contents.
    pub fn new(block_size: usize, percent: u64, seed: u64) -> SyntheticContents {
        let mut state = seed;
        let mut random =
            |len: usize| -> Vec<u8> { (0..len).map(|_| (next(&mut state) >> 32) as u8).collect() };
        let high = (0..VARIETY).map(|_| random(block_size)).collect();
        let low = (0..VARIETY)
            .map(|_| {
                let words: Vec<String> = WORDS.iter().map(|word| format!("{word} ")).collect();
                let order = random(block_size);
                let text = order.iter().flat_map(|at| words[usize::from(*at) % words.len()].bytes());
                text.take(block_size).collect()
            })
            .collect();
        SyntheticContents { low, high, percent, state: seed }
    }

    /// The next block.
    fn next_block(&mut self) -> &[u8] {
        let drawn = next(&mut self.state);
        let of = if drawn % 100 < self.percent { &self.high } else { &self.low };
        &of[(drawn >> 32) as usize % VARIETY]
    }
}

const WORDS: [&str; 16] = [
    "counter",
    "block",
    "file",
    "tree",
    "the",
    "of",
    "integrity",
    "storage",
    "a",
    "trusted",
    "read",
    "write",
    "server",
    "and",
    "hash",
    "content",
];

/// A pseudorandom generator (splitmix64); its quality does not matter.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// One file of a trace.
struct OpenTraceFile {
    file: Box<dyn MeasuredFile>,
    us: CountingMemory,
}

impl OpenTraceFile {
    fn new(subject: MeasuredScheme, number: u64, block_size: usize, blocks: u64) -> OpenTraceFile {
        let file = subject.file(number, block_size, None);
        OpenTraceFile { file, us: CountingMemory::new(block_size, blocks) }
    }
}

/// Replays a trace with blocks of `block_size` bytes. The initial blocks of files are written
/// first, which is not measured; closing all files at the end is measured. Reads stop at the end of
/// a file.
pub fn replay(
    subject: MeasuredScheme,
    block_size: usize,
    trace: &Trace,
    contents: &mut SyntheticContents,
) -> Result<CostFigures> {
    let mut open = Vec::with_capacity(trace.files.len());
    let mut room = vec![0; RUN as usize * block_size];
    for (number, (_, blocks)) in (0..).zip(&trace.files) {
        let mut file = OpenTraceFile::new(subject, number, block_size, *blocks);
        for first in (0..*blocks).step_by(RUN as usize) {
            let run = &mut room[..(blocks - first).min(RUN) as usize * block_size];
            run.chunks_exact_mut(block_size).for_each(|block| block.copy_from_slice(contents.next_block()));
            file.file.write(&file.us, first, run)?;
        }
        file.file.close(&file.us)?;
        file.us.take_accessed();
        open.push(file);
    }
    let mut figures = CostFigures::default();
    for request in &trace.requests {
        replay_request(&mut open[request.file], *request, block_size, contents, &mut room, &mut figures)?;
    }
    for OpenTraceFile { file, us } in &mut open {
        let began = Instant::now();
        file.close(us)?;
        figures.write += began.elapsed();
        figures.write_us += us.take_accessed();
        figures.stored_us += us.stored();
    }
    Ok(figures)
}

fn replay_request(
    open: &mut OpenTraceFile,
    request: TraceRequest,
    block_size: usize,
    contents: &mut SyntheticContents,
    room: &mut [u8],
    figures: &mut CostFigures,
) -> Result<()> {
    let OpenTraceFile { file, us } = open;
    if request.access == AccessKind::Truncate {
        let began = Instant::now();
        file.truncate(us, request.first)?;
        figures.write += began.elapsed();
        figures.write_us += us.take_accessed();
        return Ok(());
    }
    let end = match request.access {
        AccessKind::Read => file.blocks().min(request.first + request.count),
        _ => request.first + request.count,
    };
    let mut first = request.first;
    while first < end {
        let count = (end - first).min(RUN);
        let run = &mut room[..count as usize * block_size];
        if request.access == AccessKind::Write {
            run.chunks_exact_mut(block_size).for_each(|block| block.copy_from_slice(contents.next_block()));
            let began = Instant::now();
            file.write(us, first, run)?;
            figures.write += began.elapsed();
            (figures.written, figures.write_us) =
                (figures.written + count, figures.write_us + us.take_accessed());
        } else {
            let began = Instant::now();
            file.read(us, first, run)?;
            figures.read += began.elapsed();
            (figures.checked, figures.read_us) =
                (figures.checked + count, figures.read_us + us.take_accessed());
        }
        first += count;
    }
    Ok(())
}
