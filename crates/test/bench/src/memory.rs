//! The memory of a server with a sparse disk of 1 TiB, the time to open that disk, and the cost of
//! keeping a write for the next server.

use crate::kept_writes::KeepingCosts;
use crate::machine::field;
use crate::measuring::section_results::{SectionResults, StableFigure};
use crate::nbd::disks::{GCM, XTS_RANDOM};
use crate::pages::page::{HistoryTable, RunInfo};
use crate::pages::requirement::{self, Bound, Requirement};
use crate::pages::table::{Table, figure};
use crate::serving::job::{Direction, IoJob};
use crate::serving::server::RunningServer;
use crate::serving::subject::{DeniableShape, Subject};
use crate::serving::turn::Task;
use crate::workspace::Workspace;
use lacuna_contracts::{Error, Kind, Result};

const HISTORY: HistoryTable = HistoryTable {
    heading: "### History of memory",
    about: "The highest peak of all disks, in MiB",
    head: &["date", "lacuna", "processor", "rounds", "peak on 1 TiB", "reached"],
};
const METHOD: &str = "### Method for memory\n\n\
The figures are `VmHWM` (peak) and `VmRSS` (resident) of the server process, measured once, with the default \
budget, on a sparse disk of 1 TiB. Key derivation has the least cost that `create` accepts (128 KiB, one \
pass), so that its memory and time do not count. *levels sparse* has a medium of that size; level 0 is about \
two fifths of it, and the writes go over the whole of level 0. The page cache belongs to the system and is \
not in these figures. Reads have the addresses of the writes. Opening is timed from the start of the process \
to its greeting to the first client.\n\n\
*Keeping an acknowledged write*: a record of a block in 16 MiB, in use like a ring. In memory, an old record is \
wiped when it is dropped. The journal's pages stay in the page cache, and nothing is written back or synced \
meanwhile. The figures are processor times of the thread: medians of nine rounds.\n";

const SIZE: u64 = 1 << 40;
const LIMIT_MIB: f64 = 96.0;
/// Time limit for opening a sealed disk without key derivation, in seconds.
const MAX_SEALED_OPEN_SECONDS: f64 = 1.0;
/// The same limit for a deniable disk, which reads the summaries of its last cycle.
const MAX_LEVELS_OPEN_SECONDS: f64 = 2.0;
/// A deniable disk; its level 0 is measured.
const LEVELS: Subject = Subject::Levels(DeniableShape::Sparse);

/// Memory of a process in MiB.
pub(crate) struct ResidentMemory {
    pub(crate) peak: f64,
    pub(crate) current: f64,
}

struct MemoryRow {
    subject: Subject,
    written: ResidentMemory,
    read: ResidentMemory,
    /// Seconds to the greeting: of a new disk, after a clean end, after a kill under load.
    opened: [f64; 3],
    /// Requests per second: writes, reads.
    rates: [f64; 2],
}

struct MemoryResults {
    rows: Vec<MemoryRow>,
    keeping: KeepingCosts,
    requests: u64,
}

/// Measures the two ciphers with metadata, and levels.
pub(crate) fn measure(work: &Workspace) -> Result<Box<dyn SectionResults>> {
    let mut rows = Vec::new();
    for subject in [XTS_RANDOM, GCM, LEVELS] {
        work.report_progress(&format!("memory: {} on 1 TiB", subject.name()))?;
        rows.push(row(work, subject)?);
        std::fs::remove_file(subject.disk(work)).map_err(|e| Error::io("cannot remove a disk", &e))?;
        work.write_back()?;
    }
    work.report_progress("memory: acknowledged writes kept for the next server")?;
    let keeping = KeepingCosts::measure(work)?;
    Ok(Box::new(MemoryResults { rows, keeping, requests: work.scale.requests }))
}

fn row(work: &Workspace, subject: Subject) -> Result<MemoryRow> {
    let socket = work.path("socket");
    let start = || RunningServer::start(work, &mut subject.serve(work, &socket)?, &socket);
    subject.create(work, SIZE)?;
    let server = start()?;
    let fresh = server.ready_after;
    let writes = load(work, subject, &server, Direction::Write, 1)?;
    let written = resident(server.pid())?;
    let reads = load(work, subject, &server, Direction::Read, 1)?;
    let read = resident(server.pid())?;
    server.stop()?;
    let server = start()?;
    let clean = server.ready_after;
    load(work, subject, &server, Direction::Write, 2)?;
    // Kill the server without a shutdown, as a power cut of its machine does.
    drop(server);
    let server = start()?;
    let killed = server.ready_after;
    server.stop()?;
    let opened = [fresh, clean, killed].map(|time| time.as_secs_f64());
    Ok(MemoryRow { subject, written, read, opened, rates: [writes, reads] })
}

/// Random 4 KiB requests over the whole disk, with the same addresses for the same seed.
fn load(
    work: &Workspace,
    subject: Subject,
    server: &RunningServer<'_>,
    direction: Direction,
    seed: u64,
) -> Result<f64> {
    let disk = subject.served_bytes(SIZE)?;
    let (job, requests) = (IoJob::of_size(direction, 4096), work.scale.requests);
    let (answered, _) = Task::alone(job, disk, requests, seed).perform(server)?;
    Ok(requests as f64 / answered.as_secs_f64())
}

/// The memory of a process.
pub(crate) fn resident(pid: u32) -> Result<ResidentMemory> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).map_err(|e| Error::io(format!("cannot read {path}"), &e))?;
    let mib = |name: &str| {
        let kib =
            field(&text, name).and_then(|value| value.trim_end_matches("kB").trim().parse::<f64>().ok());
        kib.map(|kib| kib / 1024.0).ok_or_else(|| {
            Error::new(Kind::Other, format!("cannot use {path}")).found(format!("no number in {name}"))
        })
    };
    Ok(ResidentMemory { peak: mib("VmHWM")?, current: mib("VmRSS")? })
}

impl MemoryResults {
    fn table(&self) -> Table {
        let title = format!("1 TiB: {0} random 4 KiB writes, then {0} reads, depth 32", self.requests);
        let head = [
            "disk",
            "peak after writes",
            "resident after writes",
            "peak after reads",
            "resident after reads",
            "open, new",
            "open, after a clean end",
            "open, after a kill under load",
            "writes",
            "reads",
        ];
        let mut table = Table::new(title, head);
        for row in &self.rows {
            let memory = [&row.written, &row.read].map(|r| [r.peak, r.current]);
            let mut cells: Vec<_> = memory.iter().flatten().map(|mib| format!("{mib:.1} MiB")).collect();
            cells.extend(row.opened.map(|seconds| format!("{seconds:.3} s")));
            cells.extend(row.rates.map(|rate| format!("{:.1}k/s", rate / 1e3)));
            table.row(row.subject.name(), cells);
        }
        table
    }
}

impl SectionResults for MemoryResults {
    fn results(&self) -> Vec<Table> {
        let title = "A disk of 1 TiB: memory of the server, and opening";
        let head = [
            "disk",
            "peak memory under random writes",
            "open, new",
            "open, after a clean end",
            "open, after a kill under load",
        ];
        let mut table = Table::new(title, head);
        for row in &self.rows {
            let opened = row.opened.map(|seconds| format!("{seconds:.2} s"));
            table.row(
                row.subject.name(),
                std::iter::once(format!("{:.0} MiB", row.written.peak)).chain(opened),
            );
        }
        vec![table]
    }

    fn tables(&self) -> Vec<Table> {
        vec![self.table(), self.keeping.table()]
    }

    /// The requirements on memory and opening.
    fn requirements(&self) -> Vec<Requirement> {
        let line = "peak memory on 1 TiB under random writes";
        let mut memory = Requirement::new(line, Bound::AtMost(LIMIT_MIB), " MiB");
        let opening = |what: &str, limit| {
            Requirement::new(
                format!("opening {what} of 1 TiB, least key derivation"),
                Bound::AtMost(limit),
                " s",
            )
        };
        let mut sealed = opening("a sealed disk", MAX_SEALED_OPEN_SECONDS);
        let mut levels = opening("a deniable disk", MAX_LEVELS_OPEN_SECONDS);
        for row in &self.rows {
            memory = memory.case(row.subject.name(), Some(row.written.peak));
            let open = if row.subject == LEVELS { &mut levels } else { &mut sealed };
            for (when, seconds) in ["new", "after a clean end", "after a kill"].iter().zip(row.opened) {
                open.add(format!("{}, {when}", row.subject.name()), Some(seconds));
            }
        }
        vec![memory, sealed, levels]
    }

    fn stable(&self) -> Vec<StableFigure> {
        let peak = |row: &MemoryRow| StableFigure {
            name: format!("{}: peak memory", row.subject.name()),
            value: row.written.peak,
        };
        self.rows.iter().map(peak).collect()
    }

    fn body(&self, _run: &RunInfo) -> String {
        format!("{}\n{}\n{METHOD}", self.table().markdown(), self.keeping.table().markdown())
    }

    fn history(&self, run: &RunInfo, requirements: &[Requirement], old: &str) -> Option<String> {
        let peak = self.rows.iter().map(|row| row.written.peak).fold(0.0, f64::max);
        let figures = [figure(Some(peak), 0), requirement::tally(requirements)];
        Some(HISTORY.with_row(old, &[&run.cells()[..], &figures].concat()))
    }
}
