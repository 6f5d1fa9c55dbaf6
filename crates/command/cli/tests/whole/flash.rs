//! Use of disks on a simulated flash chip: created, served, purged, mounted, closed.

#[path = "../../../../formats/flash/tests/fixture/adversary.rs"]
mod adversary;

use crate::daily::IsolatedScene;
use crate::harness::{
    CloseOnDrop, Scene, Signal, can_mount_ext4, is_program_available, noise, skip_unless, skipped,
};
use crate::nbd_client::Client;
use adversary::{Adversary, ChipLayout};
use lacuna_contracts::SecretVec;
use lacuna_flash::{Params, header_lebs};
use lacuna_medium::{Access, FileMedium};
use lacuna_nand::{Chip, Flash, Mapping, SimulatedChip};
use lacuna_storage::HeaderMedium;
use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

/// A disk of 32 MiB on a chip, with a cheap key derivation.
fn scene(options: &[&str]) -> Scene {
    let scene = Scene::new();
    let made = scene.create("nand:chip.img", &[&["--size", "32M"], options].concat()).code(0);
    assert!(made.stderr.contains("a file erases nothing by itself"), "{}", made.stderr);
    scene
}

fn items(scene: &Scene, name: &str) -> u64 {
    let status = scene.lacuna(&["status", "nand:chip.img", "--json"]).code(0).json();
    let items = status["servers"][0]["items"].as_array().unwrap().clone();
    items.iter().find(|item| item["name"] == name).unwrap()["value"].as_u64().unwrap()
}

#[test]
fn overwritten_data_is_purged_on_request_and_at_close() {
    let scene = scene(&[]);
    let info = scene.lacuna(&["info", "nand:chip.img", "--json"]).code(0).json();
    assert_eq!((&info["header"]["format"], &info["key_bits"]), (&"flash".into(), &256.into()));
    assert_eq!(info["forgetting"], serde_json::Value::Null);
    let serving = scene.serve_disk("nand:chip.img", &[]);
    let mut client = Client::connect(&serving.socket).unwrap();
    let data = noise(1, 1 << 20);
    client.write_at(0, &data).unwrap();
    client.flush().unwrap();
    client.write_at(0, &noise(2, 256 << 10)).unwrap();
    client.discard(512 << 10, 128 << 10).unwrap();
    client.flush().unwrap();
    let recoverable = items(&scene, "recoverable");
    assert_eq!((recoverable, items(&scene, "recoverable_known")), (96, 96));
    let info = scene.lacuna(&["info", "nand:chip.img", "--json"]).code(0).json();
    let forgetting = &info["forgetting"];
    assert_eq!(
        (&forgetting["recoverable"], &forgetting["recoverable_known"]),
        (&(96 * 4096).into(), &(96 * 4096).into())
    );
    assert_eq!(info["medium"]["in_use"], true);
    let purged = scene.lacuna(&["purge", "nand:chip.img", "--json"]).code(0).json();
    assert_eq!((&purged["complete"], &purged["items"][0]["value"]), (&true.into(), &recoverable.into()));
    assert_eq!(items(&scene, "recoverable"), 0);
    let words = scene.lacuna(&["purge", "nand:chip.img"]).code(0).stdout;
    assert!(words.contains("nothing was deleted since"), "{words}");
    client.write_at(1 << 20, &data).unwrap();
    client.write_at(1 << 20, &noise(3, 4096)).unwrap();
    drop(client);
    assert_eq!(serving.stop(), 0);
    // Closing purged as well.
    let info = scene.lacuna(&["info", "nand:chip.img", "--key-file", "key", "--json"]).code(0).json();
    assert_eq!(info["forgetting"]["recoverable"], 0);
    let checked = scene.lacuna(&["check", "nand:chip.img", "--key-file", "key", "--json"]).code(0).json();
    assert_eq!((&checked["good"], &checked["bad"]), (&480.into(), &0.into()));
}

#[test]
fn a_disk_that_a_crash_left_is_purged_by_location() {
    let scene = scene(&["--key-bits", "128", "--chip", "page=2K,pages=32,bad=10"]);
    let mut serving = scene.serve_disk("nand:chip.img", &["--purge-period", "0", "--write-through"]);
    let mut client = Client::connect(&serving.socket).unwrap();
    for seed in 1..4 {
        client.write_at(0, &noise(seed, 64 << 10)).unwrap();
    }
    drop(client);
    serving.signal(Signal::KILL);
    serving.kill();
    scene.wait_until_free("nand:chip.img");
    let info = scene.lacuna(&["info", "nand:chip.img", "--key-file", "key"]).code(0).stdout;
    // Two versions of 16 blocks were overwritten. In addition the unused keys of a fresh block may
    // belong to deleted data.
    assert!(
        info.contains("that were deleted or overwritten, 128 KiB of them known; `lacuna purge` ends"),
        "{info}"
    );
    scene.lacuna(&["purge", "nand:chip.img"]).code(1);
    let purged = scene.lacuna(&["purge", "nand:chip.img", "--key-file", "key", "--json"]).code(0).json();
    assert!(purged["items"][0]["value"].as_u64().unwrap() > 32, "{purged}");
    assert_eq!(
        (&purged["items"][1]["name"], &purged["items"][1]["value"]),
        (&"purged_known".into(), &32.into())
    );
    scene
        .serve_disk("nand:chip.img", &["--read-only"])
        .used_by(|client| assert_eq!(client.read_at(0, 64 << 10).unwrap(), noise(3, 64 << 10)));
}

#[test]
fn sensitive_places_are_purged_at_once() {
    let scene = scene(&[]);
    let serving = scene.serve_disk("nand:chip.img", &["--sensitive", "0-1M", "--purge-above", "8M"]);
    let mut client = Client::connect(&serving.socket).unwrap();
    client.write_at(0, &noise(1, 8192)).unwrap();
    client.write_at(4 << 20, &noise(1, 8192)).unwrap();
    client.flush().unwrap();
    client.write_at(4 << 20, &noise(2, 8192)).unwrap();
    client.flush().unwrap();
    assert!(items(&scene, "recoverable") >= 2);
    client.write_at(0, &noise(2, 8192)).unwrap();
    client.flush().unwrap();
    assert_eq!(items(&scene, "recoverable"), 0);
    drop(client);
    assert_eq!(serving.stop(), 0);
}

#[test]
fn headers_and_passphrases_are_as_on_other_disks() {
    let scene = scene(&[]);
    fs::write(scene.path("new"), "battery staple\n").unwrap();
    let image = || fs::read(scene.path("chip.img")).unwrap();
    scene.lacuna(&["header", "backup", "nand:chip.img", "backup"]).code(0);
    scene.lacuna(&["key", "add", "nand:chip.img", "--key-file", "key", "--new-key-file", "new"]).code(0);
    let with_old = image();
    let remove = ["key", "remove", "nand:chip.img", "--key-file", "new", "--remove-key-file", "key", "--yes"];
    scene.lacuna(&remove).code(0);
    assert_ne!(with_old, image());
    scene.lacuna(&["check", "nand:chip.img", "--key-file", "new"]).code(0);
    scene.lacuna(&["check", "nand:chip.img", "--key-file", "key"]).code(2);
    let older = ["header", "restore", "nand:chip.img", "backup", "--key-file", "key", "--yes"];
    scene.lacuna(&older).code(11);
    scene.lacuna(&[&older[..], &["--older"]].concat()).code(0);
    scene.lacuna(&["check", "nand:chip.img", "--key-file", "key"]).code(0);
    scene.lacuna(&["header", "repair", "nand:chip.img", "--key-file", "key"]).code(0);
}

#[test]
fn a_disk_grows_as_far_as_its_flash_goes() {
    let scene = scene(&[]);
    let info = || scene.lacuna(&["info", "nand:chip.img", "--json"]).code(0).json();
    let largest = info()["largest_size"].as_u64().unwrap();
    assert!(largest > 32 << 20);
    scene
        .serve_disk("nand:chip.img", &[])
        .used_by(|client| client.write_at((32 << 20) - 8192, &noise(1, 8192)).unwrap());
    scene.lacuna(&["header", "backup", "nand:chip.img", "backup"]).code(0);
    let resize = |size: u64| {
        scene.lacuna(&["resize", "nand:chip.img", "--size", &size.to_string(), "--key-file", "key"])
    };
    resize(largest + 4096).code(1);
    resize(largest - 4096).code(0);
    resize(largest).code(0);
    scene.serve_disk("nand:chip.img", &[]).used_by(|client| {
        client.write_at(largest - 8192, &noise(2, 8192)).unwrap();
        // The capacity of the chip beyond 32 MiB depends on its spare blocks.
        let gap = (largest - 8192 - (32 << 20)).min(8192) as usize;
        assert_eq!(
            client.read_at((32 << 20) - 8192, 8192 + gap).unwrap(),
            [noise(1, 8192), vec![0; gap]].concat()
        );
    });
    let checked = scene.lacuna(&["check", "nand:chip.img", "--key-file", "key", "--json"]).code(0).json();
    assert_eq!((&checked["good"], &checked["bad"]), (&4.into(), &0.into()));
    assert_eq!(info()["size"], largest);
    let older = ["header", "restore", "nand:chip.img", "backup", "--key-file", "key", "--yes", "--older"];
    scene.lacuna(&older).code(11);
}

#[test]
fn chips_of_all_kinds_are_made() {
    let scene = Scene::new();
    for chip in [
        "page=512,pages=64",
        "page=4K,pages=128",
        "page=8K,pages=128",
        "page=16K,pages=64",
        "page=64K,pages=256",
    ] {
        scene.create("nand:chip.img", &["--size", "16M", "--chip", chip]).code(0);
        assert_eq!(scene.lacuna(&["info", "nand:chip.img", "--json"]).code(0).json()["size"], 16 << 20);
        fs::remove_file(scene.path("chip.img")).unwrap();
    }
}

#[test]
fn erase_blocks_that_are_too_short_are_named() {
    let scene = Scene::new();
    let refused = scene.create("nand:chip.img", &["--size", "4K", "--chip", "page=512,pages=17"]).code(1);
    assert!(
        refused.stderr.contains("found: logical erase blocks of 7680 bytes, pages of 512"),
        "{}",
        refused.stderr
    );
    assert!(
        refused.stderr.contains("at least 8192 bytes") && !refused.stderr.contains("smaller disk"),
        "{}",
        refused.stderr
    );
    scene.create("nand:chip.img", &["--size", "4K", "--chip", "page=512,pages=18"]).code(0);
}

#[test]
fn all_open_disks_on_flash_are_purged_at_once() {
    // Disks of other tests are open at the same time and must not be purged.
    let Some(apart) = IsolatedScene::new() else { return };
    let scene = &apart.scene;
    scene.create("nand:chip.img", &["--size", "32M"]).code(0);
    scene.create("disk.img", &["--size", "16M"]).code(0);
    let purge = || apart.lacuna(&["purge", "--all"]);
    let nothing = purge().code(0).stdout;
    assert!(nothing.contains("no disk on flash is open"), "{nothing}");
    let serve = |args: &[&str]| {
        let program = [env!("CARGO_BIN_EXE_lacuna"), "serve", "--key-file", "key"];
        scene.serve_command(&mut apart.command(&[&program[..], args].concat()))
    };
    let other = serve(&["disk.img", "--socket", "other.sock"]);
    let serving = serve(&["nand:chip.img", "--socket", "nbd.sock", "--purge-period", "0"]);
    let mut client = Client::connect(&serving.socket).unwrap();
    client.write_at(0, &noise(1, 64 << 10)).unwrap();
    client.flush().unwrap();
    client.discard(0, 64 << 10).unwrap();
    let purged = purge().code(0).stdout;
    assert!(
        purged.contains("chip.img: 16 deleted blocks gone for good") && purged.lines().count() == 1,
        "{purged}"
    );
    assert_eq!(apart.counter("nand:chip.img", "recoverable"), 0);
    // A disk with an unresponsive server is reported.
    serving.signal(Signal::STOP);
    let silent = purge();
    serving.signal(Signal::CONT);
    assert!(silent.code == 20 && silent.stderr.contains("does not answer"), "{}", silent.stderr);
    apart.lacuna(&["purge", "--all", "nand:chip.img"]).code(1);
    drop(client);
    assert_eq!((serving.stop(), other.stop()), (0, 0));
}

#[test]
fn a_purge_warns_of_data_that_btrfs_keeps() {
    skip_unless!(is_program_available("mkfs.btrfs") && is_program_available("fstrim"));
    // `purge --all` would purge the disks of other tests too.
    let Some(apart) = IsolatedScene::new() else { return };
    apart.scene.create("nand:chip.img", &["--size", "128M"]).code(0);
    fs::create_dir(apart.scene.path("mnt")).unwrap();
    let opened = apart.lacuna(&["open", "nand:chip.img", "mnt", "--mkfs", "btrfs", "--key-file", "key"]);
    if opened.code != 0 {
        skipped(&format!("btrfs cannot be mounted here: {}", opened.stderr));
        return;
    }
    let written =
        apart.command(&["dd", "if=/dev/urandom", "of=mnt/secret", "bs=1M", "count=1"]).output().unwrap();
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    for location in ["mnt", "nand:chip.img", "--all"] {
        let purged = apart.lacuna(&["purge", location]).code(0);
        assert!(
            purged.stderr.contains("note: btrfs keeps data that was overwritten"),
            "{location}: {}",
            purged.stderr
        );
    }
    apart.lacuna(&["close", "mnt"]).code(0);
}

/// A server keeps its disk when the file is moved. A new file in its place is another disk.
#[test]
fn a_purge_applies_to_the_disk_now_at_the_location() {
    let scene = scene(&[]);
    let serving = scene.serve_disk("nand:chip.img", &[]);
    fs::rename(scene.path("chip.img"), scene.path("moved.img")).unwrap();
    scene.create("nand:chip.img", &["--size", "16M"]).code(0);
    scene.lacuna(&["purge", "nand:chip.img"]).code(1);
    scene.lacuna(&["purge", "nand:chip.img", "--key-file", "key"]).code(0);
    assert_eq!(serving.stop(), 0);
}

/// The file of the first server was removed: another disk is at its path, perhaps with the same
/// inode number, with a server of its own. Both servers report the same location.
#[test]
fn a_purge_goes_to_the_server_of_the_disk_now_at_the_location() {
    let scene = scene(&[]);
    let first = scene.serve_disk("nand:chip.img", &[]);
    fs::remove_file(scene.path("chip.img")).unwrap();
    scene.create("nand:chip.img", &["--size", "16M"]).code(0);
    let args = ["serve", "nand:chip.img", "--socket", "second.sock", "--key-file", "key"];
    let second = scene.serve_command(&mut scene.command(&args));
    let mut client = Client::connect(&scene.path("second.sock")).unwrap();
    client.write_at(0, &noise(1, 256 << 10)).unwrap();
    client.flush().unwrap();
    client.discard(0, 256 << 10).unwrap();
    client.flush().unwrap();
    drop(client);
    let recoverable = || {
        let info = scene.lacuna(&["info", "nand:chip.img", "--key-file", "key", "--json"]).code(0).json();
        info["forgetting"]["recoverable"].as_u64().unwrap()
    };
    assert!(recoverable() >= 256 << 10);
    scene.lacuna(&["purge", "nand:chip.img"]).code(0);
    assert_eq!(recoverable(), 0);
    assert_eq!((first.stop(), second.stop()), (0, 0));
}

#[test]
fn options_for_other_media_are_refused_on_flash() {
    let scene = scene(&[]);
    let refused = |args: &[&str], code: i32, said: &str| {
        let ran = scene.lacuna(args).code(code);
        assert!(ran.stderr.contains(said), "{args:?}: {}", ran.stderr);
    };
    fs::write(scene.path("file"), [7; 8192]).unwrap();
    let create = |location: &'static str| ["create", location, "--size", "32M", "--key-file", "key"];
    refused(&create("nand:chip.img"), 1, "a lacuna disk");
    refused(&create("nand:file"), 1, "a file of 8 KiB");
    refused(&create("ubi:/dev/null"), 4, "not a UBI volume");
    refused(&[&create("disk.img")[..], &["--format", "flash"]].concat(), 1, "flash that can be erased");
    refused(&[&create("nand:new")[..], &["--format", "sealed"]].concat(), 1, "the format flash");
    refused(&[&create("nand:new")[..], &["--layout", "kv"]].concat(), 1, "--layout");
    refused(&[&create("nand:new")[..], &["--preallocate"]].concat(), 1, "preallocation on flash");
    refused(&[&create("nand:new")[..], &["--chip", "page=3000"]].concat(), 1, "3000");
    refused(&[&create("nand:new")[..], &["--chip", "pages"]].concat(), 1, "pages is not one of");
    refused(&[&create("disk.img")[..], &["--key-bits", "128"]].concat(), 1, "--key-bits");
    refused(&["create", "nand:new", "--key-file", "key"], 1, "no size");
    refused(&["info", "nand:file"], 4, "no simulated chip");
    refused(&["info", "nand:none"], 4, "cannot open none");
    refused(&["purge", "file", "--key-file", "key"], 1, "a place that is not flash");
    refused(&["resize", "nand:chip.img", "--size", "64M", "--key-file", "key"], 1, "laid out for that");
    refused(
        &["serve", "file", "--socket", "s", "--purge-period", "5", "--key-file", "key"],
        1,
        "--purge-period",
    );
    refused(&["snapshot", "list", "nand:chip.img"], 1, "snapshot");
    refused(&["purge", "nand:chip.img", "--key-file", "file"], 2, "passphrase");
    assert!(!scene.path("new").exists() && !scene.path("disk.img").exists());
    let made = scene.create("nand:chip.img", &["--size", "16M", "--force", "--yes"]);
    assert!(made.code == 1 || made.code == 0, "{}", made.stderr);
}

/// The content of every block that an adversary can read from the chip's current state with the
/// passphrase.
fn recovered(scene: &Scene) -> BTreeSet<Vec<u8>> {
    fs::copy(scene.path("chip.img"), scene.path("copy.img")).unwrap();
    let medium = Arc::new(FileMedium::open(&scene.path("copy.img"), Access::Read).unwrap());
    let chip = Arc::new(SimulatedChip::open(medium, 1).unwrap());
    let flash: Arc<dyn Flash> = Arc::new(Mapping::open(chip.clone()).unwrap());
    let header = HeaderMedium::new(flash);
    let unlocked = lacuna_header::open(&header, &[SecretVec::new(b"correct horse".to_vec())]).unwrap();
    let params = Params::parse(&unlocked.header.params).unwrap();
    let image = ChipLayout {
        page: chip.geometry().page as usize,
        block: chip.geometry().block_len() as usize,
        key_len: params.key_len.into(),
        header_lebs: header_lebs(params.flash),
        key_lebs: params.key_blocks(),
    };
    let mut adversary = Adversary::new(&unlocked.master_keys[0], image);
    adversary.look(&chip.image().unwrap());
    adversary.recovered()
}

#[test]
fn no_block_of_a_file_that_was_deleted_on_ext4_is_recoverable_after_a_purge() {
    skip_unless!(can_mount_ext4() && is_program_available("fstrim"));
    let scene = scene(&["--key-bits", "128"]);
    fs::create_dir(scene.path("mnt")).unwrap();
    let _closing = CloseOnDrop(&scene, &["mnt"]);
    scene.lacuna(&["open", "nand:chip.img", "mnt", "--mkfs", "ext4", "--key-file", "key"]).code(0);
    let (secret, kept) = (noise(9, 2 << 20), noise(10, 1 << 20));
    let count = |content: &[u8], found: &BTreeSet<Vec<u8>>| {
        content.chunks_exact(4096).filter(|block| found.contains(*block)).count()
    };
    fs::write(scene.path("mnt/secret"), &secret).unwrap();
    fs::write(scene.path("mnt/kept"), &kept).unwrap();
    scene.tool("sync", &["-f", "mnt"]);
    fs::remove_file(scene.path("mnt/secret")).unwrap();
    scene.tool("sync", &["-f", "mnt"]);
    let before = recovered(&scene);
    assert_eq!((count(&secret, &before), count(&kept, &before)), (512, 256));
    // The file system mounted over it is not trimmed instead.
    scene.tool("mount", &["-t", "tmpfs", "lacuna-test", "mnt"]);
    let covered = scene.lacuna(&["purge", "mnt"]);
    scene.tool("umount", &["mnt"]);
    assert!(covered.code == 12 && covered.stderr.contains("another file system"), "{}", covered.stderr);
    let purged = scene.lacuna(&["purge", "mnt", "--json"]).code(0).json();
    assert!(purged["items"][0]["value"].as_u64().unwrap() >= 512, "{purged}");
    let after = recovered(&scene);
    assert_eq!((count(&secret, &after), count(&kept, &after)), (0, 256));
    assert_eq!(fs::read(scene.path("mnt/kept")).unwrap(), kept);
    scene.lacuna(&["close", "mnt"]).code(0);
}
