//! The section on EINT: Tables 1 to 6, Figures 12 to 17 and the claims of its text, with its
//! schemes as reference and those of the vault beside them, in memory.

use crate::claims;
use crate::files::{self, ClassSample, FileClass};
use crate::measure::Trace;
use crate::parts::{self, TimeParts};
use crate::speed::{self, Speeds};
use crate::speed_plot;
use crate::tables::{self, BlockShares};
use crate::trace_counters;
use crate::trace_model::{MODELS, TraceModel};
use crate::trace_speed::{self, Replays};
use lacuna_bench::measuring::section_results::SectionResults;
use lacuna_bench::pages::page::{HistoryTable, RunInfo};
use lacuna_bench::pages::requirement::{self, Requirement};
use lacuna_bench::pages::table::{Table, figure};
use lacuna_bench::workspace::Workspace;
use lacuna_contracts::Result;
use std::path::Path;

const HISTORY: HistoryTable = HistoryTable {
    heading: "### History of integrity",
    about: "Low-entropy files: times of reference RAND and of vault rand to reference MT, write / read; \
            bandwidth of RAND / COMP, as the factor below reference MT",
    head: &["date", "lacuna", "processor", "repeats", "reference", "vault", "bandwidth", "reached"],
};

struct IntegrityResults {
    samples: Vec<ClassSample>,
    shares: BlockShares,
    speeds: Speeds,
    parts: TimeParts,
    traces: Vec<(TraceModel, Trace)>,
    replays: Replays,
}

pub(crate) fn measure(work: &Workspace) -> Result<Box<dyn SectionResults>> {
    let (whole, fewer, part) =
        if work.scale.quick { (200 << 10, 100 << 10, 100) } else { (64 << 20, 12 << 20, 1) };
    work.report_progress("integrity: collecting files")?;
    let samples = files::collect(whole)?;
    let few: Vec<ClassSample> = samples.iter().map(|sample| sample.within(fewer)).collect();
    let traces: Vec<(TraceModel, Trace)> =
        MODELS.iter().map(|model| (*model, model.trace(1, part))).collect();
    Ok(Box::new(IntegrityResults {
        shares: BlockShares::of(&samples),
        speeds: speed::measure(work, &samples, &few)?,
        parts: parts::measure(work, &samples, &few)?,
        replays: trace_speed::measure(work, &traces)?,
        traces,
        samples,
    }))
}

impl SectionResults for IntegrityResults {
    fn tables(&self) -> Vec<Table> {
        let mut tables = vec![claims::table(&self.speeds)];
        tables.extend([tables::files(&self.samples), self.shares.table()]);
        tables.extend(tables::tables_4_and_5(&self.speeds));
        tables.push(tables::papers_tables());
        tables.push(tables::sweep(
            &self.speeds,
            "Low-entropy files by block size (paper 002, Figure 12)",
            &FileClass::LOW_ENTROPY,
        ));
        tables.push(tables::sweep(
            &self.speeds,
            "High-entropy files by block size (paper 002, Figure 13)",
            &FileClass::HIGH_ENTROPY,
        ));
        tables.extend([self.parts.table(&self.speeds, &self.shares), self.parts.caches()]);
        tables.extend(trace_counters::tables(&self.traces));
        tables.extend(self.replays.tables());
        tables
    }

    fn requirements(&self) -> Vec<Requirement> {
        claims::requirements(&self.speeds)
    }

    fn plot(&self, plots: &Path) -> Result<()> {
        speed_plot::draw(&self.speeds, plots)
    }

    fn body(&self, _run: &RunInfo) -> String {
        let mut parts: Vec<String> = self.tables().iter().map(Table::markdown).collect();
        parts.extend([
            "![time of low-entropy files by block size](plots/integrity-low.svg)\n".into(),
            "![time of high-entropy files by block size](plots/integrity-high.svg)\n".into(),
            self.method(),
        ]);
        parts.join("\n")
    }

    fn history(&self, run: &RunInfo, requirements: &[Requirement], old: &str) -> Option<String> {
        let figures = claims::history(&self.speeds);
        let cells = [&run.cells()[..], &figures, &[requirement::tally(requirements)]].concat();
        Some(HISTORY.with_row(old, &cells))
    }
}

impl IntegrityResults {
    fn method(&self) -> String {
        let wide = figure(TimeParts::of_wide(&self.speeds), 2);
        format!(
            "### Method for integrity\n\n\
- Everything runs in this process and in memory, on one thread. Encrypted blocks and US lie in memory that \
was touched before, so nothing waits for a disk. That favours MT-EINT: the paper read its paths from files \
and wrote them to files. The plain text is read and kept before any timing, and all data read is compared \
with it.\n\
- *Reference*: the algorithms of Figures 2, 3 and 6 to 10, as the paper prints them, except for the \
differences that [integrity.md](integrity.md) lists. They have SHA-256 for SHA-1 (nodes of 32 bytes instead \
of 20), HCTR2-256 for CMC, AES-256-XTS for AES-128-CBC, and LZ4 for zlib. A node is read from US each time \
it is needed. *Vault*: the schemes of files as users have them, with caches of 4 MiB a file. Between writing \
and reading, a file is closed (US is brought up to date) and opened anew. `none` is AES-256-XTS alone; \
lacuna does not offer it to users.\n\
- The files have 4096 bytes or more and come from /usr, /opt and the home directory; zeros pad them to whole \
blocks, as in the vault. The hash of the paths selects a sample, up to 64 MiB a class for blocks of 4096 \
bytes and 12 MiB for the other sizes. The paper's images are JPEG; this system has few of these, so other \
formats of images are included.\n\
- Requests have 128 KiB; all files of a class are written, then all are read. Times are the median of \
{repeats} repeats ({fewer} for the other block sizes). A ratio is the median of the ratios of the repeats; \
several classes have equal weight. Bandwidth counts every byte of US that is read or written: 32 for a node \
of the reference, up to 2048 for a page of the vault's trees.\n\
- Parts of the time: encryption is the row without integrity (HCTR2 here takes {wide} times the time of XTS, \
with copying; the paper's CMC takes 2.5 times that of AES). SHA-256, the entropy test, compression and \
decompression are timed alone over the same blocks. The rest is the time of the tree, the counters and US. \
In the paper, AES-Merkle spent 25 % of its write time waiting for the disk and 15 % at the root in an \
extended attribute; here neither exists.\n\
- Caches: *nodes found* is the share of US accesses that the cache saved. With 512 bytes (25 hashes; ours \
has 16) the paper found 77 % for text and 86 % for compressed files, and times that were better by 2 to 11 \
%.\n\
- Traces are **synthetic**, because the Harvard traces are not public. They match Table 6 exactly, and Table \
1 and Figure 17 nearly (a test checks it). The tails of Figures 4 and 5 are straight on a log-log scale, and \
everything else is a guess. One file of the trace is one file here; reads past an end are cut. The paper's \
Table 1 gives 1.79, 2.7 and 8.97 MB for a counter per block, which cannot be the mean of a file; ours counts \
4 bytes a block. Bandwidth and storage of 0 mean that no block had a hash in US.\n",
            repeats = self.speeds.repeats(),
            fewer = self.speeds.repeats().div_ceil(3),
        )
    }
}
