//! The write counters after a trace: Table 1, Figures 4, 5 and 17 and section 7.3 of EINT. Only
//! counts; no file is written.

use crate::measure::{AccessKind, Trace};
use crate::reference_counters::CounterIntervals;
use crate::trace_model::{MODELS, TraceModel};
use lacuna_bench::pages::table::{Table, head};
use std::collections::{BTreeMap, HashMap};

/// Sizes of trusted storage in the table (Figure 17), in bytes.
pub(crate) const TRUSTED: [usize; 6] = [8, 50, 100, 150, 200, 400];
/// Numbers of writes and of intervals in the table (Figures 4 and 5).
const AT_LEAST: [usize; 7] = [1, 2, 4, 10, 50, 100, 1000];

/// The counters after a trace.
pub(crate) struct CounterStats {
    /// Bytes of intervals of each file, with numbers of writes as counters.
    bytes: Vec<usize>,
    /// Intervals of each file, with the pass counters of vault files.
    passes: Vec<usize>,
    /// Number of blocks by number of writes.
    writes: BTreeMap<u32, u64>,
    blocks: u64,
}

/// The pass counters of one file, in memory and without limits: a second write to a block in the
/// same pass begins the next pass.
#[derive(Default)]
struct PassCounters {
    pass: u32,
    pass_of_block: HashMap<u64, u32>,
}

impl PassCounters {
    fn write(&mut self, first: u64, count: u64) {
        let again = (first..first + count).any(|block| self.pass_of_block.get(&block) == Some(&self.pass));
        if again || self.pass_of_block.is_empty() {
            self.pass += 1;
        }
        self.pass_of_block.extend((first..first + count).map(|block| (block, self.pass)));
    }

    fn intervals(&self) -> usize {
        let mut all: Vec<(u64, u32)> =
            self.pass_of_block.iter().map(|(block, pass)| (*block, *pass)).collect();
        all.sort_unstable();
        let apart = |pair: &[(u64, u32)]| pair[0].1 != pair[1].1 || pair[0].0 + 1 != pair[1].0;
        usize::from(!all.is_empty()) + all.windows(2).filter(|pair| apart(pair)).count()
    }
}

impl CounterStats {
    pub(crate) fn of(trace: &Trace) -> CounterStats {
        let mut intervals: Vec<CounterIntervals> = vec![CounterIntervals::default(); trace.files.len()];
        let mut passes: Vec<PassCounters> = trace.files.iter().map(|_| PassCounters::default()).collect();
        let written = trace.requests.iter().filter(|request| request.access == AccessKind::Write);
        for request in written.clone() {
            let of = &mut intervals[request.file];
            // Blocks that the trace does not write have no counter; writes begin at or before the
            // end.
            (request.first..request.first + request.count)
                .for_each(|block| of.update(block).expect("traces write without gaps"));
            passes[request.file].write(request.first, request.count);
        }
        let mut writes = BTreeMap::new();
        let mut blocks = 0;
        for of in &intervals {
            blocks += of.blocks();
            (0..of.blocks()).for_each(|block| *writes.entry(of.get(block)).or_default() += 1);
        }
        CounterStats {
            bytes: intervals.iter().map(CounterIntervals::bytes).collect(),
            passes: passes.iter().map(PassCounters::intervals).collect(),
            writes,
            blocks,
        }
    }

    /// Table 1: bytes of counter intervals per file, on average.
    pub(crate) fn interval_bytes(&self) -> f64 {
        self.bytes.iter().sum::<usize>() as f64 / self.bytes.len() as f64
    }

    /// Percentage of files with intervals that fit into `room` bytes.
    pub(crate) fn fitting(&self, room: usize) -> f64 {
        let fit = self.bytes.iter().filter(|bytes| **bytes <= room).count();
        100.0 * fit as f64 / self.bytes.len() as f64
    }

    /// The same percentage with pass counters.
    fn fitting_passes(&self, room: usize) -> f64 {
        let fit = self.passes.iter().filter(|count| **count * CounterIntervals::BYTES <= room).count();
        100.0 * fit as f64 / self.passes.len() as f64
    }

    /// Figure 4: blocks with at least this number of writes.
    fn blocks_written(&self, at_least: usize) -> u64 {
        self.writes.range(at_least as u32..).map(|(_, blocks)| blocks).sum()
    }

    /// Figure 5: files with at least this number of intervals.
    fn files_with(&self, at_least: usize) -> usize {
        self.bytes.iter().filter(|bytes| **bytes / CounterIntervals::BYTES >= at_least).count()
    }
}

/// The tables on counters of sections 7.2 and 7.3.
pub(crate) fn tables(traces: &[(TraceModel, Trace)]) -> Vec<Table> {
    let counted: Vec<CounterStats> = traces.iter().map(|(_, trace)| CounterStats::of(trace)).collect();
    vec![representations(traces, &counted), distributions(&counted), fitting(&counted)]
}

/// Tables 1 and 6.
fn representations(traces: &[(TraceModel, Trace)], counted: &[CounterStats]) -> Table {
    let heads = [
        "files",
        "blocks written",
        "blocks read",
        "bytes of intervals a file (paper)",
        "with counters of passes",
        "bytes a file with a counter per block",
    ];
    let title = "Synthetic traces: size, and storage of counters (paper 002, Tables 6 and 1)";
    let mut table = Table::new(title, head("", heads.map(str::to_owned)));
    for ((model, trace), counted) in traces.iter().zip(counted) {
        let files = counted.bytes.len() as f64;
        let passes = (counted.passes.iter().sum::<usize>() * CounterIntervals::BYTES) as f64 / files;
        table.row(
            model.name,
            [
                trace.files.len().to_string(),
                trace.blocks(AccessKind::Write).to_string(),
                trace.blocks(AccessKind::Read).to_string(),
                format!("{:.1} ({})", counted.interval_bytes(), model.interval_bytes),
                format!("{passes:.1}"),
                format!("{:.0}", counted.blocks as f64 * 4.0 / files),
            ],
        );
    }
    table
}

/// Figures 4 and 5.
fn distributions(counted: &[CounterStats]) -> Table {
    let heads = MODELS.iter().flat_map(|model| {
        [
            format!("{}: blocks by number of writes", model.name),
            format!("{}: files by number of intervals", model.name),
        ]
    });
    let title = "Synthetic traces: writes of blocks, and intervals of files (paper 002, Figures 4 and 5)";
    let mut table = Table::new(title, head("at least", heads));
    for at_least in AT_LEAST {
        let cells = counted.iter().flat_map(|counted| {
            [counted.blocks_written(at_least).to_string(), counted.files_with(at_least).to_string()]
        });
        table.row(at_least.to_string(), cells);
    }
    table
}

/// Figure 17 and section 7.3.
fn fitting(counted: &[CounterStats]) -> Table {
    let heads = MODELS.iter().map(|model| format!("{}: writes / passes", model.name));
    let title =
        "Synthetic traces: percent of files with counters within trusted storage (paper 002, Figure 17)";
    let mut table = Table::new(title, head("bytes", heads));
    for room in TRUSTED {
        let cells = counted
            .iter()
            .map(|counted| format!("{:.1} / {:.1}", counted.fitting(room), counted.fitting_passes(room)));
        table.row(room.to_string(), cells);
    }
    let paper = MODELS.iter().map(|model| format!("{}", model.fitting));
    table.row("200, paper", paper);
    table
}
