//! A small vault at two moments of its life, and an adversary who alters its directory: bits flipped, files cut, removed and swapped,
//! pages and whole files of an earlier state put back; or who answers reads, and looks at names, with any of that.

use crate::bytes::Bytes;
use crate::lying::asked;
use lacuna_contracts::{Result, Secret};
use lacuna_crypto::SeededRandom;
use lacuna_sim::{CrashFolder, FolderImage, Lies};
use lacuna_vault::store::{Anchor, AnchorState, MemoryAnchor};
use lacuna_vault::{
    Base, FsError, FsResult, NewNode, OpenOptions, ROOT, SystemWallClock, Vault, VaultOptions,
};
use std::sync::{Arc, LazyLock};

const PAGE: usize = 4096;
const UUID: [u8; 16] = [3; 16];
/// Bytes of input for one change, and changes at most.
const CHANGE: usize = 6;
const CHANGES: usize = 16;
/// In order.
const NAMES: [&[u8]; 3] = [b"one", b"three", b"two"];

/// Damages a small vault as the input says, and opens it. Its first byte says whether the folder lies as well, and four bytes how. What
/// can be read is the latest, and no name is missing without an error: in that session, and when it is opened again.
///
/// # Panics
///
/// If that is not so.
pub fn use_damaged(input: &[u8]) {
    let mut input = Bytes::new(input);
    let lies = asked(&mut input);
    let mut image = MADE.newest.clone();
    for change in input.rest().chunks_exact(CHANGE).take(CHANGES) {
        MADE.damage(&mut image, change);
    }
    let folder = MADE.folder(&image, lies);
    let anchor = Arc::new(MemoryAnchor::new(Some(MADE.anchor.clone())));
    if let Ok(vault) = open(&folder, &anchor, 1) {
        MADE.look(&vault);
        let _damaged = vault.check(&mut |_, _| {});
        let _refused = vault.sync().map(|()| vault.close());
    }
    folder.lie(None, |_| true);
    folder.lie_about_names(None);
    // What was sealed on the strength of damage and lies is the latest as well, or is refused.
    if let Ok(vault) = open(&folder, &anchor, 2) {
        MADE.look(&vault);
    }
}

struct Made {
    older: FolderImage,
    newest: FolderImage,
    anchor: AnchorState,
    /// What the files hold, by the order of [`NAMES`].
    contents: Vec<Vec<u8>>,
}

static MADE: LazyLock<Made> = LazyLock::new(|| {
    let (folder, anchor) = (CrashFolder::new(), Arc::new(MemoryAnchor::default()));
    let options = VaultOptions { open: options(), ..VaultOptions::default() };
    let vault = Vault::create(base(&folder, &anchor, 1), &master(), UUID, &options).expect("an empty folder");
    let mut contents = vec![];
    for (n, name) in NAMES.iter().enumerate() {
        let ino = vault.make(ROOT, name, NewNode::File, 0o600, 0, 0).expect("a name").ino;
        let mut content = vec![n as u8; (n * 9 + 1) * PAGE + 100];
        vault.write(ino, 0, &content).expect("room");
        content[50..90].fill(0x77);
        contents.push(content);
    }
    vault.sync().expect("a folder without faults");
    let older = folder.snapshot();
    for name in NAMES {
        let ino = vault.lookup(ROOT, name).expect("it was made").ino;
        vault.write(ino, 50, &[0x77; 40]).expect("room");
    }
    vault.sync().expect("a folder without faults");
    let newest = folder.snapshot();
    drop(vault);
    let anchor = anchor.load().expect("memory").expect("a vault");
    Made { older, newest, anchor, contents }
});

fn master() -> Secret<32> {
    Secret::copy_from(&[1; 32])
}

fn base(folder: &CrashFolder, anchor: &Arc<MemoryAnchor>, seed: u64) -> Base {
    Base {
        folder: Arc::new(folder.clone()),
        anchor: anchor.clone(),
        random: Arc::new(SeededRandom::new(seed)),
        clock: Arc::new(SystemWallClock),
    }
}

fn options() -> OpenOptions {
    OpenOptions { commit_period: None, ..OpenOptions::default() }
}

fn open(folder: &CrashFolder, anchor: &Arc<MemoryAnchor>, seed: u64) -> Result<Vault> {
    Vault::open(base(folder, anchor, seed), &master(), UUID, &options())
}

/// What something gives, unless it does not verify.
///
/// # Panics
///
/// If it gives the error number of something that is not there, or cannot be done.
fn verified<T>(what: &str, answer: FsResult<T>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(FsError::Storage(_)) => None,
        Err(FsError::Errno(number)) => panic!("{what} gives the error number {number}"),
    }
}

impl Made {
    /// A folder that is as this image says; if it lies, of its past and of that of the vault.
    fn folder(&self, image: &FolderImage, lies: Option<Lies>) -> CrashFolder {
        let Some(mut lies) = lies else { return CrashFolder::from_image(image) };
        let folder = CrashFolder::from_image(&self.older);
        folder.keep_past();
        folder.restore(&self.newest);
        folder.restore(image);
        let about_names = lies.rng.chance(1, 4);
        folder.lie(Some(&lies), |_| true);
        folder.lie_about_names(about_names.then_some(lies));
        folder
    }

    /// Looks at all that a vault shows: how many pages of contents that are.
    fn look(&self, vault: &Vault) -> usize {
        let mut pages = 0;
        for (name, content) in NAMES.iter().zip(&self.contents) {
            let Some(attr) = verified("a name", vault.lookup(ROOT, name)) else { continue };
            assert_eq!(attr.size, content.len() as u64);
            for at in (0..content.len()).step_by(PAGE) {
                let mut found = vec![0; PAGE.min(content.len() - at)];
                let read = verified("a read", vault.read(attr.ino, at as u64, &mut found)).unwrap_or(0);
                assert!(found[..read] == content[at..at + read], "an old or altered block was shown");
                pages += usize::from(read > 0);
            }
        }
        let mut listed = vec![];
        let read = vault.read_dir(ROOT, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                listed.push(entry.name.to_vec());
            }
            true
        });
        if verified("the directory", read).is_some() {
            listed.sort();
            assert_eq!(listed, NAMES, "names are missing or strange");
        }
        pages
    }

    /// One change:
    ///
    /// ```text
    ///   0  what: flip bits, remove, cut, a file of the past, swap two files, a page of the past of another file
    ///   1  which file
    ///   2  which other one
    ///   3  a place, two bytes
    ///   5  a mask, or a page of the past
    /// ```
    fn damage(&self, image: &mut FolderImage, change: &[u8]) {
        let names: Vec<String> = self.newest.names().map(str::to_owned).collect();
        let name = &names[usize::from(change[1]) % names.len()];
        let other = &names[usize::from(change[2]) % names.len()];
        let page = usize::from(u16::from_le_bytes([change[3], change[4]]));
        let mut source = vec![];
        match change[0] % 6 {
            0 => {
                image.alter(name, |bytes| {
                    if !bytes.is_empty() {
                        let at = page * 61 % bytes.len();
                        bytes[at] ^= change[5] | 1;
                    }
                });
            }
            1 => {
                image.files.remove(name);
            }
            2 => {
                image.alter(name, |bytes| bytes.truncate(page * PAGE % (bytes.len() + 1)));
            }
            3 => {
                if let Some(file) = self.older.files.get(name) {
                    image.files.insert(name.clone(), file.clone());
                }
            }
            4 => {
                let (one, two) = (image.files.remove(name), image.files.remove(other));
                image.files.extend(two.map(|file| (name.clone(), file)));
                image.files.extend(one.map(|file| (other.clone(), file)));
            }
            _ => {
                self.older.clone().alter(other, |bytes| source.clone_from(bytes));
                image.alter(name, |bytes| {
                    let (pages, from) = (bytes.len() / PAGE, source.len() / PAGE);
                    if pages > 0 && from > 0 {
                        let (to, at) = (page % pages * PAGE, usize::from(change[5]) % from * PAGE);
                        bytes[to..to + PAGE].copy_from_slice(&source[at..at + PAGE]);
                    }
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lying::of_seed;
    use lacuna_sim::Rng;

    #[test]
    fn damaged_vaults_are_refused_or_show_the_latest() {
        let mut random = Rng::new(1);
        for round in 0..300 {
            let mut input = random.bytes(5 + CHANGE * (round % 5));
            input[0] = if round % 2 == 0 { 0x80 } else { 0 };
            use_damaged(&input);
        }
    }

    /// The adversary leaves something to see: all of it without damage, and now and then over lies.
    #[test]
    fn what_is_whole_is_shown() {
        let anchor = || Arc::new(MemoryAnchor::new(Some(MADE.anchor.clone())));
        let all: usize = MADE.contents.iter().map(|content| content.len().div_ceil(PAGE)).sum();
        let vault = open(&MADE.folder(&MADE.newest, None), &anchor(), 1).unwrap();
        assert_eq!(MADE.look(&vault), all);
        drop(vault);
        let shown = |seed: u32| {
            let folder = MADE.folder(&MADE.newest, Some(of_seed(3 * seed)));
            open(&folder, &anchor(), 1).map_or(0, |vault| MADE.look(&vault))
        };
        assert!((0..40).map(shown).any(|pages| pages > 0), "lies of two in a hundred reads hide everything");
    }
}
