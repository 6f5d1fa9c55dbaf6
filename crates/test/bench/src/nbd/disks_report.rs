//! The section on disks over NBD, for the pages.

use crate::measuring::section_results::{SectionResults, StableFigure};
use crate::nbd::disks::{
    self, BESIDE_PEERS, CACHE_STATES, CIPHERS, DiskResults, GCM, MAIN, PEER_JOBS, PLAIN, RANDOM_READ,
    RANDOM_WRITE, READ, SIZES, SYNCED, WRITE, XTS_RANDOM,
};
use crate::pages::page::{HistoryTable, RunInfo};
use crate::pages::peers_plot;
use crate::pages::ratios_plot;
use crate::pages::requirement::{self, Bound, Requirement};
use crate::pages::table::{Table, figure, head};
use crate::serving::job::{CacheState, Direction, IoJob, RequestSize};
use crate::serving::servers;
use crate::serving::subject::{Subject, XTS};
use crate::workspace::Workspace;
use lacuna_contracts::Result;
use std::path::Path;

const HISTORY: HistoryTable = HistoryTable {
    heading: "### History of disks over NBD",
    about: "Ratios of processor time: xts to the better LUKS server, xts to an unencrypted server, and gcm \
            to xts; each for sequential writes, sequential reads, random writes, random reads",
    head: &[
        "date",
        "lacuna",
        "processor",
        "rounds",
        "xts to LUKS",
        "xts to nbdkit file",
        "gcm to xts",
        "reached",
    ],
};

/// Measures the section.
pub(crate) fn measure(work: &Workspace) -> Result<Box<dyn SectionResults>> {
    Ok(Box::new(disks::measure(work)?))
}

impl SectionResults for DiskResults {
    fn results(&self) -> Vec<Table> {
        let names = || head("job", BESIDE_PEERS.map(Subject::name));
        let mut speed = Table::new("A disk over NBD: speed", names());
        let mut row = |job: IoJob, until: &str, durable: bool| {
            speed
                .row(format!("{}{until}", job.name()), BESIDE_PEERS.map(|s| self.grid.cell(s, job, durable)));
        };
        row(WRITE, ", until durable", true);
        row(READ, "", true);
        row(RANDOM_WRITE, ", until answered", false);
        row(RANDOM_WRITE, ", until durable", true);
        row(SYNCED[0], "", true);
        row(RANDOM_READ, "", true);
        row(CACHE_STATES[0], "", true);
        row(CACHE_STATES[1], "", true);
        row(IoJob { depth: 1, ..RANDOM_READ }, "", true);
        let mut time =
            Table::new("A disk over NBD: processor time of the server, before + after the answer", names());
        for job in MAIN {
            time.row(servers::with_unit(job), BESIDE_PEERS.map(|s| self.grid.processor_cell(s, job)));
        }
        vec![speed, time]
    }

    fn tables(&self) -> Vec<Table> {
        let jobs = DiskResults::all_jobs();
        let mut tables = servers::tables(&self.grid, "Beside other servers", &BESIDE_PEERS, &jobs);
        tables.extend(self.ratios.table());
        tables.extend(self.ciphers());
        let jobs: Vec<IoJob> = MAIN.into_iter().chain(SYNCED).collect();
        tables.extend(servers::tables(&self.grid, "Ciphers", &CIPHERS, &jobs));
        tables
    }

    fn requirements(&self) -> Vec<Requirement> {
        let luks = PEER_JOBS.iter().map(|(job, most, _)| {
            let line = format!("processor time of xts to the better LUKS server: {}", job.name());
            Requirement::new(line, Bound::AtMost(*most), "").case("", self.ratio_to_luks(*job))
        });
        let plain = PEER_JOBS.iter().map(|(job, _, most)| {
            let line = format!("processor time of xts to nbdkit without encryption: {}", job.name());
            let ratio = self.processor_ratio(XTS, PLAIN, *job);
            Requirement::new(line, Bound::AtMost(*most), "").case("", ratio)
        });
        let mut all: Vec<Requirement> = luks.chain(plain).collect();
        for (subject, name, writes) in [(XTS_RANDOM, "xts-random", 1.11), (GCM, "gcm", 1.18)] {
            let mut add = |what: &str, most: f64, jobs: &[IoJob]| {
                let line = format!("processor time of {name} to xts: {what}");
                let empty = Requirement::new(line, Bound::AtMost(most), "");
                all.push(jobs.iter().fold(empty, |requirement, job| {
                    let ratio = self.processor_ratio(subject, XTS, *job);
                    requirement.case(RequestSize(job.size).to_string(), ratio)
                }));
            };
            add("reads, 4 KiB to 4 MiB", 1.05, &SIZES.map(|size| IoJob::of_size(Direction::Read, size)));
            add("writes, 4 KiB to 4 MiB", writes, &SIZES.map(|size| IoJob::of_size(Direction::Write, size)));
            add("writes, fsync every 32", 1.33, &SYNCED);
        }
        let written = |line: &str, most: f64, jobs: &[IoJob]| {
            let line = format!("bytes that gcm writes to the medium for a byte: {line}");
            jobs.iter().fold(Requirement::new(line, Bound::AtMost(most), ""), |requirement, job| {
                let counted = self.grid.counted(GCM, *job).map(|counted| counted.written);
                requirement.case(RequestSize(job.size).to_string(), counted)
            })
        };
        all.push(written("sequential", 1.02, &[WRITE, IoJob::of_size(Direction::Write, SIZES[3])]));
        all.push(written("random", 2.5, &[RANDOM_WRITE]));
        all
    }

    fn stable(&self) -> Vec<StableFigure> {
        let mut jobs = DiskResults::all_jobs();
        jobs.retain(|job| job.caches == CacheState::Warm && job.fsync.is_none());
        let mut all = servers::stable(&self.grid, &CIPHERS, &jobs);
        all.extend(self.ratios.stable());
        all
    }

    fn skipped(&self) -> &[String] {
        &self.skipped
    }

    fn plot(&self, plots: &Path) -> Result<()> {
        peers_plot::draw(self, &plots.join("peers.svg"))?;
        ratios_plot::draw(self, &plots.join("ratio-by-size.svg"))
    }

    fn body(&self, run: &RunInfo) -> String {
        let mut parts: Vec<String> = self.tables().iter().map(Table::markdown).collect();
        parts.push("![processor time beside other servers](plots/peers.svg)\n".into());
        parts.push("![processor time by request size](plots/ratio-by-size.svg)\n".into());
        parts.push(servers::method(&run.scale));
        parts.join("\n")
    }

    fn history(&self, run: &RunInfo, requirements: &[Requirement], old: &str) -> Option<String> {
        let row = |ratio: &dyn Fn(IoJob) -> Option<f64>| MAIN.map(|job| figure(ratio(job), 2)).join(" / ");
        let figures = [
            row(&|job| self.ratio_to_luks(job)),
            row(&|job| self.processor_ratio(XTS, PLAIN, job)),
            row(&|job| self.processor_ratio(GCM, XTS, job)),
            requirement::tally(requirements),
        ];
        Some(HISTORY.with_row(old, &[&run.cells()[..], &figures].concat()))
    }
}
