//! The section on a modelled hard disk and a modelled stick, for all formats: the effects of the
//! medium, without the noise of a real one. The figures are functions of the code alone: the same
//! on every machine.

use crate::measuring::section_results::{SectionResults, StableFigure};
use crate::modelled::in_process;
use crate::modelled::raw_disk::RawDisk;
use crate::modelled::simulated_disk::{CACHE_DIVISOR, MediumModel, Operation, SimulatedDisk};
use crate::modelled::{ModelledDisk, Sizes};
use crate::pages::page::{HistoryTable, RunInfo};
use crate::pages::requirement::{self, Bound, Requirement};
use crate::pages::table::{Table, figure, head};
use crate::workspace::Workspace;
use lacuna_contracts::{BLOCK_SIZE, Budget, Disk, Result};
use lacuna_crypto::Cipher;
use lacuna_medium::Medium;
use std::collections::HashMap;
use std::sync::Arc;

const HISTORY: HistoryTable = HistoryTable {
    heading: "### History of modelled media",
    about: "Ratios of speed to xts, on the hard disk and on the stick: gcm, deniable half full, oblivious; \
            each for sequential writes and random writes, until durable",
    head: &["date", "lacuna", "hard disk", "stick", "reached"],
};

/// The format on a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ModelledFormat {
    /// Unencrypted blocks: the cost of a disk without encryption, and of a cipher without metadata
    /// that writes in place.
    Raw,
    Sealed(Cipher),
    Levels(ModelledDisk),
}

const FORMATS: [ModelledFormat; 7] = [
    ModelledFormat::Raw,
    XTS,
    ModelledFormat::Sealed(Cipher::XtsRandom),
    GCM,
    HALF,
    ModelledFormat::Levels(ModelledDisk::Full),
    CELLS,
];
const XTS: ModelledFormat = ModelledFormat::Sealed(Cipher::Xts);
const GCM: ModelledFormat = ModelledFormat::Sealed(Cipher::Gcm);
const HALF: ModelledFormat = ModelledFormat::Levels(ModelledDisk::Half);
const CELLS: ModelledFormat = ModelledFormat::Levels(ModelledDisk::Oblivious);

const MODELS: [(MediumModel, &str); 2] =
    [(MediumModel::CachedHardDisk, "hard disk"), (MediumModel::Stick, "stick")];

/// An act: whether it is random, and its kind.
type MediaJob = (bool, MediaJobKind);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum MediaJobKind {
    /// An operation; writes end with a flush.
    FlushAtEnd(Operation),
    /// Writes of level 0 with a flush after every 32.
    FlushEvery32,
}

const PUBLIC_WRITE: MediaJobKind = MediaJobKind::FlushAtEnd(Operation::PublicWrite);
const PUBLIC_READ: MediaJobKind = MediaJobKind::FlushAtEnd(Operation::PublicRead);
const HIDDEN_WRITE: MediaJobKind = MediaJobKind::FlushAtEnd(Operation::HiddenWrite);

const JOBS: [(MediaJob, &str); 8] = [
    ((false, PUBLIC_WRITE), "sequential 1 MiB write, until durable"),
    ((false, MediaJobKind::FlushEvery32), "sequential 1 MiB write, flush every 32"),
    ((false, PUBLIC_READ), "sequential 1 MiB read"),
    ((true, PUBLIC_WRITE), "random 4 KiB write, until durable"),
    ((true, MediaJobKind::FlushEvery32), "random 4 KiB write, flush every 32"),
    ((true, PUBLIC_READ), "random 4 KiB read"),
    ((false, HIDDEN_WRITE), "hidden: sequential 1 MiB write, until durable"),
    ((true, HIDDEN_WRITE), "hidden: random 4 KiB write, until durable"),
];

/// The measured rates. Each disk holds half of the data of a full level; `ModelledDisk::Full`
/// and `ModelledDisk::Oblivious` differ.
struct MediaResults {
    /// Bytes per second.
    rates: HashMap<(MediumModel, ModelledFormat, MediaJob), f64>,
    sizes: Sizes,
}

impl ModelledFormat {
    fn name(self) -> String {
        match self {
            ModelledFormat::Raw => "raw".into(),
            ModelledFormat::Sealed(cipher) => format!("sealed {}", cipher.name()),
            ModelledFormat::Levels(case) => case.name().into(),
        }
    }

    fn open(self, medium: &Arc<dyn Medium>, budget: Budget) -> Result<Vec<Arc<dyn Disk>>> {
        match self {
            ModelledFormat::Raw => Ok(vec![Arc::new(RawDisk::new(Arc::clone(medium)))]),
            ModelledFormat::Sealed(cipher) => {
                let params = lacuna_sealed::Params::largest(cipher, medium.len())?;
                Ok(vec![in_process::sealed(medium, &params, budget)?])
            }
            ModelledFormat::Levels(case) => case.open(medium, budget),
        }
    }

    fn span(self, sizes: Sizes) -> Result<u64> {
        match self {
            ModelledFormat::Raw | ModelledFormat::Sealed(_) => ModelledDisk::Xts.span(sizes),
            ModelledFormat::Levels(case) => case.span(sizes),
        }
    }
}

/// Measures the section.
pub(crate) fn measure(work: &Workspace) -> Result<Box<dyn SectionResults>> {
    let sizes = Sizes::small(work)?;
    let mut media = MediaResults { rates: HashMap::new(), sizes };
    for format in FORMATS {
        work.report_progress(&format!("media: {}", format.name()))?;
        let budget = Budget::bytes(sizes.budget);
        let mut simulated =
            SimulatedDisk::new(sizes.medium, format.span(sizes)?, |medium| format.open(medium, budget))?;
        for random in [false, true] {
            work.interrupt.check()?;
            for (model, operation, rate) in simulated.age_and_run_jobs(random)? {
                media.rates.insert((model, format, (random, MediaJobKind::FlushAtEnd(operation))), rate);
            }
            for (model, rate) in simulated.run_synced_writes(random)? {
                media.rates.insert((model, format, (random, MediaJobKind::FlushEvery32)), rate);
            }
        }
    }
    Ok(Box::new(media))
}

impl MediaResults {
    fn ratio(
        &self,
        model: MediumModel,
        format: ModelledFormat,
        to: ModelledFormat,
        act: MediaJob,
    ) -> Option<f64> {
        let rate = |format| self.rates.get(&(model, format, act));
        Some(rate(format)? / rate(to)?)
    }

    /// MB/s, and the ratio to `xts`.
    fn table(&self, model: MediumModel, name: &str) -> Table {
        let formats = FORMATS.map(ModelledFormat::name);
        let mut table =
            Table::new(format!("On a modelled {name}, MB/s (to sealed xts)"), head("job", formats));
        for (act, name) in JOBS {
            let cell = |format| {
                let Some(rate) = self.rates.get(&(model, format, act)) else { return "-".into() };
                let decimals = if *rate < 1e7 { 2 } else { 0 };
                let base = if act.1 == HIDDEN_WRITE { (act.0, PUBLIC_WRITE) } else { act };
                let ratio = self.rates.get(&(model, XTS, base)).map(|base| rate / base);
                format!("{:.decimals$} ({})", rate / 1e6, figure(ratio, 2))
            };
            table.row(name, FORMATS.map(cell));
        }
        table
    }

    fn row(&self, model: MediumModel) -> String {
        let of = |format| {
            [false, true]
                .map(|random| figure(self.ratio(model, format, XTS, (random, PUBLIC_WRITE)), 2))
                .join(", ")
        };
        [GCM, HALF, CELLS].map(of).join(" / ")
    }
}

impl SectionResults for MediaResults {
    fn results(&self) -> Vec<Table> {
        MODELS.map(|(model, name)| self.table(model, name)).into()
    }

    fn tables(&self) -> Vec<Table> {
        self.results()
    }

    /// Bounds that depend on the medium: a format that writes each block twice has at most half the
    /// speed.
    fn requirements(&self) -> Vec<Requirement> {
        let promise = |line: &str, least: f64, format: ModelledFormat, acts: &[MediaJob]| {
            let line = format!("modelled media, speed to xts until durable: {line}");
            let mut promise = Requirement::new(line, Bound::AtLeast(least), "");
            for (model, medium) in MODELS {
                for act in acts {
                    let order = if act.0 { "random" } else { "sequential" };
                    promise.add(format!("{medium}, {order}"), self.ratio(model, format, XTS, *act));
                }
            }
            promise
        };
        let (sequential, random) = ((false, PUBLIC_WRITE), (true, PUBLIC_WRITE));
        vec![
            promise("gcm, writes", 0.85, GCM, &[sequential, random]),
            promise("deniable half full, sequential writes", 0.40, HALF, &[sequential]),
            promise("deniable half full, random writes", 1.5, HALF, &[random]),
            promise("oblivious, sequential writes", 0.08, CELLS, &[sequential]),
            promise("oblivious, random writes", 0.50, CELLS, &[random]),
        ]
    }

    fn stable(&self) -> Vec<StableFigure> {
        let mut all = Vec::new();
        for ((model, medium), format) in MODELS.into_iter().flat_map(|m| FORMATS.map(|format| (m, format))) {
            for (act, name) in JOBS {
                let rate = self.rates.get(&(model, format, act));
                all.extend(rate.map(|rate| StableFigure {
                    name: format!("{} on a {medium}, {name}", format.name()),
                    value: *rate,
                }));
            }
        }
        all
    }

    fn body(&self, _run: &RunInfo) -> String {
        let mut parts: Vec<String> = self.tables().iter().map(Table::markdown).collect();
        parts.push(format!(
            "### Method for modelled media\n\n\
- No time is measured. A model charges a time for every call to the medium, one call after another, and \
ignores the time of the processor. The hard disk is that of a laptop (5400 turns a minute, seeks of 8.9 ms \
on average, 100 MB/s). The stick has no map of single pages, so a write that does not follow the last one \
takes 10 ms more (20 MB/s in order, reads at 100 MB/s). Both lie behind a write-back cache of {held} MiB, \
like the page cache: the model charges the writes at a sync or when the cache is full, sorted, with adjacent \
writes merged.\n\
- The medium has {medium} MiB, and all caches of a disk together {budget} KiB. Each format writes and reads \
{data} MiB; *levels full* twice that, and *oblivious* five sixths of the size of its hidden level. Each disk \
is written twice from end to end before sequential requests of 1 MiB are measured. Before random requests of \
4 KiB are measured, random blocks are written, twice the number of blocks of the data. Writes include a \
flush at their end.\n\
- An equal number of public writes goes beside hidden writes. Only the bytes of the hidden level count, and \
the ratio is to the public writes of `xts`.\n\
- *raw*: the blocks themselves, without a format. LUKS without a journal makes the same calls to its \
medium.\n",
            held = (self.sizes.medium / CACHE_DIVISOR) >> 20,
            medium = self.sizes.medium >> 20,
            budget = self.sizes.budget >> 10,
            data = (self.sizes.full_level_blocks / 2 * BLOCK_SIZE as u64) >> 20,
        ));
        parts.join("\n")
    }

    fn history(&self, run: &RunInfo, requirements: &[Requirement], old: &str) -> Option<String> {
        let figures = [
            self.row(MediumModel::CachedHardDisk),
            self.row(MediumModel::Stick),
            requirement::tally(requirements),
        ];
        Some(HISTORY.with_row(old, &[&run.short_cells()[..], &figures].concat()))
    }
}
