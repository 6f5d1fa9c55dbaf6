//! Tables on servers: speed, latency, processor time, and the kernel's counts.

use crate::measuring::section_results::StableFigure;
use crate::pages::table::{Table, head};
use crate::serving::grid::Grid;
use crate::serving::job::{Direction, IoJob};
use crate::serving::scale::Scale;
use crate::serving::stop_cost::StopCosts;
use crate::serving::subject::Named;
use crate::serving::turn::CountsPerRequest;

/// A measure that the kernel counts: its name, its function, and its decimals.
type CountColumn = (&'static str, fn(&CountsPerRequest) -> f64, usize);

const COUNTED: [CountColumn; 7] = [
    ("system calls a request", |counted| counted.calls, 2),
    ("switches of threads a request", |counted| counted.switches, 2),
    ("bytes copied for a byte", |counted| counted.copied, 2),
    ("bytes read from the medium for a byte", |counted| counted.read, 3),
    ("bytes written to the medium for a byte", |counted| counted.written, 3),
    ("requests to the medium for a request", |counted| counted.medium, 3),
    ("syncs of the medium for 1,000 requests", |counted| counted.syncs, 2),
];
/// The counts that depend only on the operations of a server, and not on the timing of its threads.
const COUNTED_STABLE: [usize; 4] = [2, 3, 4, 5];

/// All tables of the subjects and jobs.
pub(crate) fn tables<S: Named>(grid: &Grid<S>, title: &str, subjects: &[S], jobs: &[IoJob]) -> Vec<Table> {
    let columns = || head("job", subjects.iter().map(|subject| subject.name()));
    let mut speed = Table::new(format!("{title}: speed"), columns());
    let mut latency = Table::new(format!("{title}: latency p50 / p99, µs"), columns());
    let mut time = Table::new(format!("{title}: processor time, foreground + background"), columns());
    for job in jobs {
        let name = job.name();
        let writes = job.direction == Direction::Write;
        if writes && job.fsync.is_none() {
            speed.row(format!("{name}, until answered"), cells(subjects, |s| grid.cell(s, *job, false)));
        }
        let until = if writes { ", until durable" } else { "" };
        speed.row(format!("{name}{until}"), cells(subjects, |s| grid.cell(s, *job, true)));
        latency.row(name.clone(), cells(subjects, |s| grid.latency_cell(s, *job)));
        time.row(with_unit(*job), cells(subjects, |s| grid.processor_cell(s, *job)));
    }
    let mut tables = vec![speed, time, latency];
    if subjects.iter().any(|subject| jobs.iter().any(|job| grid.counted(*subject, *job).is_some())) {
        let mut counted = Table::new(format!("{title}: counts of the kernel"), columns());
        for ((what, of, decimals), job) in
            COUNTED.iter().flat_map(|measure| jobs.iter().map(move |job| (measure, job)))
        {
            let figures: Vec<Option<f64>> = subjects
                .iter()
                .map(|subject| grid.counted(*subject, *job).map(|counted| of(&counted)))
                .collect();
            // Leave out rows with only zeros.
            if figures.iter().flatten().any(|figure| *figure >= 0.5 / 10f64.powi(*decimals as i32)) {
                let cell = |figure: &Option<f64>| crate::pages::table::figure(*figure, *decimals);
                counted.row(format!("{what}: {}", job.name()), figures.iter().map(cell));
            }
        }
        tables.push(counted);
    }
    tables.extend(endings(grid, title, subjects));
    tables
}

/// A measure of the end of a session: its name, its function, and its decimals.
type StopCostColumn = (&'static str, fn(&StopCosts) -> Option<f64>, usize);

const ENDING: [StopCostColumn; 5] = [
    ("milliseconds", |endings| Some(endings.seconds() * 1e3), 0),
    ("processor time, ms", |endings| Some(endings.processor() / 1e6), 1),
    ("KiB read from the medium", |endings| Some(endings.counts()?.read as f64 / 1024.0), 0),
    ("KiB written to the medium", |endings| Some(endings.counts()?.written as f64 / 1024.0), 0),
    ("syncs of the medium", |endings| Some(endings.counts()?.syncs as f64), 0),
];

/// The ends of sessions, which the other tables leave out.
fn endings<S: Named>(grid: &Grid<S>, title: &str, subjects: &[S]) -> Option<Table> {
    let ended: Vec<S> =
        subjects.iter().copied().filter(|subject| grid.stop_costs(*subject).is_some()).collect();
    if ended.is_empty() {
        return None;
    }
    let columns = head("the end", ended.iter().map(|subject| subject.name()));
    let mut table = Table::new(format!("{title}: the end of a session that wrote 4 KiB"), columns);
    for (what, of, decimals) in ENDING {
        let cell =
            |subject: &S| crate::pages::table::figure(grid.stop_costs(*subject).and_then(of), decimals);
        table.row(what.to_owned(), ended.iter().map(cell));
    }
    Some(table)
}

/// The name of a job, and the unit of its processor time.
pub(crate) fn with_unit(job: IoJob) -> String {
    format!("{}, {}", job.name(), if job.in_bytes() { "a GiB" } else { "1,000 requests" })
}

fn cells<S: Named>(subjects: &[S], cell: impl Fn(S) -> String) -> Vec<String> {
    subjects.iter().map(|subject| cell(*subject)).collect()
}

/// The counts that two runs on the same commit must agree on. Jobs with sequential writes are left
/// out: the timing of threads determines when servers destage their journals, and how much at once.
/// Processor times are left out as well, because they depend on other work of the host
/// ([`ProcessorRatios`](crate::serving::processor_ratios::ProcessorRatios) has stable ones).
pub(crate) fn stable<S: Named>(grid: &Grid<S>, subjects: &[S], jobs: &[IoJob]) -> Vec<StableFigure> {
    let mut all = Vec::new();
    let jobs = jobs.iter().filter(|job| job.random || job.direction == Direction::Read);
    for (job, subject) in jobs.flat_map(|job| subjects.iter().map(move |subject| (*job, *subject))) {
        let counted = grid.counted(subject, job);
        for (what, of, _) in COUNTED_STABLE.map(|at| COUNTED[at]) {
            let name = format!("{}, {}: {what}", subject.name(), job.name());
            all.extend(counted.as_ref().map(of).map(|value| StableFigure { name, value }));
        }
    }
    for subject in subjects {
        let written =
            grid.stop_costs(*subject).and_then(StopCosts::counts).map(|counts| counts.written as f64);
        let name = format!("{}, the end of a session: bytes written to the medium", subject.name());
        all.extend(written.map(|value| StableFigure { name, value }));
    }
    all
}

/// How the figures are obtained, for the page.
pub(crate) fn method(scale: &Scale) -> String {
    format!(
        "### Method for servers\n\n\
- Our own client (`crates/test/bench/src/serving/client.rs`, about 300 lines) drives all servers over one connection \
on a unix socket. It keeps the number of requests in flight that the depth names, and does not look at their \
content. `fio` does not suit: its start takes longer than a turn, and its own processor time draws all \
ratios towards 1.\n\
- Every disk has {disk} MiB and is filled once. A turn has the same number of requests for every server, so \
that deferred work has the same weight for all.\n\
- *Rounds*: each job goes to one server after another, in {rounds} rounds; every other round reverses the \
order of the servers. A server starts for its turn and ends after it. Then the file system is synced, so \
that no server pays for the dirty pages of another. The addresses of random requests differ between rounds \
and are the same for all servers. Sequential writes go on where the last ones to that disk ended, and begin \
anew at its end; sequential reads begin at its start.\n\
- *Caches*: *warm* is the default: the whole disk was read once through the server. *Just started*: the page \
cache held the disk's file when the server started. lacuna keeps the cached pages of a sealed disk in a file \
if the last server closed it without an error, and drops those of other disks; the peers keep them. *Cold*: \
the kernel's caches were emptied after the start.\n\
- *Until answered* ends with the last answer; *until durable* ends with a flush after it. On the medium of a \
virtual machine the second figure shows the host more than the server. The section on [modelled \
media](#on-a-modelled-hard-disk-and-stick) has figures that do not depend on the host.\n\
- A *speed* is the median of the rounds; a ratio of speeds is the median of the ratios of the rounds. `~` \
marks a figure with an interval of 95 % that is wider than 15 % of the figure. For nine rounds this interval \
goes from the second lowest to the second highest value.\n\
- *Processor time* is the time of the server process. The clock of the process is read in up to eight slices \
of each turn; between two slices the client has no request in flight. Other work on the machine can only add \
to a slice, so the lower quartile of the rounds counts for each slice. The figure is the mean of the slices. \
Work that falls into few rounds, each time at another point, does not show; the counts include it. The \
*background* is the time of the threads behind the requests (journal, stripes, maps), and all time from the \
last answer to the end of the server, without the time that the end of any session takes. Peers have no such \
threads; their background is only the time after the last answer.\n\
- *The end of a session* is measured in separate sessions after the last round, {ends} of each server and \
one with counts. Such a session begins with warm caches, as a job does, and makes one write of 4 KiB and a \
flush; the measurement goes from the signal to the end of the server. The figures of jobs leave this work \
out. Disks with levels write the same cover at each close (`docs/levels.md`), so with it a figure for each \
byte would grow as the job gets shorter.\n\
- The *counts of the kernel* come from one more round with `bpftrace`, which is not timed. It is in the \
middle of the other rounds, where the disks are in the same state as for the times. The kernel counts a job \
that reads until its last answer, and any other job until the server has ended, without the end of a \
session. It counts system calls, the bytes that they move, switches of threads, and copies of 512 bytes and \
more by the copy function of the C library. *Bytes copied* are the bytes that cross between kernel and \
server plus the bytes copied inside the server. The medium is the disk's file.\n\
- Peers: `nbdkit file`, `nbdkit file` with its luks filter, and `qemu-nbd` with LUKS (`--cache=writeback \
--aio=threads`). `qemu-img create -f luks` makes both LUKS images with its default cipher, AES-256-XTS on \
sectors of 512 bytes. lacuna runs with its defaults and the named cipher. LUKS and our `xts` hide the same \
information.\n",
        disk = scale.disk >> 20,
        rounds = scale.rounds,
        ends = scale.rounds.div_ceil(2),
    )
}
