//! Section 6: the formats with levels, `deniable` and `oblivious`, beside `sealed` with `xts` and the raw file, on the same
//! file system in the same run; and what `deniable` writes for every block it takes.

use crate::args::Scale;
use crate::fio::{Direction, Job};
use crate::grid::Grid;
use crate::page::{History, Run};
use crate::requirement::{self, Bound, Requirement};
use crate::rounds::Rounds;
use crate::subject::{Shape, Subject, Variant, XTS};
use crate::table::{Table, figure, head};
use crate::workspace::Workspace;
use lacuna_core::Result;

const HISTORY: History = History {
    heading: "### History of levels",
    about: "Ratios",
    head: &[
        "date",
        "lacuna",
        "processor",
        "repeats",
        "public / hidden sequential writes",
        "public / hidden sequential reads",
        "random reads",
        "random writes half full / full",
        "to paper's geometry",
        "reached",
    ],
};
const CELLS_HISTORY: History = History {
    heading: "### History of oblivious levels",
    about: "Ratios",
    head: &[
        "date",
        "lacuna",
        "public / hidden / plausible sequential writes",
        "public / hidden / plausible random writes",
        "public / hidden / plausible random reads",
        "to the raw file: sequential writes",
    ],
};

const FULL: Subject = Subject::Levels(Shape::Full);
const WORN: Subject = Subject::Levels(Shape::Worn);
const HALF: Subject = Subject::Levels(Shape::Half);
const PAPER: Subject = Subject::Levels(Shape::Paper);
/// The hidden level of a disk, while level 0 is written as much.
const HIDDEN: Subject = Subject::Levels(Shape::Hidden);

const RAW: Subject = Subject::NbdkitFile;
const CELLS: Subject = Subject::Oblivious(Variant::Opportunistic);
const CELLS_HIDDEN: Subject = Subject::Oblivious(Variant::Hidden);
const PLAUSIBLE: Subject = Subject::Oblivious(Variant::Plausible);

const fn job(direction: Direction, random: bool) -> Job {
    let (size, depth) = if random { (4096, 32) } else { (1 << 20, 8) };
    Job { direction, random, size, depth, fsync: None }
}

const WRITE: Job = job(Direction::Write, false);
/// Where all pay for the medium.
const SYNCED: Job = Job { fsync: Some(64), ..WRITE };
const READ: Job = job(Direction::Read, false);
const RANDOM_WRITE: Job = job(Direction::Write, true);
const RANDOM_READ: Job = job(Direction::Read, true);

/// Bytes of each disk: all of them together are to stay in the page cache, for it is not the medium that is compared.
fn size(scale: Scale) -> u64 {
    scale.disk / 4
}

pub(crate) struct Levels {
    deniable: Grid,
    /// The formats beside each other, in turns of their own: the disks of all turns together would be more than
    /// the page cache keeps.
    formats: Grid,
}

pub(crate) fn measure(work: &Workspace) -> Result<Levels> {
    // The second time the log goes round: from then on nothing about a disk is new any more. Pages that the file
    // system, or a hypervisor below it, has taken back meanwhile are fetched in the time that does not count.
    let job = work.scale.peer_job;
    let rounds = |section, size| {
        let mut rounds = Rounds::new(work, section, job);
        (rounds.size, rounds.fills, rounds.ramp) = (size, 2, 2 * job);
        rounds
    };
    let mut deniable = rounds("levels", size(work.scale));
    deniable.add(XTS, &[WRITE, READ, RANDOM_READ, RANDOM_WRITE]);
    deniable.add(FULL, &[WRITE, READ, RANDOM_READ]);
    deniable.add(HIDDEN, &[WRITE, READ, RANDOM_READ]);
    // Random writes leave a log whose sequential writes are not what they were: they have disks of their own.
    deniable.add(WORN, &[RANDOM_WRITE]);
    deniable.add(HALF, &[RANDOM_WRITE]);
    deniable.add(PAPER, &[WRITE]);
    let deniable = deniable.run()?;
    // An oblivious disk is six to fourteen times as large as what is written to it.
    let mut formats = rounds("formats with levels", size(work.scale) / 2);
    formats.add(FULL, &[WRITE, SYNCED, READ, RANDOM_READ]);
    formats.add(HALF, &[RANDOM_WRITE]);
    for subject in [RAW, XTS, CELLS, CELLS_HIDDEN, PLAUSIBLE] {
        if subject.missing().is_none() {
            formats.add(subject, &[WRITE, READ, RANDOM_READ, RANDOM_WRITE]);
        }
    }
    for subject in [RAW, XTS, CELLS].into_iter().filter(|subject| subject.missing().is_none()) {
        formats.add(subject, &[SYNCED]);
    }
    Ok(Levels { deniable, formats: formats.run()? })
}

impl Levels {
    pub(crate) fn tables(&self) -> Vec<Table> {
        let levels = [XTS, FULL, HIDDEN, WORN, HALF, PAPER];
        let deniable = pair(&self.deniable, "Levels beside sealed xts", "Levels", &levels);
        let formats = [RAW, XTS, FULL, HALF, CELLS, CELLS_HIDDEN, PLAUSIBLE];
        let title = "Sealed, deniable and oblivious";
        deniable.into_iter().chain(pair(&self.formats, title, title, &formats)).collect()
    }

    /// The promises about levels.
    pub(crate) fn requirements(&self) -> Vec<Requirement> {
        let in_turns = |grid: &Grid, line: &str, least: f64, cases: &[(&str, Subject, Job)]| {
            let requirement = Requirement::new(format!("levels to xts: {line}"), Bound::AtLeast(least), "");
            cases
                .iter()
                .fold(requirement, |r, (name, subject, job)| r.case(*name, grid.ratio(*subject, XTS, *job)))
        };
        let to_xts = |line: &str, least, cases: &[_]| in_turns(&self.deniable, line, least, cases);
        let cells_to_xts = |line: &str, least, cases: &[_]| in_turns(&self.formats, line, least, cases);
        vec![
            to_xts("public sequential writes", 0.40, &[("", FULL, WRITE)]),
            to_xts("hidden sequential writes, level 0 written as much", 0.25, &[("", HIDDEN, WRITE)]),
            to_xts("sequential reads", 0.90, &[("public", FULL, READ), ("hidden", HIDDEN, READ)]),
            to_xts(
                "random 4 KiB reads, depth 32",
                0.95,
                &[("public", FULL, RANDOM_READ), ("hidden", HIDDEN, RANDOM_READ)],
            ),
            to_xts("random 4 KiB writes, depth 32, half full", 1.5, &[("", HALF, RANDOM_WRITE)]),
            to_xts("random 4 KiB writes, depth 32, full", 1.0, &[("", WORN, RANDOM_WRITE)]),
            Requirement::new("default geometry to the paper's: sequential writes", Bound::AtLeast(3.0), "")
                .case("", self.deniable.ratio(FULL, PAPER, WRITE)),
            cells_to_xts(
                "oblivious, sequential writes",
                0.08,
                &[("public", CELLS, WRITE), ("plausible", PLAUSIBLE, WRITE)],
            ),
            cells_to_xts(
                "oblivious, hidden sequential writes, level 0 written as much",
                0.05,
                &[("", CELLS_HIDDEN, WRITE)],
            ),
            cells_to_xts(
                "oblivious, random 4 KiB writes, depth 32",
                0.50,
                &[
                    ("public", CELLS, RANDOM_WRITE),
                    ("hidden", CELLS_HIDDEN, RANDOM_WRITE),
                    ("plausible", PLAUSIBLE, RANDOM_WRITE),
                ],
            ),
            cells_to_xts(
                "oblivious, random 4 KiB reads, depth 32",
                0.85,
                &[("public", CELLS, RANDOM_READ), ("hidden", CELLS_HIDDEN, RANDOM_READ)],
            ),
        ]
    }

    /// The part of the page, to stand in the place of an old one.
    pub(crate) fn part(&self, run: &Run, old: &str) -> String {
        let requirements = self.requirements();
        let mut parts = requirement::opening(&format!("Levels: run of {}", run.date), &requirements);
        parts.extend(self.tables().iter().map(Table::markdown));
        parts.push(method(&run.scale));
        parts.push(self.history(&requirements, run, old));
        parts.push(self.cells_history(run, old));
        parts.join("\n")
    }

    fn history(&self, requirements: &[Requirement], run: &Run, old: &str) -> String {
        let to_xts = |subject, job| self.deniable.ratio_cell(subject, XTS, job);
        let figures = [
            format!("{} / {}", to_xts(FULL, WRITE), to_xts(HIDDEN, WRITE)),
            format!("{} / {}", to_xts(FULL, READ), to_xts(HIDDEN, READ)),
            to_xts(FULL, RANDOM_READ),
            format!("{} / {}", to_xts(HALF, RANDOM_WRITE), to_xts(WORN, RANDOM_WRITE)),
            self.deniable.ratio_cell(FULL, PAPER, WRITE),
            requirement::tally(requirements),
        ];
        HISTORY.and(old, &[&run.cells()[..], &figures].concat())
    }

    fn cells_history(&self, run: &Run, old: &str) -> String {
        let to = |base, subject, job| figure(self.formats.ratio(subject, base, job), 3);
        let to_xts = |job| [CELLS, CELLS_HIDDEN, PLAUSIBLE].map(|subject| to(XTS, subject, job)).join(" / ");
        let ratios = [to_xts(WRITE), to_xts(RANDOM_WRITE), to_xts(RANDOM_READ), to(RAW, CELLS, WRITE)];
        CELLS_HISTORY.and(old, &[&run.short_cells()[..], &ratios].concat())
    }
}

/// The speeds of some, and their ratios to `xts`.
fn pair(grid: &Grid, title: &str, name: &str, subjects: &[Subject]) -> [Table; 2] {
    let head = head("job", subjects.iter().map(|subject| subject.name()));
    let mut speeds = Table::new(title, head.clone());
    let mut ratios = Table::new(format!("{name}: ratio to sealed xts"), head);
    let any = |job: &Job| subjects.iter().any(|subject| grid.ratio(*subject, XTS, *job).is_some());
    for job in [WRITE, SYNCED, READ, RANDOM_READ, RANDOM_WRITE].into_iter().filter(any) {
        speeds.row(job.name(), subjects.iter().map(|subject| grid.cell(*subject, job)));
        ratios.row(job.name(), subjects.iter().map(|subject| grid.ratio_cell(*subject, XTS, job)));
    }
    [speeds, ratios]
}

fn method(scale: &Scale) -> String {
    format!(
        "### Method for levels\n\n\
- Disks of {disk} MiB in files beside each other, filled from end to end twice, served over NBD by one server at a time, \
{repeats} repeats in turns; jobs of {job} ms, each after twice \
as long of the same that does not count. A ratio is the median of the ratios of the repeats.\n\
- *full*: level 0 is as large as what is written to it, the spare factor 0.2; sequential writes and all reads. *worn*: \
the same, but random writes alone. *half*: level 0 is twice as large as what is written. *paper*: one public and one \
hidden block in a stripe (`--geometry paper`). *hidden*: the hidden level of a disk of two, also twice as large; a level \
that is full to the last block, and was written from another place before, takes a half of this for some laps of the \
log. While it is \
written, a second client writes level 0 in the same way, started before and going on until the last hidden write is durable.\n\
- No paced cover (`--cover 0`), for it would be measured with them; *hidden* has the default, a stripe a second.\n\
- *oblivious*: level 0 of a disk whose levels are as large as what is written to them, on a medium six and a half times as \
large; *oblivious hidden*: its hidden level, level 0 written beside it as above, so that twice what is printed is \
written; *oblivious plausible*: level 0 of a disk made with `--hiding plausible`, where reads write as well. *nbdkit \
file* is the raw file, without encryption. They have turns of their own, with *xts*, *full* and *half* beside \
them and disks of {half} MiB, for all disks together are more than the page cache keeps.\n\
- The writes of *xts* and of the raw file stay in the page cache unless they are flushed. A log, a ring and a journal \
have an order that the medium must keep: disks with levels sync it as they go, and in long jobs of sequential writes they \
wait for it. Their figures follow the medium of the machine, and so do the spreads; with *fsync every 64* all pay for it.\n\
- What a block costs on the medium is counted in `crates/deniable/tests/amplification.rs`: sequential writes 2.21 \
blocks when first written and 2.01 afterwards; uniform random writes on a full level 11.4, 5.83 and 3.16 blocks at ρ \
of 0.1, 0.2 and 0.4 with 8 and 8 slots, where Equation 1 of paper 000 says 10.6, 5.63 and 3.13.\n",
        disk = size(*scale) >> 20,
        half = size(*scale) >> 21,
        repeats = scale.repeats,
        job = scale.peer_job.as_millis(),
    )
}
