//! Tables on servers: speed, latency, processor time, and the kernel's counts.

use crate::ending::Endings;
use crate::grid::Grid;
use crate::job::{Direction, Job};
use crate::measured::Stable;
use crate::scale::Scale;
use crate::subject::Named;
use crate::table::{Table, head};
use crate::turn::Counted;

/// A measure that the kernel counts: its name, its function, and its decimals.
type Measure = (&'static str, fn(&Counted) -> f64, usize);

const COUNTED: [Measure; 7] = [
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
pub(crate) fn tables<S: Named>(grid: &Grid<S>, title: &str, subjects: &[S], jobs: &[Job]) -> Vec<Table> {
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
        let mut counted = Table::new(format!("{title}: what the kernel counted"), columns());
        for ((what, of, decimals), job) in
            COUNTED.iter().flat_map(|measure| jobs.iter().map(move |job| (measure, job)))
        {
            let figures: Vec<Option<f64>> = subjects
                .iter()
                .map(|subject| grid.counted(*subject, *job).map(|counted| of(&counted)))
                .collect();
            // Leave out rows with only zeros.
            if figures.iter().flatten().any(|figure| *figure >= 0.5 / 10f64.powi(*decimals as i32)) {
                let cell = |figure: &Option<f64>| crate::table::figure(*figure, *decimals);
                counted.row(format!("{what}: {}", job.name()), figures.iter().map(cell));
            }
        }
        tables.push(counted);
    }
    tables.extend(endings(grid, title, subjects));
    tables
}

/// A measure of the end of a session: its name, its function, and its decimals.
type EndingMeasure = (&'static str, fn(&Endings) -> Option<f64>, usize);

const ENDING: [EndingMeasure; 5] = [
    ("milliseconds", |endings| Some(endings.seconds() * 1e3), 0),
    ("processor time, ms", |endings| Some(endings.processor() / 1e6), 1),
    ("KiB read from the medium", |endings| Some(endings.counts()?.read as f64 / 1024.0), 0),
    ("KiB written to the medium", |endings| Some(endings.counts()?.written as f64 / 1024.0), 0),
    ("syncs of the medium", |endings| Some(endings.counts()?.syncs as f64), 0),
];

/// The ends of sessions, which the other tables leave out.
fn endings<S: Named>(grid: &Grid<S>, title: &str, subjects: &[S]) -> Option<Table> {
    let ended: Vec<S> = subjects.iter().copied().filter(|subject| grid.endings(*subject).is_some()).collect();
    if ended.is_empty() {
        return None;
    }
    let columns = head("the end", ended.iter().map(|subject| subject.name()));
    let mut table = Table::new(format!("{title}: the end of a session that wrote 4 KiB"), columns);
    for (what, of, decimals) in ENDING {
        let cell = |subject: &S| crate::table::figure(grid.endings(*subject).and_then(of), decimals);
        table.row(what.to_owned(), ended.iter().map(cell));
    }
    Some(table)
}

/// The name of a job, and the unit of its processor time.
pub(crate) fn with_unit(job: Job) -> String {
    format!("{}, {}", job.name(), if job.in_bytes() { "a GiB" } else { "1,000 requests" })
}

fn cells<S: Named>(subjects: &[S], cell: impl Fn(S) -> String) -> Vec<String> {
    subjects.iter().map(|subject| cell(*subject)).collect()
}

/// The counts that two runs on the same commit must agree on. Jobs with sequential writes are left
/// out: the timing of threads determines when servers destage their journals, and how much at once.
/// Processor times are left out as well, because they depend on other work of the host
/// ([`Steady`](crate::steady::Steady) has stable ones).
pub(crate) fn stable<S: Named>(grid: &Grid<S>, subjects: &[S], jobs: &[Job]) -> Vec<Stable> {
    let mut all = Vec::new();
    let jobs = jobs.iter().filter(|job| job.random || job.direction == Direction::Read);
    for (job, subject) in jobs.flat_map(|job| subjects.iter().map(move |subject| (*job, *subject))) {
        let counted = grid.counted(subject, job);
        for (what, of, _) in COUNTED_STABLE.map(|at| COUNTED[at]) {
            let name = format!("{}, {}: {what}", subject.name(), job.name());
            all.extend(counted.as_ref().map(of).map(|value| Stable { name, value }));
        }
    }
    for subject in subjects {
        let written = grid.endings(*subject).and_then(Endings::counts).map(|counts| counts.written as f64);
        let name = format!("{}, the end of a session: bytes written to the medium", subject.name());
        all.extend(written.map(|value| Stable { name, value }));
    }
    all
}

/// How the figures are obtained, for the page.
pub(crate) fn method(scale: &Scale) -> String {
    format!(
        "### Method for servers\n\n\
- One client of our own (`crates/test/bench/src/client.rs`, some 250 lines) drives all servers over a unix socket and one connection: it \
keeps the requests of the depth in flight and looks at no content. `fio` was used before; its start takes longer than a turn, and its own processor \
time drew all ratios towards 1.\n\
- Every disk has {disk} MiB and is filled once. Every turn has the same number of requests for all servers, so that work that a server \
puts off weighs the same.\n\
- *Rounds*: each job goes to one server after another, {rounds} times, the order reversed every other time. A server is started for its \
turn and ended after it; then the file system is synced, so that no server pays for another's dirty pages. The places of random requests \
differ between rounds and are the same for all servers.\n\
- *Caches*: *warm*, unless said otherwise: the whole disk was read once through the server. *Just started*: the page cache held the disk's file when the \
server started; lacuna drops what the page cache has of its disk when it opens it, the peers do not. *Cold*: the kernel's caches were emptied after the start.\n\
- *Until answered* ends with the last answer; *until durable* with a flush behind it. On the medium of a virtual machine the latter \
says more of its host than of the server; [media](#on-a-modelled-hard-disk-and-stick) has modelled ones.\n\
- A *speed* is the median of the rounds, a ratio of speeds the median of the ratios of the rounds. `~` marks a figure whose interval of 95 % \
(of nine rounds from the second to the eighth) is wider than 15 % of it.\n\
- *Processor time* is that of the server process, read by its clock in up to eight slices of each turn, between which nothing of the client's is in flight. Of each slice the lower quartile \
of the rounds counts, for other work on the machine only adds to it, and then the mean of the slices. Work that comes at another point in every round, and in few of them, \
does not show; the counts have it. The background is what the threads behind the requests take (journal, stripes, maps), \
and everything after the last answer until the server has ended, without what the end of any session takes. Peers have no background \
threads, so all of theirs is foreground.\n\
- *The end of a session* is measured in sessions of their own, one in each round and one with counts: one write of 4 KiB and a flush, then \
from the signal until the server has ended. What it takes is no part of the figures of jobs: disks with levels write the same cover whenever they are \
closed (`docs/levels.md`), which would make a figure for each byte larger the shorter its job is.\n\
- What the *kernel counted* comes from one more round with `bpftrace`, which is not timed (of jobs that read until the last answer, of others until the server has ended, without the end of a session): system calls, the bytes that they move, switches \
of threads, and copies of 512 bytes and more by the C library's function for it. Bytes copied are the sum of what crosses \
between kernel and server and what is copied inside it. The medium is the disk's file.\n\
- Peers: `nbdkit file`, the same with its luks filter, and `qemu-nbd` with LUKS (`--cache=writeback --aio=threads`); both LUKS images come from \
`qemu-img create -f luks` with its default cipher, AES-256-XTS on sectors of 512 bytes. lacuna runs with its defaults and the cipher named. \
LUKS and our `xts` hide the same things.\n",
        disk = scale.disk >> 20,
        rounds = scale.rounds,
    )
}
