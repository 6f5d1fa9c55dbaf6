//! A small vault whose directory an adversary has altered: bits flipped, files cut, removed and swapped, pages and whole files of
//! an earlier state put back. What can be read is the latest.
#![no_main]

use lacuna_contracts::Secret;
use lacuna_crypto::SeededRandom;
use lacuna_sim::{CrashFolder, FolderImage};
use lacuna_vault::store::{Anchor, AnchorState, MemoryAnchor};
use lacuna_vault::{Base, NewNode, OpenOptions, ROOT, SystemWallClock, Vault, VaultOptions};
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, LazyLock};

const PAGE: usize = 4096;
const UUID: [u8; 16] = [3; 16];
/// Bytes of input for one change.
const CHANGE: usize = 6;
const NAMES: [&[u8]; 3] = [b"one", b"two", b"three"];

struct Made {
    older: FolderImage,
    newest: FolderImage,
    anchor: AnchorState,
    contents: Vec<Vec<u8>>,
}

fn base(folder: &CrashFolder, anchor: &Arc<MemoryAnchor>) -> Base {
    Base {
        folder: Arc::new(folder.clone()),
        anchor: anchor.clone(),
        random: Arc::new(SeededRandom::new(1)),
        clock: Arc::new(SystemWallClock),
    }
}

fn options() -> OpenOptions {
    OpenOptions { commit_period: None, ..OpenOptions::default() }
}

static MADE: LazyLock<Made> = LazyLock::new(|| {
    let (folder, anchor) = (CrashFolder::new(), Arc::new(MemoryAnchor::default()));
    let options = VaultOptions { open: options(), ..VaultOptions::default() };
    let vault = Vault::create(base(&folder, &anchor), &Secret::copy_from(&[1; 32]), UUID, &options).unwrap();
    let mut contents = vec![];
    for (n, name) in NAMES.iter().enumerate() {
        let ino = vault.make(ROOT, name, NewNode::File, 0o600, 0, 0).unwrap().ino;
        let mut content = vec![n as u8; (n * 9 + 1) * PAGE + 100];
        vault.write(ino, 0, &content).unwrap();
        content[50..90].fill(0x77);
        contents.push(content);
    }
    vault.sync().unwrap();
    let older = folder.snapshot();
    for name in NAMES {
        let ino = vault.lookup(ROOT, name).unwrap().ino;
        vault.write(ino, 50, &[0x77; 40]).unwrap();
    }
    vault.sync().unwrap();
    let newest = folder.snapshot();
    drop(vault);
    Made { older, newest, anchor: anchor.load().unwrap().unwrap(), contents }
});

fuzz_target!(|input: &[u8]| {
    let made = &*MADE;
    let mut image = made.newest.clone();
    let names: Vec<String> = image.names().map(str::to_owned).collect();
    for change in input.chunks_exact(CHANGE).take(16) {
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
                if let Some(file) = made.older.files.get(name) {
                    image.files.insert(name.clone(), file.clone());
                }
            }
            4 => {
                let (one, two) = (image.files.remove(name), image.files.remove(other));
                image.files.extend(two.map(|file| (name.clone(), file)));
                image.files.extend(one.map(|file| (other.clone(), file)));
            }
            _ => {
                made.older.clone().alter(other, |bytes| source.clone_from(bytes));
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
    let folder = CrashFolder::from_image(&image);
    let anchor = Arc::new(MemoryAnchor::new(Some(made.anchor.clone())));
    let Ok(vault) = Vault::open(base(&folder, &anchor), &Secret::copy_from(&[1; 32]), UUID, &options())
    else {
        return;
    };
    for (name, content) in NAMES.iter().zip(&made.contents) {
        let Ok(attr) = vault.lookup(ROOT, name) else { continue };
        assert_eq!(attr.size, content.len() as u64);
        for at in (0..content.len()).step_by(PAGE) {
            let mut found = vec![0; PAGE.min(content.len() - at)];
            if vault.read(attr.ino, at as u64, &mut found).is_ok_and(|read| read == found.len()) {
                assert!(found == content[at..at + found.len()], "an old or altered block was shown");
            }
        }
    }
    let _ = vault.check(&mut |_, _| {});
    let _ = vault.sync();
});
