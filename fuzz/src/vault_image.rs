//! A small vault at two moments, and an adversary that alters its directory: flips bits; truncates,
//! removes and swaps files; restores pages and whole files of an earlier state; or answers reads
//! and lists names with earlier states.

use crate::bytes::InputCursor;
use crate::lying::requested_sim_lies;
use lacuna_contracts::{Result, Secret};
use lacuna_crypto::SeededRandom;
use lacuna_sim::{CrashFolder, FolderImage, Lies};
use lacuna_vault::store::{Anchor, AnchorState, MemoryAnchor};
use lacuna_vault::{
    FsError, FsResult, NewNode, ROOT, SystemWallClock, Vault, VaultBacking, VaultOpenOptions, VaultOptions,
};
use std::sync::{Arc, LazyLock};

const PAGE: usize = 4096;
const UUID: [u8; 16] = [3; 16];
/// Bytes of input per change, and maximum changes.
const CHANGE: usize = 6;
const CHANGES: usize = 16;
/// The names in the directory, sorted.
const NAMES: [&[u8]; 3] = [b"one", b"three", b"two"];

/// Damages a small vault by the input and opens it. The first byte of the input tells whether the
/// folder lies as well, and four bytes tell how. Checks that readable data is the latest and that
/// no name is missing without an error: in this session, and when the vault is opened again.
///
/// # Panics
///
/// If a check fails.
pub fn use_damaged(input: &[u8]) {
    let mut input = InputCursor::new(input);
    let lies = requested_sim_lies(&mut input);
    let mut image = HISTORY.newest.clone();
    for change in input.rest().chunks_exact(CHANGE).take(CHANGES) {
        HISTORY.damage(&mut image, change);
    }
    let folder = HISTORY.folder(&image, lies);
    let anchor = Arc::new(MemoryAnchor::new(Some(HISTORY.anchor.clone())));
    if let Ok(vault) = open(&folder, &anchor, 1) {
        HISTORY.check_vault(&vault);
        let _damaged = vault.check(&mut |_, _| {});
        let _refused = vault.sync().map(|()| vault.close());
    }
    folder.set_lies(None, |_| true);
    folder.set_name_lies(None);
    // Data that the first session sealed in spite of damage and lies is the latest as well, or is
    // refused.
    if let Ok(vault) = open(&folder, &anchor, 2) {
        HISTORY.check_vault(&vault);
    }
}

struct VaultHistory {
    older: FolderImage,
    newest: FolderImage,
    anchor: AnchorState,
    /// Contents of the files, in the order of [`NAMES`].
    contents: Vec<Vec<u8>>,
}

static HISTORY: LazyLock<VaultHistory> = LazyLock::new(|| {
    let (folder, anchor) = (CrashFolder::new(), Arc::new(MemoryAnchor::default()));
    let options = VaultOptions { open: options(), ..VaultOptions::default() };
    let vault = Vault::create(base(&folder, &anchor, 1), &master(), UUID, &options).expect("an empty folder");
    let mut contents = vec![];
    for (n, name) in NAMES.iter().enumerate() {
        let ino = vault.create_node(ROOT, name, NewNode::File, 0o600, 0, 0).expect("a name").ino;
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
    VaultHistory { older, newest, anchor, contents }
});

fn master() -> Secret<32> {
    Secret::copy_from(&[1; 32])
}

fn base(folder: &CrashFolder, anchor: &Arc<MemoryAnchor>, seed: u64) -> VaultBacking {
    VaultBacking {
        folder: Arc::new(folder.clone()),
        anchor: anchor.clone(),
        random: Arc::new(SeededRandom::new(seed)),
        clock: Arc::new(SystemWallClock),
    }
}

fn options() -> VaultOpenOptions {
    VaultOpenOptions { commit_period: None, ..VaultOpenOptions::default() }
}

fn open(folder: &CrashFolder, anchor: &Arc<MemoryAnchor>, seed: u64) -> Result<Vault> {
    Vault::open(base(folder, anchor, seed), &master(), UUID, &options())
}

/// Returns an answer, or `None` if verification failed.
///
/// # Panics
///
/// If the answer is another error number, such as that of a missing file.
fn verified<T>(what: &str, answer: FsResult<T>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(FsError::Storage(_)) => None,
        Err(FsError::Errno(number)) => panic!("{what} gives the error number {number}"),
    }
}

impl VaultHistory {
    /// A folder with this image. If it lies, it returns states of its past and of the vault's past.
    fn folder(&self, image: &FolderImage, lies: Option<Lies>) -> CrashFolder {
        let Some(mut lies) = lies else { return CrashFolder::from_image(image) };
        let folder = CrashFolder::from_image(&self.older);
        folder.keep_history();
        folder.restore(&self.newest);
        folder.restore(image);
        let about_names = lies.rng.chance(1, 4);
        folder.set_lies(Some(&lies), |_| true);
        folder.set_name_lies(about_names.then_some(lies));
        folder
    }

    /// Checks all that a vault shows, and returns the number of readable pages.
    fn check_vault(&self, vault: &Vault) -> usize {
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

    /// Applies one change:
    ///
    /// ```text
    ///   0  kind: flip bits, remove, truncate, an earlier file, swap two files, an earlier page of
    ///      another file
    ///   1  file
    ///   2  other file
    ///   3  offset or page, two bytes
    ///   5  mask, or page of the earlier file
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
    use crate::lying::sim_lies_of_seed;
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

    /// An undamaged vault is readable as a whole, and some pages are readable in spite of lies.
    #[test]
    fn an_undamaged_vault_is_readable() {
        let anchor = || Arc::new(MemoryAnchor::new(Some(HISTORY.anchor.clone())));
        let all: usize = HISTORY.contents.iter().map(|content| content.len().div_ceil(PAGE)).sum();
        let vault = open(&HISTORY.folder(&HISTORY.newest, None), &anchor(), 1).unwrap();
        assert_eq!(HISTORY.check_vault(&vault), all);
        drop(vault);
        let shown = |seed: u32| {
            let folder = HISTORY.folder(&HISTORY.newest, Some(sim_lies_of_seed(3 * seed)));
            open(&folder, &anchor(), 1).map_or(0, |vault| HISTORY.check_vault(&vault))
        };
        assert!((0..40).map(shown).any(|pages| pages > 0), "lies of two in a hundred reads hide everything");
    }
}
