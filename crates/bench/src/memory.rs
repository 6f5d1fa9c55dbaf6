//! Section 4: the memory of a server on a sparse disk of 1 TiB, and how long opening that disk takes.

use crate::ciphers::{GCM, XTS_RANDOM};
use crate::fio::{self, Amount, Direction, Job, Load};
use crate::machine::field;
use crate::requirement::{Bound, Requirement};
use crate::server::Server;
use crate::subject::{Shape, Subject};
use crate::table::Table;
use crate::workspace::Workspace;
use lacuna_core::{Error, Kind, Result};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

const SIZE: u64 = 1 << 40;
const LIMIT_MIB: f64 = 96.0;
/// Seconds in which a sealed disk opens, beside key derivation.
const SEALED_OPENS: f64 = 1.0;
/// The same of a deniable disk, which reads the summaries of its last cycle.
const LEVELS_OPEN: f64 = 2.0;
/// A deniable disk, of which level 0 is measured.
const LEVELS: Subject = Subject::Levels(Shape::Sparse);

/// Memory of a process in MiB.
pub(crate) struct Resident {
    pub(crate) peak: f64,
    pub(crate) now: f64,
}

struct Row {
    subject: Subject,
    written: Resident,
    read: Resident,
    /// Seconds to the greeting: when new, after a clean end, after a kill under load.
    opened: [f64; 3],
    /// Requests per second, writes and reads.
    rates: [f64; 2],
}

pub(crate) struct Memory {
    rows: Vec<Row>,
    requests: u32,
}

/// The same, while the disks are removed.
pub(crate) struct Measured(Memory, Vec<JoinHandle<()>>);

impl Measured {
    /// Waits until the disks are gone.
    pub(crate) fn removed(self) -> Memory {
        self.1.into_iter().for_each(|thread| drop(thread.join()));
        self.0
    }
}

/// Measures the two ciphers with metadata, and levels.
pub(crate) fn measure(work: &Workspace) -> Result<Measured> {
    let mut rows = Vec::new();
    for subject in [XTS_RANDOM, GCM, LEVELS] {
        work.goes_on(&format!("memory: {} on 1 TiB", subject.name()))?;
        rows.push(row(work, subject)?);
        work.settle()?;
    }
    let disks: Vec<PathBuf> = rows.iter().map(|row: &Row| row.subject.disk(work)).collect();
    // What cannot be removed here goes with the whole directory.
    let remove = |disk| std::thread::spawn(move || drop(std::fs::remove_file::<PathBuf>(disk)));
    let removals = disks.into_iter().map(remove).collect();
    Ok(Measured(Memory { rows, requests: work.scale.requests }, removals))
}

fn row(work: &Workspace, subject: Subject) -> Result<Row> {
    let socket = work.path("socket");
    let start = || Server::start(work, &mut subject.serve(work, &socket), &socket);
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
    // Killed without a word, as by a power cut of the machine it runs on.
    drop(server);
    let server = start()?;
    let killed = server.ready_after;
    server.stop()?;
    let opened = [fresh, clean, killed].map(|time| time.as_secs_f64());
    Ok(Row { subject, written, read, opened, rates: [writes, reads] })
}

/// Random 4 KiB requests over the whole disk; the same addresses for the same seed.
fn load(
    work: &Workspace,
    subject: Subject,
    server: &Server<'_>,
    direction: Direction,
    seed: u64,
) -> Result<f64> {
    let job = Job { direction, random: true, size: 4096, depth: 32, fsync: None };
    let amount = Amount::Requests(work.scale.requests);
    let (uri, size) = (&server.uri(), subject.served(SIZE)?);
    let load = Load { uri, size, job, amount, ramp: Duration::ZERO, durable: false, seed };
    Ok(fio::run(work, load)?.requests)
}

/// What a process needs.
pub(crate) fn resident(pid: u32) -> Result<Resident> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).map_err(|e| Error::io(format!("cannot read {path}"), &e))?;
    let mib = |name: &str| {
        let kib =
            field(&text, name).and_then(|value| value.trim_end_matches("kB").trim().parse::<f64>().ok());
        kib.map(|kib| kib / 1024.0).ok_or_else(|| {
            Error::new(Kind::Other, format!("cannot use {path}")).found(format!("no number in {name}"))
        })
    };
    Ok(Resident { peak: mib("VmHWM")?, now: mib("VmRSS")? })
}

impl Memory {
    /// The greatest peak under writes, in MiB.
    pub(crate) fn peak(&self) -> f64 {
        self.rows.iter().map(|row| row.written.peak).fold(0.0, f64::max)
    }

    pub(crate) fn table(&self) -> Table {
        let title = format!("1 TiB, {} random 4 KiB writes, then as many reads, depth 32", self.requests);
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
            let memory = [&row.written, &row.read].map(|r| [r.peak, r.now]);
            let mut cells: Vec<_> = memory.iter().flatten().map(|mib| format!("{mib:.1} MiB")).collect();
            cells.extend(row.opened.map(|seconds| format!("{seconds:.3} s")));
            cells.extend(row.rates.map(|rate| format!("{:.1}k/s", rate / 1e3)));
            table.row(row.subject.name(), cells);
        }
        table
    }

    /// The promises about memory and opening.
    pub(crate) fn requirements(&self) -> Vec<Requirement> {
        let line = "peak memory on 1 TiB under random writes";
        let mut memory = Requirement::new(line, Bound::AtMost(LIMIT_MIB), " MiB");
        let opening = |what: &str, limit| {
            Requirement::new(
                format!("opening {what} of 1 TiB, least key derivation"),
                Bound::AtMost(limit),
                " s",
            )
        };
        let mut sealed = opening("a sealed disk", SEALED_OPENS);
        let mut levels = opening("a deniable disk", LEVELS_OPEN);
        for row in &self.rows {
            memory = memory.case(row.subject.name(), Some(row.written.peak));
            let open = if row.subject == LEVELS { &mut levels } else { &mut sealed };
            for (when, seconds) in ["new", "after a clean end", "after a kill"].iter().zip(row.opened) {
                open.add(format!("{}, {when}", row.subject.name()), Some(seconds));
            }
        }
        vec![memory, sealed, levels]
    }
}
