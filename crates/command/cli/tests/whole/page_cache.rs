//! Pages of the medium of a disk with levels, a file or a block device, in the system's cache: none
//! after closing, and none of the pages that were read for hidden levels while it is open. The
//! slots that were read would reveal these levels.

mod kept;
mod pages;

use crate::harness::{
    Device, Scene, Serving, can_mount, can_mount_ext4, noise, skip_unless, skipped, wait_until,
};
use crate::nbd_client::Client;
use pages::resident;
use rustix::io::{ReadWriteFlags, preadv2};
use std::fs::{self, File};
use std::io::IoSliceMut;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const FORMATS: [&str; 2] = ["deniable", "oblivious"];
const BLOCK: u64 = 4096;
/// Maximum number of pages that an open `oblivious` disk has read for its next two batches: 120
/// cells each, their metadata, and leaves of the map of level 0. Public randomness alone selects
/// the cells, so these pages reveal nothing about other levels (docs/threat-model.md).
const NEXT_BATCHES: usize = 400;
/// Maximum number of pages that udev reads of a closed device to identify its contents.
const PROBED: usize = 512;
/// A larger number of pages, which public reads leave.
const MANY: usize = 1500;

/// The medium of a disk, in a scene of its own.
struct TestMedium {
    /// Kept open: the cache of a device is dropped when the last program closes it.
    held: Option<(File, Device)>,
    scene: Scene,
    path: PathBuf,
}

impl TestMedium {
    /// A path for a new file, or a block device of `size`. Returns `None`, with a message, where
    /// the cache cannot be examined.
    fn new(size: u64, on_device: bool) -> Option<TestMedium> {
        let scene = Scene::new();
        fs::write(scene.path("deep"), "battery staple").unwrap();
        if !on_device {
            let path = scene.path("disk.img");
            return can_inspect_cache(&scene).then_some(TestMedium { held: None, scene, path });
        }
        if !can_mount("/dev/loop-control") {
            return None;
        }
        File::create(scene.path("backing")).unwrap().set_len(size).unwrap();
        let device = Device::over(&scene, &["backing"]);
        let path = PathBuf::from(&device.0);
        Some(TestMedium { held: Some((File::open(&path).unwrap(), device)), scene, path })
    }

    fn location(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// Makes a disk of two levels on it.
    fn create(&self, size: &str, format: &str, cover: &str) {
        let shape = ["--format", format, "--levels", "2", "--key-file", "deep", "--cover", cover];
        let size = ["--size", size];
        // The size of a device is given.
        let size = if self.held.is_none() { &size[..] } else { &[] };
        self.scene.create(self.location(), &[&shape[..], size].concat()).code(0);
    }

    fn serve(&self, options: &[&str]) -> Serving {
        let words = ["serve", self.location(), "--socket", "nbd.sock", "--key-file", "deep"];
        self.scene.serve_command(&mut self.scene.command(&[&words[..], options].concat()))
    }

    /// Maximum number of pages that other programs may have brought into memory.
    fn of_others(&self) -> usize {
        if self.held.is_some() && Path::new("/run/udev/control").exists() { PROBED } else { 0 }
    }

    fn resident(&self) -> usize {
        resident(&self.path)
    }

    /// The same, once it has not changed for a while.
    fn settled(&self) -> usize {
        let (mut last, mut same) = (self.resident(), 0);
        wait_until("that nothing more is read", || {
            let now = self.resident();
            same = if now == last { same + 1 } else { 0 };
            last = now;
            same > 50
        });
        last
    }

    #[track_caller]
    fn assert_at_most(&self, pages: usize, when: &str) {
        let now = self.resident();
        assert!(now <= pages + self.of_others(), "{}: {when}: {now} pages", self.location());
    }

    /// Waits for the end of a server, when all pages are dropped. A query for the disk would read
    /// its header.
    fn wait_until_gone(&self) {
        wait_until("that no page is in memory", || self.resident() <= self.of_others());
    }
}

/// Whether the system can read without caching the data: with direct I/O, or with RWF_DONTCACHE
/// (Linux 6.14).
fn reads_without_caching(path: &Path) -> bool {
    if fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).is_ok() {
        return true;
    }
    let mut block = [0; BLOCK as usize];
    let file = File::open(path).unwrap();
    // No read-ahead: its pages would stay.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    let read = preadv2(&file, &mut [IoSliceMut::new(&mut block)], 0, ReadWriteFlags::from_bits_retain(0x80));
    if read.is_err() {
        skipped("the system cannot read without keeping the data");
    }
    read.is_ok()
}

/// Whether files here have a cache that can be dropped.
fn can_inspect_cache(scene: &Scene) -> bool {
    let path = scene.path("probe");
    fs::write(&path, [7; 65536]).unwrap();
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let can_go = resident(&path) == 0;
    if !can_go {
        skipped("the temporary directory is in memory alone");
    }
    can_go
}

/// Serves a disk, closed and killed, and checks its pages in memory.
fn check_served_disk(format: &str, medium: &TestMedium) {
    let ahead = if format == "oblivious" { NEXT_BATCHES } else { 0 };
    let levels =
        |server: &Serving| ["0", "1"].map(|level| Client::connect_to(&server.socket, level).unwrap());
    medium.create("64M", format, "0");
    let server = medium.serve(&[]);
    let [mut public, mut hidden] = levels(&server);
    hidden.write_at(0, &noise(1, 200_000)).unwrap();
    for at in 0..8 {
        public.write_at(at << 20, &noise(at, 1 << 20)).unwrap();
    }
    public.flush().unwrap();
    hidden.flush().unwrap();
    drop((public, hidden));
    assert_eq!(server.stop(), 0);
    medium.assert_at_most(0, "closed");

    let mut server = medium.serve(&[]);
    let opened = medium.settled();
    medium.assert_at_most(ahead, "opened");
    let [mut public, mut hidden] = levels(&server);
    if reads_without_caching(&medium.path) {
        let content = noise(1, 200_000);
        for at in 0..20 {
            let at = at * 7 % 48 * BLOCK;
            assert!(hidden.read_at(at, 4096).unwrap() == content[at as usize..][..4096]);
        }
        medium.assert_at_most(opened, "hidden reads");
    }
    // Pages of public reads may stay.
    (0..8).for_each(|at| drop(public.read_at(at << 20, 1 << 20).unwrap()));
    assert!(medium.resident() > opened + MANY, "{format}: public reads");
    server.kill();
    assert!(medium.resident() > MANY, "{format}: killed");
    // The pages of the killed server are dropped, and a read-only server reads nothing ahead of
    // need.
    let server = medium.serve(&["--read-only"]);
    medium.assert_at_most(0, "opened to read alone, after a kill");
    let mut public = Client::connect(&server.socket).unwrap();
    (0..8).for_each(|at| drop(public.read_at(at << 20, 1 << 20).unwrap()));
    assert!(medium.resident() > MANY, "{format}: public reads, read-only");
    drop(public);
    assert_eq!(server.stop(), 0);
    medium.assert_at_most(0, "closed, read-only");

    let mut server = medium.serve(&[]);
    let mut public = Client::connect(&server.socket).unwrap();
    (0..8).for_each(|at| drop(public.read_at(at << 20, 1 << 20).unwrap()));
    server.kill();
    assert!(medium.resident() > MANY, "{format}: killed again");
    let server = medium.serve(&[]);
    medium.settled();
    medium.assert_at_most(ahead, "opened after a kill");
    assert_eq!(server.stop(), 0);
    medium.assert_at_most(0, "closed again");
}

#[test]
fn the_page_cache_has_no_pages_of_a_closed_disk_or_of_hidden_reads() {
    for format in FORMATS {
        let Some(medium) = TestMedium::new(64 << 20, false) else { return };
        check_served_disk(format, &medium);
    }
}

#[test]
fn the_page_cache_of_a_device_has_no_pages_of_a_closed_disk_or_of_hidden_reads() {
    for format in FORMATS {
        let Some(medium) = TestMedium::new(64 << 20, true) else { return };
        check_served_disk(format, &medium);
    }
}

/// Mounts both levels of a disk, closes it, and checks its pages in memory.
fn check_mounted_disk(format: &str, medium: &TestMedium) {
    let scene = &medium.scene;
    ["files", "data"].iter().for_each(|dir| fs::create_dir(scene.path(dir)).unwrap());
    medium.create("96M", format, "20");
    let open = ["open", medium.location(), "files", "data", "--key-file", "deep"];
    scene.lacuna(&[&open[..], &["--mkfs", "ext4"]].concat()).code(0);
    fs::write(scene.path("data/file"), noise(1, 200_000)).unwrap();
    fs::write(scene.path("files/file"), noise(2, 200_000)).unwrap();
    scene.lacuna(&["close", medium.location(), "--wait"]).code(0);
    medium.wait_until_gone();
    scene.lacuna(&open).code(0);
    assert!(fs::read(scene.path("data/file")).unwrap() == noise(1, 200_000), "{format}");
    scene.lacuna(&["close", medium.location()]).code(0);
    medium.wait_until_gone();
}

#[test]
fn the_page_cache_has_no_pages_of_an_unmounted_disk() {
    skip_unless!(can_mount_ext4());
    for format in FORMATS {
        for on_device in [false, true] {
            let Some(medium) = TestMedium::new(96 << 20, on_device) else { continue };
            check_mounted_disk(format, &medium);
        }
    }
}
