//! Golden files of every version of the format: a vault with its anchor, kept as a file, that must
//! always open and show its original content.
//!
//! The file holds the anchor and the files of the directory, each as: length of its name (u16,
//! little-endian), name, length (u64), number of its pages that are not zeros (u32), and these
//! pages, each after its number (u32).

mod vault_harness;

use lacuna_crypto::SeededRandom;
use lacuna_integrity::{Choice, Scheme};
use lacuna_sim::{CrashFolder, FolderImage, MediumImage, Rng};
use lacuna_vault::store::FileAnchor;
use lacuna_vault::{
    AttrChanges, FileKind, INTEGRITY_XATTR, NewNode, ROOT, SetXattrMode, Vault, VaultBacking, VaultOptions,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vault_harness::{TestClock, UUID, VaultHarness, dump};

const PAGE: usize = 4096;
const ANCHOR: &str = "anchor";
/// Files, the scheme of each, and the written blocks: text in even blocks, noise in odd ones.
const FILES: [(&str, &str, &[u64]); 5] = [
    ("mt", "mt", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ("rand", "rand", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]),
    ("comp", "comp", &[0, 1, 2, 3, 4, 5, 6]),
    ("auto", "auto", &[0, 2, 4]),
    ("sparse", "auto", &[3, 1_000_000]),
];
const TARGET: &[u8] = b"../somewhere/else";
const LAST: &[u8] = b"written after the last checkpoint";

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/vault-v1.bin")
}

fn block(number: u64) -> Vec<u8> {
    if number % 2 == 1 {
        return Rng::new(number).bytes(PAGE);
    }
    format!("block {number}, ").into_bytes().into_iter().cycle().take(PAGE).collect()
}

fn base(folder: &CrashFolder, anchor: &Path, seed: u64) -> VaultBacking {
    VaultBacking {
        folder: Arc::new(folder.clone()),
        anchor: Arc::new(FileAnchor::open(anchor, UUID, false).unwrap()),
        random: Arc::new(SeededRandom::new(seed)),
        clock: TestClock::new(),
    }
}

fn pack(name: &str, bytes: &[u8], out: &mut Vec<u8>) {
    out.extend((name.len() as u16).to_le_bytes());
    out.extend(name.bytes());
    out.extend((bytes.len() as u64).to_le_bytes());
    let pages = bytes.chunks(PAGE).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0));
    let pages: Vec<_> = pages.collect();
    out.extend((pages.len() as u32).to_le_bytes());
    for (number, page) in pages {
        out.extend((number as u32).to_le_bytes());
        out.extend(page.iter().copied().chain([0; PAGE]).take(PAGE));
    }
}

fn unpack(mut bytes: &[u8]) -> BTreeMap<String, Vec<u8>> {
    fn take<'b>(bytes: &mut &'b [u8], len: usize) -> &'b [u8] {
        bytes.split_off(..len).expect("a whole golden file")
    }
    fn number(bytes: &mut &[u8], len: usize) -> usize {
        take(bytes, len).iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
    }
    let mut files = BTreeMap::new();
    while !bytes.is_empty() {
        let len = number(&mut bytes, 2);
        let name = String::from_utf8(take(&mut bytes, len).to_vec()).unwrap();
        let mut content = vec![0; number(&mut bytes, 8).next_multiple_of(PAGE)];
        let len = content.len();
        for _ in 0..number(&mut bytes, 4) {
            let at = number(&mut bytes, 4) * PAGE;
            content[at..at + PAGE].copy_from_slice(take(&mut bytes, PAGE));
        }
        content.truncate(len);
        files.insert(name, content);
    }
    files
}

/// Makes a vault that uses every feature, and drops it without closing.
#[test]
#[ignore = "makes the golden file"]
fn write_the_golden_vault() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, anchor) = (CrashFolder::new(), dir.path().join(ANCHOR));
    let world = VaultHarness::new(0);
    let options = VaultOptions { choice: Choice::Auto, open: world.options(), ..VaultOptions::default() };
    let vault = Vault::create(base(&folder, &anchor, 1), &VaultHarness::master(), UUID, &options).unwrap();
    let make =
        |parent, name: &str, new| vault.create_node(parent, name.as_bytes(), new, 0o640, 12, 34).unwrap().ino;
    let directory = make(ROOT, "directory", NewNode::Directory);
    for (name, scheme, blocks) in FILES {
        let ino = make(directory, name, NewNode::File);
        vault.set_xattr(ino, INTEGRITY_XATTR, scheme.as_bytes(), SetXattrMode::Any).unwrap();
        for number in blocks {
            assert_eq!(vault.write(ino, number * PAGE as u64, &block(*number)).unwrap(), PAGE);
        }
        // Once more, so that counters differ.
        assert_eq!(vault.write(ino, blocks[0] * PAGE as u64, &block(blocks[0])).unwrap(), PAGE);
        vault.fsync(ino).unwrap();
    }
    make(directory, "symlink", NewNode::Symlink(TARGET));
    make(directory, "pipe", NewNode::Fifo);
    make(directory, "device", NewNode::CharDevice(0x103));
    let mt = vault.lookup(directory, b"mt").unwrap().ino;
    vault.link(mt, ROOT, b"hard link").unwrap();
    vault.set_xattr(mt, b"user.colour", b"green", SetXattrMode::Any).unwrap();
    vault.close().unwrap();
    drop(vault);
    let vault =
        Vault::open(base(&folder, &anchor, 2), &VaultHarness::master(), UUID, &world.options()).unwrap();
    let last = vault.create_node(ROOT, b"last", NewNode::File, 0o600, 0, 0).unwrap().ino;
    vault.write(last, 0, LAST).unwrap();
    vault.sync().unwrap();
    let mut out = vec![];
    pack(ANCHOR, &std::fs::read(&anchor).unwrap(), &mut out);
    let image = folder.snapshot();
    for name in image.names().map(str::to_owned).collect::<Vec<_>>() {
        image.clone().alter(&name, |bytes| pack(&name, bytes, &mut out));
    }
    std::fs::create_dir_all(golden().parent().unwrap()).unwrap();
    std::fs::write(golden(), out).unwrap();
}

/// The opened golden vault, with its folder and the directory of its anchor.
fn opened() -> (Vault, CrashFolder, tempfile::TempDir) {
    let mut files = unpack(&std::fs::read(golden()).unwrap());
    let dir = tempfile::tempdir().unwrap();
    let anchor = dir.path().join(ANCHOR);
    let mut remembered = files.remove(ANCHOR).unwrap();
    remembered.truncate(1024);
    std::fs::write(&anchor, remembered).unwrap();
    let mut image = FolderImage::default();
    image.files.extend(files.into_iter().map(|(name, bytes)| (name, MediumImage::from(bytes))));
    let folder = CrashFolder::from_image(&image);
    let options = VaultHarness::new(0).options();
    let vault = Vault::open(base(&folder, &anchor, 3), &VaultHarness::master(), UUID, &options).unwrap();
    (vault, folder, dir)
}

fn assert_original_content(vault: &Vault) {
    let directory = vault.lookup(ROOT, b"directory").unwrap().ino;
    let find = |parent, name: &str| vault.lookup(parent, name.as_bytes()).unwrap();
    for (name, scheme, blocks) in FILES {
        let attr = find(directory, name);
        let end = blocks.last().unwrap() + 1;
        assert_eq!((attr.size, attr.mode, attr.uid, attr.gid), (end * PAGE as u64, 0o640, 12, 34));
        assert_eq!(vault.get_xattr(attr.ino, INTEGRITY_XATTR).unwrap(), scheme.as_bytes());
        let mut found = vec![0xee; PAGE];
        for number in (0..end.min(30)).chain([end - 1]) {
            assert_eq!(vault.read(attr.ino, number * PAGE as u64, &mut found).unwrap(), PAGE);
            let expected = if blocks.contains(&number) { block(number) } else { vec![0; PAGE] };
            assert!(found == expected, "{name}, block {number}");
        }
    }
    assert_eq!(vault.file_stat(find(directory, "rand").ino).unwrap().scheme, Scheme::Rand);
    assert_eq!(vault.read_link(find(directory, "symlink").ino).unwrap(), TARGET);
    assert_eq!(find(directory, "pipe").kind, FileKind::Fifo);
    let device = find(directory, "device");
    assert_eq!((device.kind, device.rdev), (FileKind::CharDevice, 0x103));
    let linked = find(ROOT, "hard link");
    assert_eq!((linked.ino, linked.nlink), (find(directory, "mt").ino, 2));
    assert_eq!(vault.get_xattr(linked.ino, b"user.colour").unwrap(), b"green");
    let last = find(ROOT, "last");
    assert_eq!(dump::content(vault, last.ino, last.size), LAST);
    let report = vault.check(&mut |_, _| {}).unwrap();
    assert!(report.bad.is_empty(), "{:?}", report.bad);
}

#[test]
fn version_1_opens_for_ever() {
    let (vault, folder, dir) = opened();
    assert!(!vault.first_opening() && vault.opening_report().records > 0);
    assert_original_content(&vault);
    // It can be written, closed and opened again.
    let directory = vault.lookup(ROOT, b"directory").unwrap().ino;
    for (name, _, blocks) in FILES {
        let ino = vault.lookup(directory, name.as_bytes()).unwrap().ino;
        let end = (blocks.last().unwrap() + 1) * PAGE as u64;
        vault.write(ino, end, b"more").unwrap();
        vault.set_attr(ino, &AttrChanges { size: Some(end), ..AttrChanges::default() }).unwrap();
    }
    vault.close().unwrap();
    drop(vault);
    let anchor = dir.path().join(ANCHOR);
    let options = VaultHarness::new(0).options();
    let vault = Vault::open(base(&folder, &anchor, 4), &VaultHarness::master(), UUID, &options).unwrap();
    assert_eq!(vault.opening_report().records, 0);
    assert_original_content(&vault);
}
