//! Pages of the file of a disk without levels in the system's cache: they stay from one server to
//! the next if the disk was closed well and no program wrote to the file since.

use super::can_inspect_cache;
use super::pages::resident_from;
use crate::harness::{Scene, Signal, noise, send, skipped};
use crate::keeper::server_of;
use crate::nbd_client::Client;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

/// The slots of the disk begin before this byte, with enough room for the system to read ahead when
/// the map before them is read: up to 8 MiB on some devices.
const SLOTS: usize = 32 << 20;
/// Most pages of slots in memory after they were dropped.
const FEW: usize = 400;
/// Fewest pages of slots in memory if they stay.
const MANY: usize = 4000;
/// The file systems where pages stay: ext4, xfs, btrfs and f2fs.
const FILE_SYSTEMS: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// A disk that was written and closed.
struct ClosedDisk(Scene);

impl ClosedDisk {
    /// `None`, with a message, where the cache cannot be examined, or where no pages stay.
    fn new() -> Option<ClosedDisk> {
        let disk = ClosedDisk(Scene::with_disk(&["--size", "64M"]));
        let kind = rustix::fs::statfs(disk.path()).unwrap().f_type as u64;
        if !FILE_SYSTEMS.contains(&kind) {
            skipped("the temporary directory is on a file system where no cached pages stay");
            return None;
        }
        if !can_inspect_cache(&disk.0) {
            return None;
        }
        disk.0.serve(&[]).used_by(|client| {
            for at in 0..32 {
                client.write_at(at << 20, &noise(at, 1 << 20)).unwrap();
            }
            client.flush().unwrap();
        });
        Some(disk)
    }

    fn path(&self) -> PathBuf {
        self.0.path("disk.img")
    }

    /// The mark of a disk that was closed well.
    fn mark(&self) -> PathBuf {
        let root = rustix::process::geteuid().is_root();
        let base = if root { PathBuf::from("/run/lacuna") } else { self.0.path("lacuna") };
        let about = fs::metadata(self.path()).unwrap();
        base.join("closed").join(format!("{:x}-{:x}", about.dev(), about.ino()))
    }

    /// Brings the whole file into memory, as another program would that reads it.
    fn cache(&self) {
        fs::read(self.path()).unwrap();
        assert!(resident_from(&self.path(), SLOTS) >= MANY);
    }

    /// Whether the pages of slots are in memory.
    #[track_caller]
    fn is_cached(&self) -> bool {
        let pages = resident_from(&self.path(), SLOTS);
        assert!(pages <= FEW || pages >= MANY, "{pages} pages");
        pages >= MANY
    }

    /// Serves the disk and closes it. Returns whether the pages of slots stayed when it was opened.
    #[track_caller]
    fn keeps(&self, options: &[&str]) -> bool {
        self.cache();
        let server = self.0.serve(options);
        let stayed = self.is_cached();
        let mut client = Client::connect(&server.socket).unwrap();
        assert!(client.read_at(5 << 20, 1 << 20).unwrap() == noise(5, 1 << 20));
        drop(client);
        assert_eq!(server.stop(), 0);
        stayed
    }
}

impl Drop for ClosedDisk {
    fn drop(&mut self) {
        // The run directory of root outlives the test.
        let _ = fs::remove_file(self.mark());
    }
}

#[test]
fn cached_pages_of_a_file_stay_after_a_clean_close_only() {
    let Some(disk) = ClosedDisk::new() else { return };
    assert!(disk.mark().exists() && disk.keeps(&[]), "closed well");
    assert!(disk.keeps(&["--read-only"]) && disk.mark().exists(), "read only");
    assert!(disk.keeps(&[]), "after it was read only");

    // Another program writes a byte again.
    let file = File::options().read(true).write(true).open(disk.path()).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 20 << 20).unwrap();
    file.write_all_at(&byte, 20 << 20).unwrap();
    drop(file);
    assert!(!disk.keeps(&["--read-only"]), "another writer, read only");
    assert!(!disk.keeps(&[]), "another writer");
    assert!(disk.keeps(&[]), "closed well again");

    // A backup is put back.
    fs::copy(disk.path(), disk.0.path("backup")).unwrap();
    fs::rename(disk.0.path("backup"), disk.path()).unwrap();
    assert!(!disk.keeps(&[]), "a copy in its place");
    fs::copy(disk.path(), disk.0.path("backup")).unwrap();
    fs::copy(disk.0.path("backup"), disk.path()).unwrap();
    assert!(!disk.keeps(&[]), "a copy into it");
    assert!(disk.keeps(&[]), "closed well after a copy");

    // The run directory outlived the boot.
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let mark = fs::read_to_string(disk.mark()).unwrap();
    assert!(mark.contains(boot.trim()), "{mark}");
    fs::write(disk.mark(), mark.replace(boot.trim(), "00000000-0000-4000-8000-000000000000")).unwrap();
    assert!(!disk.keeps(&[]), "another boot");
    assert!(disk.keeps(&[]), "closed well in this boot");

    disk.0.lacuna(&["key", "refresh", "disk.img", "--key-file", "key", "--yes", "--keep", "1"]).code(0);
    assert!(!disk.keeps(&[]), "another header");

    let mut server = disk.0.serve(&[]);
    assert!(!disk.mark().exists(), "open");
    server.kill();
    assert!(!disk.keeps(&[]), "killed");
    assert!(disk.keeps(&[]), "closed well after a kill");
}

#[test]
fn a_server_that_follows_a_dead_one_drops_cached_pages() {
    let Some(disk) = ClosedDisk::new() else { return };
    disk.cache();
    let args = ["serve", "disk.img", "--socket", "nbd.sock", "--key-file", "key"];
    let serving = disk.0.serve_kept(&mut disk.0.command(&args));
    assert!(disk.is_cached() && !disk.mark().exists(), "the first server");
    let server = server_of(serving.process()).unwrap();
    disk.cache();
    send(Signal::KILL, server);
    // The next server has opened the disk when it answers.
    drop(Client::connect(&serving.socket).unwrap());
    assert!(!disk.is_cached(), "the second server");
    assert_eq!(serving.stop(), 0);
    assert!(disk.keeps(&[]), "closed well");
}
