//! Section 5: disks on Ceph. Random IVs and authentication in every layout beside our own `xts`, and that beside
//! librbd's own encryption, on one cluster.

use crate::ciphers::SIZES;
use crate::cluster::Cluster;
use crate::fio::{self, Amount, Direction, Job, Load, size_name};
use crate::grid::Grid;
use crate::image::Image;
use crate::requirement::{Bound, Requirement};
use crate::server::Server;
use crate::table::Table;
use crate::workspace::Workspace;
use lacuna_core::Result;

/// The address-tweaked baseline: no metadata in any layout.
pub const BASE: Image = Image::Lacuna { cipher: "xts", layout: None };
const XTS_RANDOM: Image = Image::Lacuna { cipher: "xts-random", layout: Some("adaptive") };
const GCM: Image = Image::Lacuna { cipher: "gcm", layout: Some("adaptive") };
/// The layouts: ours, then the paper's (object end, unaligned, OMAP).
pub const LAYOUTS: [&str; 4] = ["adaptive", "segment-end", "interleaved", "kv"];
/// The ciphers with metadata.
pub const CIPHERS: [&str; 2] = ["xts-random", "gcm"];
const FILL: Job = Job { direction: Direction::Write, random: false, size: 4 << 20, depth: 8, fsync: None };
/// What one turn moves the start of the next on by, so that nobody always follows the same neighbour.
const ROTATION: usize = 3;

/// What came out.
pub struct Rados {
    /// The figures.
    pub grid: Grid<Image>,
    /// Who could not take part, and why.
    pub skipped: Vec<String>,
}

/// A disk with metadata.
pub fn random(cipher: &'static str, layout: &'static str) -> Image {
    Image::Lacuna { cipher, layout: Some(layout) }
}

/// The job for a size.
pub fn job(direction: Direction, size: u32) -> Job {
    Job { direction, random: true, size, depth: 32, fsync: None }
}

/// Reads come first: what writes leave behind in the OSDs shall not weigh on them.
fn jobs() -> Vec<Job> {
    let directions = [Direction::Read, Direction::Write];
    directions.into_iter().flat_map(|d| SIZES.map(|size| job(d, size))).collect()
}

/// Everyone, in the order of the first turn.
fn images() -> Vec<Image> {
    let random = CIPHERS.into_iter().flat_map(|cipher| LAYOUTS.map(|layout| random(cipher, layout)));
    [BASE, Image::RbdLuks].into_iter().chain(random).collect()
}

/// Measures everyone who is installed; an error if there is a cluster and something fails on it.
pub fn measure(work: &Workspace) -> Result<Rados> {
    let mut rados = Rados { grid: Grid::default(), skipped: Vec::new() };
    let cluster = match Cluster::find(work)? {
        Ok(cluster) => cluster,
        Err(why) => {
            work.say(&why);
            rados.skipped.push(why);
            return Ok(rados);
        }
    };
    let mut present = Vec::new();
    for image in images() {
        match image.missing() {
            Some(why) => {
                work.say(&why);
                rados.skipped.push(why);
            }
            None => present.push(image),
        }
    }
    let mut pool = Images { work, cluster: &cluster, made: Vec::new() };
    for image in &present {
        pool.fill(*image)?;
    }
    for repeat in 0..work.scale.repeats {
        work.say(&format!("ceph: repeat {} of {}", repeat + 1, work.scale.repeats));
        for image in order(&present, repeat as usize) {
            let rates = pool.turn(image, u64::from(repeat) + 1)?;
            jobs().into_iter().zip(rates).for_each(|(job, rate)| rados.grid.add(image, job, rate));
        }
    }
    Ok(rados)
}

/// The order of a turn: rotated each time, and every other time backwards.
fn order(images: &[Image], repeat: usize) -> Vec<Image> {
    let mut order = images.to_vec();
    order.rotate_left(repeat * ROTATION % images.len().max(1));
    if repeat % 2 == 1 {
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

impl Images<'_> {
    fn fill(&mut self, image: Image) -> Result<()> {
        self.work.say(&format!("ceph: filling {}", image.name()));
        let size = self.work.scale.image;
        self.made.push(image);
        image.create(self.work, self.cluster, size).map_err(|e| e.context(image.name()))?;
        self.serve(image, Amount::Once, 0, &[FILL]).map(drop)
    }

    fn turn(&self, image: Image, seed: u64) -> Result<Vec<fio::Rate>> {
        self.serve(image, Amount::Time(self.work.scale.image_job), seed, &jobs())
    }

    fn serve(&self, image: Image, amount: Amount, seed: u64, jobs: &[Job]) -> Result<Vec<fio::Rate>> {
        let socket = self.work.path("socket");
        let run = || {
            let server =
                Server::start(self.work, &mut image.serve(self.work, self.cluster, &socket), &socket)?;
            let uri = server.uri();
            let load = Load { uri: &uri, size: self.work.scale.image, amount, durable: true, seed, jobs };
            let rates = fio::run(self.work, &load)?;
            server.stop()?;
            self.work.settle()?;
            Ok(rates)
        };
        run().map_err(|e: lacuna_core::Error| e.context(image.name()))
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
    pub fn measured(&self) -> bool {
        self.grid.has(BASE, job(Direction::Write, SIZES[0]))
    }

    /// All figures: speeds, then ratios, of each direction.
    pub fn tables(&self) -> Vec<Table> {
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
        let names: Vec<String> = images.iter().map(|image| image.short()).collect();
        let head: Vec<&str> = std::iter::once("size").chain(names.iter().map(String::as_str)).collect();
        let title = format!("On Ceph: random {}s, depth 32, MB/s", direction.name());
        let mut table = Table::new(title, &head);
        for size in SIZES {
            let cells = images.iter().map(|image| self.grid.megabytes(*image, job(direction, size)));
            table.row(std::iter::once(size_name(size)).chain(cells).collect());
        }
        table
    }

    fn ratios(&self, direction: Direction) -> Table {
        let others: Vec<Image> =
            images().into_iter().filter(|i| !matches!(*i, BASE | Image::RbdLuks)).collect();
        let names: Vec<String> = others.iter().map(|image| image.short()).collect();
        let mut head = vec!["size", "xts to librbd LUKS2"];
        head.extend(names.iter().map(String::as_str));
        let title = format!("On Ceph: random {}s, ratio to xts", direction.name());
        let mut table = Table::new(title, &head);
        for size in SIZES {
            let job = job(direction, size);
            let mut row = vec![size_name(size), self.grid.ratio_cell(BASE, Image::RbdLuks, job)];
            row.extend(others.iter().map(|image| self.grid.ratio_cell(*image, BASE, job)));
            table.row(row);
        }
        table
    }

    /// The promises about Ceph.
    pub fn requirements(&self) -> Vec<Requirement> {
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
    fn everyone_has_a_turn_in_every_repeat_at_another_place() {
        let all = images();
        let first = order(&all, 0);
        assert_eq!(first, all);
        for repeat in 1..5 {
            let order = order(&all, repeat);
            assert_ne!(order[0], first[0]);
            assert!(all.iter().all(|image| order.contains(image)) && order.len() == all.len());
        }
    }

    #[test]
    fn without_figures_nothing_is_promised() {
        let rados = Rados { grid: Grid::default(), skipped: vec!["no cluster".into()] };
        assert!(rados.tables().is_empty() && rados.requirements().is_empty());
    }
}
