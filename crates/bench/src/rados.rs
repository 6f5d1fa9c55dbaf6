//! Section 5: disks on Ceph. Random IVs and authentication in every layout beside our own `xts`, and that beside
//! librbd's own encryption, on one cluster.

use crate::ciphers::SIZES;
use crate::cluster::Cluster;
use crate::fio::{self, Amount, Direction, Job, Load, size_name};
use crate::grid::Grid;
use crate::image::Image;
use crate::requirement::{Bound, Requirement};
use crate::server::Server;
use crate::table::{Table, head};
use crate::workspace::Workspace;
use lacuna_core::Result;
use std::time::Duration;

/// The address-tweaked baseline: no metadata in any layout.
pub(crate) const BASE: Image = Image::Lacuna { cipher: "xts", layout: None };
const XTS_RANDOM: Image = Image::Lacuna { cipher: "xts-random", layout: Some("adaptive") };
const GCM: Image = Image::Lacuna { cipher: "gcm", layout: Some("adaptive") };
/// The layouts: ours, then the paper's (object end, unaligned, OMAP).
pub(crate) const LAYOUTS: [&str; 4] = ["adaptive", "segment-end", "interleaved", "kv"];
/// The ciphers with metadata.
pub(crate) const CIPHERS: [&str; 2] = ["xts-random", "gcm"];
const FILL: Job = Job { direction: Direction::Write, random: false, size: 4 << 20, depth: 8, fsync: None };
/// What one job moves the start of the next on by, so that nobody always follows the same neighbour.
const ROTATION: usize = 3;

pub(crate) struct Rados {
    pub grid: Grid<Image>,
    /// Who could not take part, and why.
    pub skipped: Vec<String>,
}

/// A disk with metadata.
pub(crate) fn random(cipher: &'static str, layout: &'static str) -> Image {
    Image::Lacuna { cipher, layout: Some(layout) }
}

/// The job for a size.
pub(crate) fn job(direction: Direction, size: u32) -> Job {
    Job { direction, random: true, size, depth: 32, fsync: None }
}

/// Reads come first, then writes from large to small: small ones leave objects in pieces, which would weigh on what
/// comes after, and the more the faster they were.
fn jobs() -> Vec<Job> {
    let reads = SIZES.into_iter().map(|size| job(Direction::Read, size));
    let writes = SIZES.into_iter().rev().map(|size| job(Direction::Write, size));
    reads.chain(writes).collect()
}

/// Everyone, in the order of the first turn.
fn images() -> Vec<Image> {
    let random = CIPHERS.into_iter().flat_map(|cipher| LAYOUTS.map(|layout| random(cipher, layout)));
    [BASE, Image::RbdLuks].into_iter().chain(random).collect()
}

/// Measures everyone who is installed; an error if there is a cluster and something fails on it.
pub(crate) fn measure(work: &Workspace) -> Result<Rados> {
    let mut rados = Rados { grid: Grid::default(), skipped: Vec::new() };
    let cluster = match Cluster::find(work)? {
        Ok(cluster) => cluster,
        Err(why) => {
            work.goes_on(&why)?;
            rados.skipped.push(why);
            return Ok(rados);
        }
    };
    let mut present = Vec::new();
    for image in images() {
        match image.missing() {
            Some(why) => {
                work.goes_on(&why)?;
                rados.skipped.push(why);
            }
            None => present.push(image),
        }
    }
    let mut pool = Images { work, cluster: &cluster, made: Vec::new() };
    // All servers are up at once and idle but for their turn: what a ratio compares runs within seconds.
    let servers =
        present.iter().map(|image| Ok((*image, pool.create(*image)?))).collect::<Result<Vec<_>>>()?;
    for repeat in 0..work.scale.repeats {
        work.goes_on(&format!("ceph: repeat {} of {}", repeat + 1, work.scale.repeats))?;
        // The first time it fills the images, later it puts together what small writes took apart.
        for (image, server) in &servers {
            pool.run(*image, server, Amount::Once, 0, FILL)?;
        }
        for (nth, job) in jobs().into_iter().enumerate() {
            for (image, server) in order(&servers, repeat as usize + nth) {
                let amount = Amount::Time(work.scale.image_job);
                let rate = pool.run(image, server, amount, u64::from(repeat) + 1, job)?;
                rados.grid.add(image, job, rate);
            }
        }
    }
    for (image, server) in servers {
        server.stop().map_err(|e| e.context(image.name()))?;
    }
    Ok(rados)
}

/// The order of the turns at a job: rotated each time, and every other time backwards.
fn order<T>(servers: &[(Image, T)], nth: usize) -> Vec<(Image, &T)> {
    let mut order: Vec<_> = servers.iter().map(|(image, server)| (*image, server)).collect();
    order.rotate_left(nth * ROTATION % servers.len().max(1));
    if nth % 2 == 1 {
        order.reverse();
    }
    order
}

/// Images in the pool, which go when this is dropped.
struct Images<'w> {
    work: &'w Workspace,
    cluster: &'w Cluster,
    made: Vec<Image>,
}

impl<'w> Images<'w> {
    /// Makes an image and starts a server of it.
    fn create(&mut self, image: Image) -> Result<Server<'w>> {
        let size = self.work.scale.image;
        self.made.push(image);
        image.create(self.work, self.cluster, size).map_err(|e| e.context(image.name()))?;
        let socket = self.work.path(&format!("{}.socket", image.name().replace(' ', "-")));
        Server::start(self.work, &mut image.serve(self.work, self.cluster, &socket), &socket)
            .map_err(|e| e.context(image.name()))
    }

    fn run(
        &self,
        image: Image,
        server: &Server<'_>,
        amount: Amount,
        seed: u64,
        job: Job,
    ) -> Result<fio::Rate> {
        let (uri, size) = (&server.uri(), self.work.scale.image);
        let load = Load { uri, size, job, amount, ramp: Duration::ZERO, durable: true, seed };
        let rate = fio::run(self.work, load).map_err(|e| e.context(image.name()))?;
        self.work.settle()?;
        Ok(rate)
    }
}

impl Drop for Images<'_> {
    fn drop(&mut self) {
        for image in &self.made {
            // What an unsuccessful run cannot remove goes with the cluster, or stays in another's.
            let _ = image.remove(self.work, self.cluster);
        }
    }
}

impl Rados {
    /// Whether anything was measured.
    pub(crate) fn measured(&self) -> bool {
        self.grid.has(BASE, job(Direction::Write, SIZES[0]))
    }

    /// All figures: speeds, then ratios, of each direction.
    pub(crate) fn tables(&self) -> Vec<Table> {
        if !self.measured() {
            return Vec::new();
        }
        [Direction::Write, Direction::Read]
            .into_iter()
            .flat_map(|d| [self.speeds(d), self.ratios(d)])
            .collect()
    }

    fn speeds(&self, direction: Direction) -> Table {
        let images = images();
        let title = format!("On Ceph: random {}s, depth 32, MB/s", direction.name());
        let mut table = Table::new(title, head("size", images.iter().map(|image| image.short())));
        for size in SIZES {
            let cells = images.iter().map(|image| self.grid.megabytes(*image, job(direction, size)));
            table.row(size_name(size), cells);
        }
        table
    }

    fn ratios(&self, direction: Direction) -> Table {
        let others = images().into_iter().filter(|i| !matches!(*i, BASE | Image::RbdLuks));
        let pairs: Vec<_> =
            std::iter::once((BASE, Image::RbdLuks)).chain(others.map(|i| (i, BASE))).collect();
        let columns = pairs.iter().map(|(image, to)| match to {
            Image::RbdLuks => "xts to librbd LUKS2".into(),
            Image::Lacuna { .. } => image.short(),
        });
        let title = format!("On Ceph: random {}s, ratio to xts", direction.name());
        let mut table = Table::new(title, head("size", columns));
        for size in SIZES {
            let ratio = |(image, to): &(_, _)| self.grid.ratio_cell(*image, *to, job(direction, size));
            table.row(size_name(size), pairs.iter().map(ratio));
        }
        table
    }

    /// The promises about Ceph.
    pub(crate) fn requirements(&self) -> Vec<Requirement> {
        if !self.measured() {
            return Vec::new();
        }
        let promises = [
            (XTS_RANDOM, BASE, Direction::Write, 0.90),
            (XTS_RANDOM, BASE, Direction::Read, 0.95),
            (GCM, BASE, Direction::Write, 0.85),
            (GCM, BASE, Direction::Read, 0.95),
            (BASE, Image::RbdLuks, Direction::Write, 1.0),
            (BASE, Image::RbdLuks, Direction::Read, 1.0),
        ];
        promises.map(|(image, to, direction, least)| self.requirement(image, to, direction, least)).into()
    }

    fn requirement(&self, image: Image, to: Image, direction: Direction, least: f64) -> Requirement {
        let line = format!("on Ceph, {} to {}: random {}s", image.short(), to.short(), direction.name());
        SIZES.iter().fold(Requirement::new(line, Bound::AtLeast(least), ""), |requirement, size| {
            requirement.case(size_name(*size), self.grid.ratio(image, to, job(direction, *size)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_has_a_turn_at_each_job_at_another_place() {
        let all: Vec<_> = images().into_iter().map(|image| (image, ())).collect();
        let images = |nth| order(&all, nth).into_iter().map(|(image, ())| image).collect::<Vec<_>>();
        let first = images(0);
        for nth in 1..5 {
            let order = images(nth);
            assert_ne!(order[0], first[0]);
            assert!(first.iter().all(|image| order.contains(image)) && order.len() == all.len());
        }
    }

    #[test]
    fn without_figures_nothing_is_promised() {
        let rados = Rados { grid: Grid::default(), skipped: vec!["no cluster".into()] };
        assert!(rados.tables().is_empty() && rados.requirements().is_empty());
    }
}
