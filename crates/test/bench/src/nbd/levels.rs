//! The section on formats with levels: `deniable` and `oblivious` over NBD, beside `sealed` with
//! `xts` and the raw file, on the same file system in the same rounds.

use crate::measuring::section_results::{SectionResults, StableFigure};
use crate::pages::page::{HistoryTable, RunInfo};
use crate::pages::requirement::{self, Bound, Requirement};
use crate::pages::table::{Table, figure, head};
use crate::serving::grid::Grid;
use crate::serving::job::{Direction, IoJob};
use crate::serving::processor_ratios::{ProcessorRatios, SideBySide};
use crate::serving::rounds::Rounds;
use crate::serving::scale::Scale;
use crate::serving::servers;
use crate::serving::subject::{DeniableShape, ObliviousVariant, Subject, XTS};
use crate::workspace::Workspace;
use lacuna_contracts::Result;

const HISTORY: HistoryTable = HistoryTable {
    heading: "### History of levels",
    about: "Ratios of processor time to xts: deniable, its hidden level, oblivious, its hidden level; each \
            for sequential writes, sequential reads, random writes, random reads",
    head: &[
        "date",
        "lacuna",
        "processor",
        "rounds",
        "deniable",
        "hidden",
        "oblivious",
        "oblivious hidden",
        "reached",
    ],
};

const FULL: Subject = Subject::Levels(DeniableShape::Full);
const WORN: Subject = Subject::Levels(DeniableShape::Worn);
const HALF: Subject = Subject::Levels(DeniableShape::Half);
const PAPER: Subject = Subject::Levels(DeniableShape::Paper);
/// The hidden level of a disk, with equal writes to level 0 at the same time.
const HIDDEN: Subject = Subject::Levels(DeniableShape::Hidden);

const RAW: Subject = Subject::NbdkitFile;
const CELLS: Subject = Subject::Oblivious(ObliviousVariant::Opportunistic);
const CELLS_HIDDEN: Subject = Subject::Oblivious(ObliviousVariant::Hidden);
const PLAUSIBLE: Subject = Subject::Oblivious(ObliviousVariant::Plausible);

const WRITE: IoJob = IoJob::of_size(Direction::Write, 1 << 20);
const READ: IoJob = IoJob::of_size(Direction::Read, 1 << 20);
const RANDOM_WRITE: IoJob = IoJob::of_size(Direction::Write, 4096);
const RANDOM_READ: IoJob = IoJob::of_size(Direction::Read, 4096);
const JOBS: [IoJob; 4] = [WRITE, READ, RANDOM_WRITE, RANDOM_READ];

/// These formats are slower than the rest: their turns have this fraction of the requests.
const REQUESTS_DIVISOR: u64 = 4;

/// The subjects, in the order of the columns.
const SUBJECTS: [Subject; 9] = [RAW, XTS, FULL, WORN, HALF, HIDDEN, CELLS, CELLS_HIDDEN, PLAUSIBLE];

/// The subjects that run side by side on one processor.
const STEADY: [Subject; 3] = [XTS, HALF, CELLS];

struct LevelsResults {
    grid: Grid,
    ratios: ProcessorRatios,
    skipped: Vec<String>,
}

/// Measures the section.
pub(crate) fn measure(work: &Workspace) -> Result<Box<dyn SectionResults>> {
    let mut rounds = Rounds::new(work, "levels");
    // The second pass wraps the log around; after it a disk is in its steady state.
    (rounds.fills, rounds.requests_divisor) = (2, REQUESTS_DIVISOR);
    let skipped: Vec<String> = RAW.unavailable_reason().into_iter().collect();
    if skipped.is_empty() {
        rounds.add(RAW, &JOBS);
    }
    rounds.add(XTS, &JOBS);
    rounds.add(FULL, &[WRITE, READ, RANDOM_READ]);
    rounds.add(HIDDEN, &[WRITE, READ, RANDOM_READ]);
    // Random writes change the speed of later sequential writes to a log, so they get disks of
    // their own.
    rounds.add(WORN, &[RANDOM_WRITE]);
    rounds.add(HALF, &[RANDOM_WRITE]);
    rounds.add(PAPER, &[WRITE]);
    rounds.add(CELLS, &JOBS);
    rounds.add(CELLS_HIDDEN, &JOBS);
    rounds.add(PLAUSIBLE, &[WRITE, RANDOM_WRITE, RANDOM_READ]);
    let grid = rounds.run()?;
    let ratios = SideBySide { section: "levels", subjects: &STEADY, jobs: &JOBS }.measure(work)?;
    Ok(Box::new(LevelsResults { grid, ratios, skipped }))
}

impl LevelsResults {
    fn write_requirement(&self, line: &str, most: f64, subject: Subject, job: IoJob) -> Requirement {
        let line = format!("bytes written to the medium for a byte: {line}");
        let written = self.grid.counted(subject, job).map(|counted| counted.written);
        Requirement::new(line, Bound::AtMost(most), "").case("", written)
    }

    fn ratios(&self) -> [Table; 2] {
        let subjects = &SUBJECTS[2..];
        let columns = || head("job", subjects.iter().map(|subject| subject.name()));
        let mut time = Table::new("Levels: processor time to xts", columns());
        let mut speed = Table::new("Levels: speed to xts, writes until durable", columns());
        for job in JOBS {
            time.row(job.name(), subjects.iter().map(|s| self.grid.processor_ratio_cell(*s, XTS, job)));
            speed.row(job.name(), subjects.iter().map(|s| self.grid.ratio_cell(*s, XTS, job, true)));
        }
        [time, speed]
    }
}

impl SectionResults for LevelsResults {
    fn results(&self) -> Vec<Table> {
        let subjects = [XTS, FULL, HALF, HIDDEN, CELLS, CELLS_HIDDEN];
        let mut table =
            Table::new("Levels: speed, writes until durable", head("job", subjects.map(Subject::name)));
        for job in JOBS {
            table.row(job.name(), subjects.map(|subject| self.grid.cell(subject, job, true)));
        }
        let mut time =
            Table::new("Levels: processor time of the server", head("job", subjects.map(Subject::name)));
        for job in JOBS {
            time.row(servers::with_unit(job), subjects.map(|s| self.grid.processor_cell(s, job)));
        }
        vec![table, time]
    }

    fn tables(&self) -> Vec<Table> {
        let mut subjects = SUBJECTS.to_vec();
        subjects.push(PAPER);
        let mut tables = Vec::from(self.ratios());
        tables.extend(self.ratios.table());
        tables.extend(servers::tables(&self.grid, "Disks with levels", &subjects, &JOBS));
        tables
    }

    /// Limits of processor time, from the earlier speed requirements: 0.4 of the speed allows 2.5
    /// times the processor time.
    fn requirements(&self) -> Vec<Requirement> {
        let to_xts = |line: &str, most: f64, cases: &[(&str, Subject, IoJob)]| {
            let line = format!("processor time to xts: {line}");
            cases.iter().fold(Requirement::new(line, Bound::AtMost(most), ""), |r, (name, subject, job)| {
                r.case(*name, self.grid.processor_ratio(*subject, XTS, *job))
            })
        };
        vec![
            to_xts("deniable, public sequential writes", 2.5, &[("", FULL, WRITE)]),
            to_xts(
                "deniable, hidden sequential writes beside equal writes to level 0",
                4.0,
                &[("", HIDDEN, WRITE)],
            ),
            to_xts("deniable, sequential reads", 1.11, &[("public", FULL, READ), ("hidden", HIDDEN, READ)]),
            to_xts(
                "deniable, random 4 KiB reads",
                1.05,
                &[("public", FULL, RANDOM_READ), ("hidden", HIDDEN, RANDOM_READ)],
            ),
            to_xts("deniable, random 4 KiB writes, half full", 0.67, &[("", HALF, RANDOM_WRITE)]),
            to_xts("deniable, random 4 KiB writes, full", 1.0, &[("", WORN, RANDOM_WRITE)]),
            Requirement::new(
                "processor time of the paper's geometry to the default",
                Bound::AtLeast(3.0),
                "",
            )
            .case("", self.grid.processor_ratio(PAPER, FULL, WRITE)),
            to_xts(
                "oblivious, sequential writes",
                12.5,
                &[("public", CELLS, WRITE), ("plausible", PLAUSIBLE, WRITE)],
            ),
            to_xts(
                "oblivious, hidden sequential writes beside equal writes to level 0",
                20.0,
                &[("", CELLS_HIDDEN, WRITE)],
            ),
            to_xts(
                "oblivious, random 4 KiB writes",
                2.0,
                &[
                    ("public", CELLS, RANDOM_WRITE),
                    ("hidden", CELLS_HIDDEN, RANDOM_WRITE),
                    ("plausible", PLAUSIBLE, RANDOM_WRITE),
                ],
            ),
            to_xts(
                "oblivious, random 4 KiB reads",
                1.18,
                &[("public", CELLS, RANDOM_READ), ("hidden", CELLS_HIDDEN, RANDOM_READ)],
            ),
            self.write_requirement("deniable, sequential", 2.5, FULL, WRITE),
            self.write_requirement("deniable, random, half full", 4.0, HALF, RANDOM_WRITE),
            self.write_requirement("oblivious, sequential", 12.0, CELLS, WRITE),
            self.write_requirement("oblivious, random", 12.0, CELLS, RANDOM_WRITE),
        ]
    }

    fn stable(&self) -> Vec<StableFigure> {
        // Writes beside a hidden level depend on the timing of two clients, so they are not stable.
        let alone = [FULL, WORN, HALF, CELLS, PLAUSIBLE];
        let mut all = servers::stable(&self.grid, &alone, &JOBS);
        all.extend(self.ratios.stable());
        all
    }

    fn skipped(&self) -> &[String] {
        &self.skipped
    }

    fn body(&self, run: &RunInfo) -> String {
        let mut parts: Vec<String> = self.tables().iter().map(Table::markdown).collect();
        parts.push(method(&run.scale));
        parts.join("\n")
    }

    fn history(&self, run: &RunInfo, requirements: &[Requirement], old: &str) -> Option<String> {
        let row =
            |subject| JOBS.map(|job| figure(self.grid.processor_ratio(subject, XTS, job), 2)).join(" / ");
        let [full, hidden, cells, deep] = [FULL, HIDDEN, CELLS, CELLS_HIDDEN].map(row);
        let figures = [full, hidden, cells, deep, requirement::tally(requirements)];
        Some(HISTORY.with_row(old, &[&run.cells()[..], &figures].concat()))
    }
}

fn method(scale: &Scale) -> String {
    format!(
        "### Method for levels\n\n\
- The method is that for [servers](#method-for-servers), with disks of {disk} MiB in files beside each \
other. Each disk is filled twice from end to end. A turn has a quarter of the requests, but sequential \
writes go over the whole disk, once.\n\
- *One state*: each close writes cover of an eighth of the log, and a fifth of the room of a full level is \
spare. With one close in each pass over the disk, a log that was written in order stays in order, and every \
turn finds it as the turn before did. The last line of the history that was measured in another way is of \
2026-11-28 (ca66365). In the lines up to it, sequential writes went to the first half of the disk again and \
again, and a second close came before each turn. Their processor times and speeds include much carrying of \
the other half. The bytes on the medium were counted before that began, so the two were not of one state.\n\
- *full*: the data fills level 0, with a spare factor of 0.2; for sequential writes and all reads. *worn*: \
the same, for random writes alone. *half*: level 0 is twice as large as the data. *paper*: a stripe has one \
public and one hidden block (`--geometry paper`). *hidden*: the hidden level of a disk with two levels, also \
twice as large as the data. A level that is full to the last block, and was written before at other \
addresses, reaches half of the speed of *hidden* for some laps of the log. During hidden writes, a second \
client writes level 0 in the same way: it starts before the first hidden write and goes on until the last \
one is durable. The processor time and counts are the sums for both clients, for each hidden request; they \
depend on the timing of the two clients.\n\
- The disks have no paced cover (`--cover 0`), because the figures would include it. *hidden* has the \
default, one stripe a second.\n\
- *oblivious*: level 0 of a disk with levels of the size of the data, on a medium six and a half times as \
large. *oblivious hidden*: the hidden level of such a disk; level 0 is written beside it as above, so the \
number of bytes written is twice that in the table. *oblivious plausible*: level 0 of a disk made with \
`--hiding plausible`, where reads write as well. *nbdkit file* is the raw file, without encryption.\n\
- A log, a ring and a journal need an order of writes on the medium, so disks with levels sync the medium \
during a job; *xts* does not. The section on [modelled media](#on-a-modelled-hard-disk-and-stick) shows the \
cost on a medium that is not a host's cache.\n\
- `crates/formats/deniable/tests/amplification.rs` counts the medium blocks for each block. Sequential \
writes take 2.21 blocks on the first pass and 2.01 afterwards. Uniform random writes on a full level with 8 \
and 8 slots take 11.4, 5.83 and 3.16 blocks at ρ of 0.1, 0.2 and 0.4; Equation 1 of paper 000 gives 10.6, \
5.63 and 3.13.\n",
        disk = scale.disk >> 20,
    )
}
