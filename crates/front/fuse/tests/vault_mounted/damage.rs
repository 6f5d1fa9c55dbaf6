//! Tests with a modified backing directory: an unverifiable block is an error for that block alone,
//! never zeros and never an end of file; the log names the place.

use crate::fixture::{VaultFixture, skip_if};
use crate::machine::lacking;
use crate::serving::MountMode;
use rustix::fs::OFlags;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Length of the file, in blocks.
const BLOCKS: u64 = 1024;
/// The modified block.
const BAD: u64 = 600;

fn content() -> Vec<u8> {
    lacuna_sim::Rng::new(7).bytes(BLOCKS as usize * 4096)
}

/// The files in subfolders of the backing directory.
fn files(backing: &Path) -> impl Iterator<Item = PathBuf> {
    let folders = fs::read_dir(backing).unwrap().map(|e| e.unwrap().path()).filter(|path| path.is_dir());
    folders.flat_map(|folder| fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()))
}

/// The largest of the files.
fn largest(backing: &Path) -> PathBuf {
    files(backing).max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap()
}

fn flip(path: &Path, offset: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

/// Makes a closed vault with one file and flips a bit of it; returns the backing file.
fn altered(place: &VaultFixture) -> PathBuf {
    let server = place.mount(MountMode::Create);
    fs::create_dir(place.mountpoint().join("dir")).unwrap();
    fs::write(place.mountpoint().join("dir/file"), content()).unwrap();
    place.unmount(server);
    let backing = largest(&place.backing());
    flip(&backing, BAD * 4096 + 77);
    assert_eq!(place.take_log(), Vec::<String>::new());
    backing
}

fn is_input_output_error<T: std::fmt::Debug>(result: std::io::Result<T>) {
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EIO));
}

fn altered_block_is_an_error(how: MountMode) {
    skip_if!(lacking());
    let place = VaultFixture::new();
    let backing = altered(&place);
    let server = place.mount(how);
    let path = place.mountpoint().join("dir/file");
    assert_eq!(fs::metadata(&path).unwrap().len(), BLOCKS * 4096);
    is_input_output_error(fs::read(&path));
    assert_eq!(fs::metadata(&path).unwrap().len(), BLOCKS * 4096, "the file seems to end at the bad block");
    let file = File::open(&path).unwrap();
    let expected = content();
    let mut block = [0; 4096];
    for number in (0..BLOCKS).chain((0..BLOCKS).rev()) {
        let read = file.read_exact_at(&mut block, number * 4096);
        if number == BAD {
            is_input_output_error(read);
        } else {
            read.unwrap_or_else(|e| panic!("block {number}: {e}"));
            assert!(block[..] == expected[number as usize * 4096..][..4096], "block {number}");
        }
    }
    // One call returns the data before the block, or none; then an error follows.
    let mut out = vec![0; 64 * 4096];
    match file.read_at(&mut out, (BAD - 32) * 4096) {
        Ok(read) => {
            assert!(read <= 32 * 4096);
            assert!(out[..read] == expected[(BAD as usize - 32) * 4096..][..read]);
        }
        Err(e) => assert_eq!(e.raw_os_error(), Some(libc::EIO)),
    }
    let direct = rustix::fs::open(&path, OFlags::RDONLY | OFlags::DIRECT, rustix::fs::Mode::empty());
    let direct = File::from(direct.unwrap());
    is_input_output_error(direct.read_at(&mut block, BAD * 4096));
    direct.read_exact_at(&mut block, (BAD + 1) * 4096).unwrap();
    let log = place.take_log().join("\n");
    let name = backing.file_name().unwrap().to_str().unwrap();
    assert!(log.contains("dir/file") && log.contains(name) && log.contains(&format!("block {BAD}")), "{log}");
    drop((file, direct));
    place.unmount(server);
    place.assert_nothing_left();
}

#[test]
fn altered_block_is_an_error_for_that_block() {
    altered_block_is_an_error(MountMode::Open);
}

#[test]
fn an_altered_block_is_an_error_in_a_read_only_mount() {
    altered_block_is_an_error(MountMode::ReadOnly);
}

#[test]
fn altered_block_can_be_written_again() {
    skip_if!(lacking());
    let place = VaultFixture::new();
    altered(&place);
    let server = place.mount(MountMode::Open);
    let path = place.mountpoint().join("dir/file");
    let file = File::options().read(true).write(true).open(&path).unwrap();
    // Writing a part of the block needs the rest of it.
    is_input_output_error(file.write_all_at(b"part", BAD * 4096 + 5).and_then(|()| file.sync_all()));
    file.write_all_at(&[9; 4096], BAD * 4096).unwrap();
    file.sync_all().unwrap();
    drop(file);
    place.unmount(server);
    place.take_log();

    let server = place.mount(MountMode::Open);
    let mut expected = content();
    expected[BAD as usize * 4096..][..4096].fill(9);
    assert!(fs::read(&path).unwrap() == expected);
    place.unmount(server);
    place.verify();
}

#[test]
fn missing_backing_file_is_an_error() {
    skip_if!(lacking());
    let place = VaultFixture::new();
    let backing = altered(&place);
    fs::remove_file(backing).unwrap();
    let server = place.mount(MountMode::Open);
    let path = place.mountpoint().join("dir/file");
    is_input_output_error(fs::read(&path));
    fs::remove_file(&path).unwrap();
    fs::write(&path, b"new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    place.take_log();
    place.unmount(server);
    place.verify();
}

/// Collects every path below a directory, and reads the attributes of each.
fn paths_below(dir: &Path, found: &mut BTreeSet<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.metadata()?.is_dir() {
            paths_below(&entry.path(), found)?;
        }
        found.insert(entry.path());
    }
    Ok(())
}

#[test]
fn a_damaged_namespace_is_listed_whole_or_is_an_error() {
    let Some((place, server)) = VaultFixture::mounted() else { return };
    for dir in 0..12 {
        let dir = place.mountpoint().join(format!("directory-{dir}"));
        fs::create_dir(&dir).unwrap();
        (0..30).for_each(|file| fs::write(dir.join(format!("file-{file}")), b"x").unwrap());
    }
    let mut all = BTreeSet::new();
    paths_below(&place.mountpoint(), &mut all).unwrap();
    assert_eq!(all.len(), 12 * 31);
    place.unmount(server);
    // The files are short, so the names are in the largest backing file and in two copies of it.
    let bytes = fs::read(largest(&place.backing())).unwrap();
    let copies: Vec<PathBuf> =
        files(&place.backing()).filter(|path| fs::read(path).unwrap() == bytes).collect();
    assert_eq!(copies.len(), 3);
    let flip_all = |offset: u64| copies.iter().for_each(|names| flip(names, offset));
    let pages = bytes.len() as u64 / 4096;
    let mut errors = 0;
    for page in (0..pages).step_by(3) {
        flip_all(page * 4096 + 1000);
        if let Ok(vault) = place.try_open_to_read() {
            drop(vault);
            let server = place.mount(MountMode::FromReadOnly);
            let mut found = BTreeSet::new();
            match paths_below(&place.mountpoint(), &mut found) {
                Ok(()) => assert!(found == all, "page {page}: {} of {} paths", found.len(), all.len()),
                Err(e) => {
                    assert_eq!(e.raw_os_error(), Some(libc::EIO), "page {page}");
                    assert!(!place.take_log().is_empty(), "page {page}: the log has no word of it");
                    errors += 1;
                }
            }
            place.unmount(server);
        } else {
            // A vault that fails to open lists nothing.
            errors += 1;
        }
        flip_all(page * 4096 + 1000);
    }
    assert!(errors > 0, "no page of {pages} mattered");
}
