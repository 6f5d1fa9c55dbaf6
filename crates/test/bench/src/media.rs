//! The section on a modelled hard disk and a modelled stick, for all formats: the effects of the
//! medium, without the noise of a real one. The figures are functions of the code alone: the same
//! on every machine.

use crate::bed::{Bed, HELD_BACK, Model, Operation};
use crate::in_process;
use crate::measured::{Measured, Stable};
use crate::modelled::{Case, Sizes};
use crate::page::{History, Run};
use crate::raw_disk::RawDisk;
use crate::requirement::{self, Bound, Requirement};
use crate::table::{Table, figure, head};
use crate::workspace::Workspace;
use lacuna_contracts::{BLOCK_SIZE, Budget, Disk, Result};
use lacuna_crypto::Cipher;
use lacuna_medium::Medium;
use std::collections::HashMap;
use std::sync::Arc;

const HISTORY: History = History {
    heading: "### History of modelled media",
    about: "Ratios of speed to xts, on the hard disk and on the stick: gcm, deniable half full, oblivious; \
            each for sequential writes and random writes, until durable",
    head: &["date", "lacuna", "hard disk", "stick", "reached"],
};

/// The format on a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Format {
    /// Unencrypted blocks: the cost of a disk without encryption, and of a cipher without metadata
    /// that writes in place.
    Raw,
    Sealed(Cipher),
    Levels(Case),
}

const FORMATS: [Format; 7] =
    [Format::Raw, XTS, Format::Sealed(Cipher::XtsRandom), GCM, HALF, Format::Levels(Case::Full), CELLS];
const XTS: Format = Format::Sealed(Cipher::Xts);
const GCM: Format = Format::Sealed(Cipher::Gcm);
const HALF: Format = Format::Levels(Case::Half);
const CELLS: Format = Format::Levels(Case::Oblivious);

const MODELS: [(Model, &str); 2] = [(Model::CachedHardDisk, "hard disk"), (Model::Stick, "stick")];

/// An act: whether it is random, and its kind.
type Act = (bool, What);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    /// An operation; writes end with a flush.
    Until(Operation),
    /// Writes of level 0 with a flush after every 32.
    Flushed,
}

const PUBLIC_WRITE: What = What::Until(Operation::PublicWrite);
const PUBLIC_READ: What = What::Until(Operation::PublicRead);
const HIDDEN_WRITE: What = What::Until(Operation::HiddenWrite);

const ACTS: [(Act, &str); 8] = [
    ((false, PUBLIC_WRITE), "sequential 1 MiB write, until durable"),
    ((false, What::Flushed), "sequential 1 MiB write, flush every 32"),
    ((false, PUBLIC_READ), "sequential 1 MiB read"),
    ((true, PUBLIC_WRITE), "random 4 KiB write, until durable"),
    ((true, What::Flushed), "random 4 KiB write, flush every 32"),
    ((true, PUBLIC_READ), "random 4 KiB read"),
    ((false, HIDDEN_WRITE), "hidden: sequential 1 MiB write, until durable"),
    ((true, HIDDEN_WRITE), "hidden: random 4 KiB write, until durable"),
];

/// The measured rates. Each disk holds half of the data of a full level; `Case::Full` and
/// `Case::Oblivious` differ.
struct Media {
    /// Bytes per second.
    rates: HashMap<(Model, Format, Act), f64>,
    sizes: Sizes,
}

impl Format {
    fn name(self) -> String {
        match self {
            Format::Raw => "raw".into(),
            Format::Sealed(cipher) => format!("sealed {}", cipher.name()),
            Format::Levels(case) => case.name().into(),
        }
    }

    fn open(self, medium: &Arc<dyn Medium>, budget: Budget) -> Result<Vec<Arc<dyn Disk>>> {
        match self {
            Format::Raw => Ok(vec![Arc::new(RawDisk::new(Arc::clone(medium)))]),
            Format::Sealed(cipher) => {
                let params = lacuna_sealed::Params::largest(cipher, medium.len())?;
                Ok(vec![in_process::sealed(medium, &params, budget)?])
            }
            Format::Levels(case) => case.open(medium, budget),
        }
    }

    fn span(self, sizes: Sizes) -> Result<u64> {
        match self {
            Format::Raw | Format::Sealed(_) => Case::Xts.span(sizes),
            Format::Levels(case) => case.span(sizes),
        }
    }
}

/// Measures the section.
pub(crate) fn measure(work: &Workspace) -> Result<Box<dyn Measured>> {
    let sizes = Sizes::smaller(work)?;
    let mut media = Media { rates: HashMap::new(), sizes };
    for format in FORMATS {
        work.goes_on(&format!("media: {}", format.name()))?;
        let budget = Budget::bytes(sizes.budget);
        let mut bed = Bed::new(sizes.medium, format.span(sizes)?, |medium| format.open(medium, budget))?;
        for random in [false, true] {
            work.interrupt.check()?;
            for (model, operation, rate) in bed.aged_jobs(random)? {
                media.rates.insert((model, format, (random, What::Until(operation))), rate);
            }
            for (model, rate) in bed.synced(random)? {
                media.rates.insert((model, format, (random, What::Flushed)), rate);
            }
        }
    }
    Ok(Box::new(media))
}

impl Media {
    fn ratio(&self, model: Model, format: Format, to: Format, act: Act) -> Option<f64> {
        let rate = |format| self.rates.get(&(model, format, act));
        Some(rate(format)? / rate(to)?)
    }

    /// MB/s, and the ratio to `xts`.
    fn table(&self, model: Model, name: &str) -> Table {
        let formats = FORMATS.map(Format::name);
        let mut table =
            Table::new(format!("On a modelled {name}, MB/s (to sealed xts)"), head("job", formats));
        for (act, name) in ACTS {
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

    fn row(&self, model: Model) -> String {
        let of = |format| {
            [false, true]
                .map(|random| figure(self.ratio(model, format, XTS, (random, PUBLIC_WRITE)), 2))
                .join(", ")
        };
        [GCM, HALF, CELLS].map(of).join(" / ")
    }
}

impl Measured for Media {
    fn results(&self) -> Vec<Table> {
        MODELS.map(|(model, name)| self.table(model, name)).into()
    }

    fn tables(&self) -> Vec<Table> {
        self.results()
    }

    /// Bounds that depend on the medium: a format that writes each block twice has at most half the
    /// speed.
    fn requirements(&self) -> Vec<Requirement> {
        let promise = |line: &str, least: f64, format: Format, acts: &[Act]| {
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

    fn stable(&self) -> Vec<Stable> {
        let mut all = Vec::new();
        for ((model, medium), format) in MODELS.into_iter().flat_map(|m| FORMATS.map(|format| (m, format))) {
            for (act, name) in ACTS {
                let rate = self.rates.get(&(model, format, act));
                all.extend(rate.map(|rate| Stable {
                    name: format!("{} on a {medium}, {name}", format.name()),
                    value: *rate,
                }));
            }
        }
        all
    }

    fn body(&self, _run: &Run) -> String {
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
            held = (self.sizes.medium / HELD_BACK) >> 20,
            medium = self.sizes.medium >> 20,
            budget = self.sizes.budget >> 10,
            data = (self.sizes.whole / 2 * BLOCK_SIZE as u64) >> 20,
        ));
        parts.join("\n")
    }

    fn history(&self, run: &Run, requirements: &[Requirement], old: &str) -> Option<String> {
        let figures =
            [self.row(Model::CachedHardDisk), self.row(Model::Stick), requirement::tally(requirements)];
        Some(HISTORY.and(old, &[&run.short_cells()[..], &figures].concat()))
    }
}
