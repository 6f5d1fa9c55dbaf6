//! The section on Ceph and its history, for the pages.

use crate::ceph::cluster::BenchCluster;
use crate::ceph::image::CephImage;
use crate::ceph::plot;
use crate::ceph::rados::{
    self, BASELINE, GCM, MAIN, MOST_BYTES, MOST_REQUESTS, RadosResults, XTS_RANDOM, images, job, jobs,
};
use crate::machine::{self, MachineFacts};
use crate::measuring::section_results::{SectionResults, StableFigure};
use crate::pages::page::{HistoryTable, RunInfo};
use crate::pages::requirement::{self, Requirement};
use crate::pages::table::{Table, figure, head};
use crate::serving::job::Direction;
use crate::serving::scale::Scale;
use crate::serving::servers;
use crate::workspace::Workspace;
use lacuna_contracts::Result;
use std::path::Path;

const HISTORY: HistoryTable = HistoryTable {
    heading: "### History on Ceph",
    about: "Ratios of processor time, the worst of all sizes",
    head: &[
        "date",
        "lacuna",
        "processor",
        "rounds",
        "xts-random writes / reads to xts",
        "gcm writes / reads to xts",
        "xts writes / reads to librbd LUKS2",
        "reached",
    ],
};
const FIGURES: &str = "![throughput on Ceph by request size](plots/ceph-throughput.svg)\n\n\
![cost of random IVs for writes on Ceph](plots/ceph-write-overhead.svg)\n\n\
These plots redo Figures 3 and 4 of paper 004 from our runs. Its text gives no figure for single sizes. \
Against LUKS2 in librbd, random IVs at the object's end lose 1 to 22 percent on writes, \"depending on the \
IO size\", and at most 3 percent on reads. The grey bands are lower than our `xts` by these shares. The \
paper's unaligned layout is our `interleaved`, its object end our `segment-end`, and its OMAP our `kv`; \
`adaptive` is our own. The paper measured 27 NVMe disks in three machines, with a separate client, over a \
network. Here one small machine does the work of the client and of the cluster.\n";

/// The text of the section's part: tables, plots, method.
fn body(rados: &RadosResults, run: &RunInfo) -> String {
    let mut parts: Vec<String> = rados.tables().iter().map(Table::markdown).collect();
    parts.push(FIGURES.into());
    parts.push(method(&run.scale));
    parts.push(format!("### Machine on Ceph\n\n{}", facts(&run.machine)));
    parts.join("\n")
}

fn facts(machine: &MachineFacts) -> String {
    let ceph = BenchCluster::version().unwrap_or_else(|| "unknown".into());
    let wanted = ["processor", "cores", "memory", "kernel", "file system", "lacuna", "qemu-nbd"];
    machine::list(wanted.map(|name| (name, machine.fact(name))).into_iter().chain([("ceph", ceph.as_str())]))
}

fn method(scale: &Scale) -> String {
    format!(
        "### Method on Ceph\n\n\
- `scripts/ceph-cluster.sh` makes the cluster: one monitor, one manager and three BlueStore OSDs on \
loopback, on the machine of the client. The OSDs have sparse files on its disk as devices; the pool has \
three replicas. Client, server and OSDs share the processor.\n\
- Every subject has an image of {image} MiB in that pool, filled from end to end before each round. As for \
[servers](#method-for-servers), one client drives all of them, with 32 requests in flight. A turn has at \
most {requests} requests and {bytes} MiB. All caches have their defaults: the write-back cache of lacuna \
(within 64 MiB) and that of librbd.\n\
- All servers run at the same time; each is idle except in its turn. Each job goes to one server after \
another, in an order that changes with each job, in {rounds} rounds. Reads go from small to large; then \
writes go from large to small, because small writes leave objects in pieces. At this size of the image the \
metadata of `adaptive` fits into its cache, and the filling leaves it there. On a disk with more metadata, a \
small random read also reads its page of metadata.\n\
- Processor time is that of the server until a job is durable, including the threads of librados. It does \
not include the OSDs. The kernel counts only for gcm adaptive, xts and librbd, after the last round.\n\
- librbd LUKS2: `qemu-img create -f rbd -o encrypt.format=luks2` makes the image, and `qemu-nbd \
--cache=writeback` serves it with the driver rbd. The cipher is AES-256-XTS on sectors of 4096 bytes, as for \
our `xts`.\n",
        image = scale.image >> 20,
        requests = MOST_REQUESTS,
        bytes = MOST_BYTES >> 20,
        rounds = scale.rounds,
    )
}

fn history(requirements: &[Requirement], run: &RunInfo, old: &str) -> String {
    let worst =
        |i: usize| figure(requirements.get(i).and_then(Requirement::worst).map(|(_, value)| value), 2);
    let figures = [
        format!("{} / {}", worst(0), worst(1)),
        format!("{} / {}", worst(2), worst(3)),
        format!("{} / {}", worst(4), worst(5)),
        requirement::tally(requirements),
    ];
    HISTORY.with_row(old, &[&run.cells()[..], &figures].concat())
}

/// Measures the section.
pub(crate) fn measure(work: &Workspace) -> Result<Box<dyn SectionResults>> {
    Ok(Box::new(rados::measure(work)?))
}

impl SectionResults for RadosResults {
    fn results(&self) -> Vec<Table> {
        if !self.has_results() {
            return Vec::new();
        }
        let columns = || head("job", MAIN.map(CephImage::short));
        let mut speed = Table::new("On Ceph: speed, writes until durable", columns());
        let mut time = Table::new("On Ceph: processor time of the server", columns());
        for job in [Direction::Write, Direction::Read]
            .into_iter()
            .flat_map(|d| [4 << 10, 1 << 20].map(|size| job(d, size)))
        {
            speed.row(job.name(), MAIN.map(|image| self.grid.cell(image, job, true)));
            time.row(servers::with_unit(job), MAIN.map(|image| self.grid.processor_cell(image, job)));
        }
        vec![speed, time]
    }

    /// All tables: for each direction speeds and ratios, then the details.
    fn tables(&self) -> Vec<Table> {
        if !self.has_results() {
            return Vec::new();
        }
        let mut tables: Vec<Table> = [Direction::Write, Direction::Read]
            .into_iter()
            .flat_map(|d| [self.speeds(d), self.ratios(d)])
            .collect();
        tables.extend(servers::tables(&self.grid, "Disks on Ceph", &images(), &jobs()));
        tables
    }

    fn stable(&self) -> Vec<StableFigure> {
        servers::stable(&self.grid, &images(), &jobs())
    }

    fn skipped(&self) -> &[String] {
        &self.skipped
    }

    fn plot(&self, plots: &Path) -> Result<()> {
        if !self.has_results() {
            return Ok(());
        }
        plot::throughput(self, &plots.join("ceph-throughput.svg"))?;
        plot::overhead(self, &plots.join("ceph-write-overhead.svg"))
    }

    fn body(&self, run: &RunInfo) -> String {
        body(self, run)
    }

    fn history(&self, run: &RunInfo, requirements: &[Requirement], old: &str) -> Option<String> {
        self.has_results().then(|| history(requirements, run, old))
    }

    /// The requirements on Ceph.
    fn requirements(&self) -> Vec<Requirement> {
        if !self.has_results() {
            return Vec::new();
        }
        let promises = [
            (XTS_RANDOM, BASELINE, Direction::Write, 1.11),
            (XTS_RANDOM, BASELINE, Direction::Read, 1.05),
            (GCM, BASELINE, Direction::Write, 1.18),
            (GCM, BASELINE, Direction::Read, 1.05),
            (BASELINE, CephImage::RbdLuks, Direction::Write, 1.0),
            (BASELINE, CephImage::RbdLuks, Direction::Read, 1.0),
        ];
        promises.map(|(image, to, direction, most)| self.requirement(image, to, direction, most)).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::grid::Grid;

    #[test]
    fn without_figures_no_requirement_is_decided() {
        let rados = RadosResults { grid: Grid::default(), skipped: vec!["no cluster".into()] };
        assert!(rados.tables().is_empty() && rados.requirements().is_empty());
    }
}
