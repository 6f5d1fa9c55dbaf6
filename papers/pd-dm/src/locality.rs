//! Section 6 of PD-DM: logical data that is written together is stored together. Counts sequential
//! reads of data that was written sequentially and then partly overwritten at random.

use crate::paper_tables::megabytes;
use lacuna_bench::modelled::simulated_disk::{SEQUENTIAL_BLOCKS, SimulatedDisk};
use lacuna_bench::modelled::{ModelledDisk, Sizes};
use lacuna_bench::pages::table::Table;
use lacuna_bench::workspace::Workspace;
use lacuna_contracts::{BLOCK_SIZE, Budget, Result};

/// The measured disks.
const CASES: [ModelledDisk; 4] =
    [ModelledDisk::Xts, ModelledDisk::Half, ModelledDisk::Paper, ModelledDisk::Oblivious];
/// Random writes before the data is read, in percent of its blocks.
const OVERWRITTEN: [u64; 3] = [0, 10, 50];

/// One sequential read of a whole level.
struct SequentialRead {
    case: ModelledDisk,
    level: usize,
    overwritten: u64,
    /// Extents read from the medium for each request of 1 MiB, modelled seeks for each request, and
    /// KiB per run.
    extents: f64,
    seeks: f64,
    run: f64,
    /// Bytes of data per second.
    rate: f64,
}

pub(crate) struct Locality {
    readings: Vec<SequentialRead>,
}

pub(crate) fn measure(work: &Workspace) -> Result<Locality> {
    let sizes = Sizes::of(work)?;
    let mut readings = Vec::new();
    for case in CASES {
        work.report_progress(&format!("models: locality, {}", case.name()))?;
        let span = case.span(sizes)?;
        let budget = Budget::bytes(sizes.budget);
        let mut simulated_disk = SimulatedDisk::new(sizes.medium, span, |medium| case.open(medium, budget))?;
        for _ in 0..2 {
            simulated_disk.write(false, span)?;
        }
        let mut before = 0;
        for overwritten in OVERWRITTEN {
            work.interrupt.check()?;
            simulated_disk.write(true, span * (overwritten - before) / 100)?;
            before = overwritten;
            for level in 0..simulated_disk.levels() {
                readings.push(read(&mut simulated_disk, case, level, overwritten)?);
            }
        }
    }
    Ok(Locality { readings })
}

fn read(
    simulated_disk: &mut SimulatedDisk,
    case: ModelledDisk,
    level: usize,
    overwritten: u64,
) -> Result<SequentialRead> {
    let span = simulated_disk.span;
    let (before, seeks_before, then) = simulated_disk.paper_disk_costs();
    simulated_disk.read(level, false, span)?;
    let (found, seeks, now) = simulated_disk.paper_disk_costs();
    let each = |count: u64| count as f64 / span as f64 * SEQUENTIAL_BLOCKS as f64;
    Ok(SequentialRead {
        case,
        level,
        overwritten,
        extents: each(found.extents - before.extents),
        seeks: each(seeks - seeks_before),
        run: (found.bytes - before.bytes) as f64 / 1024.0 / (found.runs - before.runs).max(1) as f64,
        rate: (span * BLOCK_SIZE as u64) as f64 / now.saturating_sub(then).as_secs_f64(),
    })
}

impl Locality {
    pub(crate) fn table(&self) -> Table {
        let head = [
            "disk",
            "level",
            "overwritten at random",
            "reads of the medium for 1 MiB",
            "KiB in a run",
            "seeks for 1 MiB",
            "MB/s",
        ];
        let mut table = Table::new("Locality: sequential reads, hard disk (paper 000, section 6)", head);
        for reading in &self.readings {
            let mut cells = vec![reading.level.to_string(), format!("{}%", reading.overwritten)];
            cells.extend([reading.extents, reading.run, reading.seeks].map(|count| format!("{count:.1}")));
            cells.push(megabytes(reading.rate / 1e6));
            table.row(reading.case.name(), cells);
        }
        table
    }
}

/// How the figures are obtained.
pub(crate) fn method() -> String {
    format!(
        "- Section 6: the disks of Tables 2 to 4 are written twice from end to end, both levels together. \
Then they are read from end to end in requests of 1 MiB, {SEQUENTIAL_BLOCKS} blocks. They are read again after random \
writes of single blocks to both levels: a tenth of the number of data blocks, then half of it in all. A \
*read* is one extent of a call to the medium; reads of summaries and pages of the map count. A *run* is a \
series of reads without a gap, on `deniable` most often a summary and the blocks that it lists. A *seek* is \
one of the model, which counts none where letting the bytes between pass is faster.\n",
    )
}
