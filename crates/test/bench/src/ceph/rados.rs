//! Measures disks on Ceph, on one cluster: random IVs and authentication in every layout beside our
//! own `xts`, and `xts` beside librbd's own encryption.

use crate::ceph::cluster::BenchCluster;
use crate::ceph::image::CephImage;
use crate::measuring::counters;
use crate::nbd::disks::SIZES;
use crate::pages::requirement::{Bound, Requirement};
use crate::pages::table::{Table, head};
use crate::serving::grid::Grid;
use crate::serving::job::{Direction, IoJob, RequestSize};
use crate::serving::server::RunningServer;
use crate::serving::turn::Task;
use crate::workspace::Workspace;
use lacuna_contracts::Result;

/// The address-tweaked baseline, without metadata in any layout.
pub(crate) const BASELINE: CephImage = CephImage::Lacuna { cipher: "xts", layout: None };
pub(crate) const XTS_RANDOM: CephImage = CephImage::Lacuna { cipher: "xts-random", layout: Some("adaptive") };
pub(crate) const GCM: CephImage = CephImage::Lacuna { cipher: "gcm", layout: Some("adaptive") };
/// The images that users choose between; the kernel counts for these.
pub(crate) const MAIN: [CephImage; 3] = [GCM, BASELINE, CephImage::RbdLuks];
/// The layouts: ours, then the paper's (object end, unaligned, OMAP).
pub(crate) const LAYOUTS: [&str; 4] = ["adaptive", "segment-end", "interleaved", "kv"];
/// The ciphers with metadata.
pub(crate) const CIPHERS: [&str; 2] = ["xts-random", "gcm"];
const FILL: IoJob = IoJob::of_size(Direction::Write, 4 << 20);
/// Maximum requests and bytes of a turn.
pub(crate) const MOST_REQUESTS: u64 = 512;
pub(crate) const MOST_BYTES: u64 = 256 << 20;
/// The start of the order moves by this number from job to job, so that no server always follows
/// the same neighbour.
const ROTATION: usize = 3;

pub(crate) struct RadosResults {
    pub grid: Grid<CephImage>,
    /// Subjects that could not be measured, with the reasons.
    pub skipped: Vec<String>,
}

/// An image with metadata.
pub(crate) fn random(cipher: &'static str, layout: &'static str) -> CephImage {
    CephImage::Lacuna { cipher, layout: Some(layout) }
}

/// The job of a request size.
pub(crate) fn job(direction: Direction, size: u32) -> IoJob {
    IoJob { random: true, depth: 32, ..IoJob::of_size(direction, size) }
}

/// Reads come first, then writes from large to small: small writes fragment objects, which would
/// slow the later jobs, and more so after faster writes.
pub(crate) fn jobs() -> Vec<IoJob> {
    let reads = SIZES.into_iter().map(|size| job(Direction::Read, size));
    let writes = SIZES.into_iter().rev().map(|size| job(Direction::Write, size));
    reads.chain(writes).collect()
}

/// All images, in the order of the first turn.
pub(crate) fn images() -> Vec<CephImage> {
    let random = CIPHERS.into_iter().flat_map(|cipher| LAYOUTS.map(|layout| random(cipher, layout)));
    [BASELINE, CephImage::RbdLuks].into_iter().chain(random).collect()
}

/// Measures all images with installed programs. Errors: if there is a cluster and an operation on
/// it fails.
pub(crate) fn measure(work: &Workspace) -> Result<RadosResults> {
    let mut rados = RadosResults { grid: Grid::default(), skipped: Vec::new() };
    let cluster = match BenchCluster::find(work)? {
        Ok(cluster) => cluster,
        Err(why) => {
            work.report_progress(&why)?;
            rados.skipped.push(why);
            return Ok(rados);
        }
    };
    let mut present = Vec::new();
    for image in images() {
        match image.unavailable_reason() {
            Some(why) => {
                work.report_progress(&why)?;
                rados.skipped.push(why);
            }
            None => present.push(image),
        }
    }
    let mut pool = Images { work, cluster: &cluster, made: Vec::new() };
    // All servers are up at once and idle outside their turns, so that compared figures are
    // measured within seconds of each other.
    let servers =
        present.iter().map(|image| Ok((*image, pool.create(*image)?))).collect::<Result<Vec<_>>>()?;
    for round in 0..work.scale.rounds {
        work.report_progress(&format!("ceph: round {} of {}", round + 1, work.scale.rounds))?;
        // The first round fills the images, later rounds defragment them after small writes.
        for (image, server) in &servers {
            pool.fill(*image, server)?;
        }
        for (nth, job) in jobs().into_iter().enumerate() {
            for (image, server) in order(&servers, round as usize + nth) {
                work.interrupt.check()?;
                let took = pool.task_for(job, u64::from(round) + 1).timed_on_running(server);
                rados.grid.add(image, job, &took.map_err(|e| e.context(image.name()))?);
                work.write_back()?;
            }
        }
    }
    // The images stay fragmented by small writes; bytes and calls do not depend on that.
    if counters::unavailable_reason().is_none() {
        let counted: Vec<_> = servers.iter().filter(|(image, _)| MAIN.contains(image)).collect();
        // A quick run counts only one job.
        let some = if work.scale.quick { 1 } else { usize::MAX };
        for (job, (image, server)) in
            jobs().into_iter().take(some).flat_map(|job| counted.iter().map(move |s| (job, *s)))
        {
            work.interrupt.check()?;
            let counts = pool.task_for(job, 0).counted_on_running(work, server);
            rados.grid.turns_mut(*image, job).count(counts.map_err(|e| e.context(image.name()))?);
        }
    }
    for (image, server) in servers {
        server.stop().map_err(|e| e.context(image.name()))?;
    }
    Ok(rados)
}

/// The order of the turns at a job: rotated from job to job, and reversed every other time.
fn order<T>(servers: &[(CephImage, T)], nth: usize) -> Vec<(CephImage, &T)> {
    let mut order: Vec<_> = servers.iter().map(|(image, server)| (*image, server)).collect();
    order.rotate_left(nth * ROTATION % servers.len().max(1));
    if nth % 2 == 1 {
        order.reverse();
    }
    order
}

/// Images in the pool; drop removes them.
struct Images<'w> {
    work: &'w Workspace,
    cluster: &'w BenchCluster,
    made: Vec<CephImage>,
}

impl<'w> Images<'w> {
    /// Creates an image and starts a server of it.
    fn create(&mut self, image: CephImage) -> Result<RunningServer<'w>> {
        let size = self.work.scale.image;
        self.made.push(image);
        image.create(self.work, self.cluster, size).map_err(|e| e.context(image.name()))?;
        let socket = self.work.path(&format!("{}.socket", image.name().replace(' ', "-")));
        RunningServer::start(self.work, &mut image.serve(self.work, self.cluster, &socket)?, &socket)
            .map_err(|e| e.context(image.name()))
    }

    /// A job on any of the images.
    fn task_for(&self, job: IoJob, seed: u64) -> Task<'static> {
        let disk = self.work.scale.image;
        let most = if self.work.scale.quick { u64::from(job.depth) } else { MOST_REQUESTS };
        let requests = (MOST_BYTES.min(disk) / u64::from(job.size)).clamp(1, most);
        Task::alone(job, disk, requests, seed)
    }

    fn fill(&self, image: CephImage, server: &RunningServer<'_>) -> Result<()> {
        let whole = self.work.scale.image / u64::from(FILL.size);
        let filled = Task { requests: whole, ..self.task_for(FILL, 0) }.perform(server);
        filled.map_err(|e| e.context(image.name()))?;
        self.work.write_back()
    }
}

impl Drop for Images<'_> {
    fn drop(&mut self) {
        for image in &self.made {
            // Images that a failed run cannot remove go with the cluster, or stay in a cluster that
            // exists.
            let _ = image.remove(self.work, self.cluster);
        }
    }
}

impl RadosResults {
    /// Whether there are any results.
    pub(crate) fn has_results(&self) -> bool {
        self.grid.has(BASELINE, job(Direction::Write, SIZES[0]))
    }

    pub(crate) fn speeds(&self, direction: Direction) -> Table {
        let images = images();
        let title = format!("On Ceph: random {}s, depth 32, MB/s", direction.name());
        let mut table = Table::new(title, head("size", images.iter().map(|image| image.short())));
        for size in SIZES {
            let cells = images.iter().map(|image| self.megabytes(*image, job(direction, size)));
            table.row(RequestSize(size).to_string(), cells);
        }
        table
    }

    fn megabytes(&self, image: CephImage, job: IoJob) -> String {
        let Some(turns) = self.grid.turns(image, job) else { return "-".into() };
        let bytes = turns.bytes_per_second(true);
        format!("{:.1}{}", bytes.median() / 1e6, bytes.mark())
    }

    pub(crate) fn ratios(&self, direction: Direction) -> Table {
        let others = images().into_iter().filter(|i| !matches!(*i, BASELINE | CephImage::RbdLuks));
        let pairs: Vec<_> =
            std::iter::once((BASELINE, CephImage::RbdLuks)).chain(others.map(|i| (i, BASELINE))).collect();
        let columns = pairs.iter().map(|(image, to)| match to {
            CephImage::RbdLuks => "xts to librbd LUKS2".into(),
            CephImage::Lacuna { .. } => image.short(),
        });
        let title = format!("On Ceph: random {}s, speed to xts", direction.name());
        let mut table = Table::new(title, head("size", columns));
        for size in SIZES {
            let ratio = |(image, to): &(_, _)| self.grid.ratio_cell(*image, *to, job(direction, size), true);
            table.row(RequestSize(size).to_string(), pairs.iter().map(ratio));
        }
        table
    }

    pub(crate) fn requirement(
        &self,
        image: CephImage,
        to: CephImage,
        direction: Direction,
        most: f64,
    ) -> Requirement {
        let line = format!(
            "on Ceph, processor time of {} to {}: random {}s",
            image.short(),
            to.short(),
            direction.name()
        );
        SIZES.iter().fold(Requirement::new(line, Bound::AtMost(most), ""), |requirement, size| {
            requirement.case(
                RequestSize(*size).to_string(),
                self.grid.processor_ratio(image, to, job(direction, *size)),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_has_a_turn_in_each_job_at_another_position() {
        let all: Vec<_> = images().into_iter().map(|image| (image, ())).collect();
        let images = |nth| order(&all, nth).into_iter().map(|(image, ())| image).collect::<Vec<_>>();
        let first = images(0);
        for nth in 1..5 {
            let order = images(nth);
            assert_ne!(order[0], first[0]);
            assert!(first.iter().all(|image| order.contains(image)) && order.len() == all.len());
        }
    }
}
