//! `docs/format/vault.md` agrees with the code: the second reader reads, by the page, vaults that
//! the code wrote, closed and after a crash.

#[path = "../../../parts/integrity/tests/second_reader/mod.rs"]
#[allow(dead_code)]
mod file_reader;
mod second_reader;
mod vault_harness;

/// The input of the second reader of protected files.
mod fixture {
    use lacuna_integrity::Part;
    use std::collections::BTreeMap;

    #[derive(Default)]
    pub(crate) struct Stored {
        pub(crate) blocks: BTreeMap<u64, Vec<u8>>,
        pub(crate) pages: BTreeMap<(Part, u64), Vec<u8>>,
    }
}

use lacuna_contracts::Secret;
use lacuna_integrity::{Choice, Scheme};
use lacuna_sim::Rng;
use lacuna_testkit::format_page::FormatPage;
use lacuna_vault::store::{Anchor, AnchorState, FileAnchor, JournalSize, PAGE, ROOT_MAX};
use lacuna_vault::{ACL_ACCESS_XATTR, FileKind, INTEGRITY_XATTR, NewNode, ROOT, SetXattrMode, Vault};
use second_reader::{Files, Node, SecondReader};
use std::collections::BTreeMap;
use vault_harness::model::FsModel;
use vault_harness::ops::step;
use vault_harness::{UUID, VaultHarness, dump};

const CHOICES: [Choice; 4] =
    [Choice::Auto, Choice::Fixed(Scheme::Mt), Choice::Fixed(Scheme::Rand), Choice::Fixed(Scheme::Comp)];

#[test]
fn constants_are_those_of_the_page() {
    let page = FormatPage::read("vault");
    let named = [
        ("page", PAGE),
        ("most bytes of a root", ROOT_MAX),
        ("most pages of a journal file", JournalSize::default().max as usize / PAGE),
        ("nonce", lacuna_crypto::XAES_NONCE),
    ];
    for (name, value) in named {
        assert_eq!(page.constant(name), value as u64, "{name}");
    }
}

#[test]
fn anchors_are_read_by_the_page() {
    let page = FormatPage::read("vault");
    let (fields, slot) = (page.fields("Anchor").assert_len(128), page.constant("slot of an anchor") as usize);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("anchor");
    let anchor = FileAnchor::open(&path, UUID, false).unwrap();
    let mut before: Option<AnchorState> = None;
    for sequence in 1..6 {
        let (machine, digest) = ([7; 16], [sequence as u8; 32]);
        let next = AnchorState { uuid: UUID, machine, number: 10 * sequence, digest, time: 1000 + sequence };
        anchor.advance(before.as_ref(), &next).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 2 * slot);
        // The newest state, and the one before it if there was one.
        for state in [Some(&next), before.as_ref()].into_iter().flatten() {
            let sequence = state.number / 10;
            let bytes = &bytes[sequence as usize % 2 * slot..][..slot];
            assert_eq!(fields.get(bytes, "magic"), b"lacunaan");
            assert_eq!(fields.number(bytes, "sequence"), sequence);
            assert_eq!(fields.get(bytes, "uuid"), state.uuid);
            assert_eq!(fields.get(bytes, "machine"), state.machine);
            assert_eq!(fields.number(bytes, "number"), state.number);
            assert_eq!(fields.get(bytes, "digest"), state.digest);
            assert_eq!(fields.number(bytes, "time"), state.time);
            let key = Secret::copy_from(&[0; 32]);
            let checksum = lacuna_crypto::keyed_hash(&key, &[b"lacuna anchor", &bytes[..96]]);
            assert_eq!(fields.get(bytes, "checksum"), checksum);
            assert!(bytes[128..].iter().all(|byte| *byte == 0));
        }
        before = Some(next);
    }
}

fn files(world: &VaultHarness) -> Files {
    let image = world.folder.snapshot();
    let mut files = Files::new();
    for name in image.names().map(str::to_owned).collect::<Vec<_>>() {
        image.clone().alter(&name, |bytes| drop(files.insert(name.clone(), bytes.clone())));
    }
    files
}

/// The tree as the vault itself shows it.
fn expect(vault: &Vault, ino: u64, path: &[u8], tree: &mut BTreeMap<Vec<u8>, Node>) {
    for (name, ino) in dump::entries(vault, ino) {
        let path = if path.is_empty() { name } else { [path, b"/", &name].concat() };
        let attr = vault.attr(ino).unwrap();
        let is_file = attr.kind == FileKind::File;
        let names = vault.list_xattrs(ino).unwrap().into_iter().filter(|name| name != INTEGRITY_XATTR);
        let node = Node {
            ino,
            kind: attr.kind as u64,
            mode: attr.mode.into(),
            links: attr.nlink.into(),
            user: attr.uid.into(),
            group: attr.gid.into(),
            device: attr.rdev.into(),
            data_blocks: attr.blocks512 / 8,
            choice: vault.get_xattr(ino, INTEGRITY_XATTR).unwrap_or_default(),
            mtime: (attr.mtime.secs, attr.mtime.nanos.into()),
            ctime: (attr.ctime.secs, attr.ctime.nanos.into()),
            crtime: (attr.crtime.secs, attr.crtime.nanos.into()),
            content: if is_file { dump::content(vault, ino, attr.size) } else { vec![] },
            target: if attr.kind == FileKind::Symlink { vault.read_link(ino).unwrap() } else { vec![] },
            xattrs: names.map(|name| (name.clone(), vault.get_xattr(ino, &name).unwrap())).collect(),
        };
        tree.insert(path.clone(), node);
        if attr.kind == FileKind::Directory {
            expect(vault, ino, &path, tree);
        }
    }
}

#[test]
fn vaults_are_read_by_the_page() {
    let mut records = 0;
    for seed in 0..16 {
        let mut rng = Rng::new(seed);
        let mut world = VaultHarness::new(seed);
        let vault = world.create(CHOICES[(seed % 4) as usize]);
        let mut model = FsModel::default();
        for _ in 0..150 {
            step(&vault, &mut model, &mut rng, 60);
        }
        vault.sync().unwrap();
        let mut expected = BTreeMap::new();
        expect(&vault, ROOT, b"", &mut expected);
        // Half of the vaults are closed in order.
        if seed % 2 == 0 {
            vault.close().unwrap();
        }
        let reader = SecondReader::open(files(&world), VaultHarness::master(), UUID);
        assert_eq!(reader.last.0, world.memory_number(), "seed {seed}");
        let found = reader.tree();
        for (path, node) in &expected {
            let text = String::from_utf8_lossy(path);
            assert_eq!(found.get(path), Some(node), "seed {seed}, {text}");
        }
        assert_eq!(found.len(), expected.len(), "seed {seed}");
        let explained = reader.explained();
        for name in files(&world).keys().filter(|_| seed % 2 == 0) {
            assert!(explained.contains(name), "seed {seed}: the page does not explain the file {name}");
        }
        records += reader.records;
    }
    assert!(records > 16, "the journal was hardly read: {records} records");
}

/// An access control list has the encoding of the page, and the mode has its permissions.
#[test]
fn access_control_lists_are_those_of_the_page() {
    let mut world = VaultHarness::new(17);
    let vault = world.create(Choice::Auto);
    let file = vault.create_node(ROOT, b"file", NewNode::File, 0o4600, 0, 0).unwrap().ino;
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, number) in [(1u16, 6u16, 0u32), (2, 4, 7), (4, 5, 0), (16, 7, 0), (32, 1, 0)] {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(number.to_le_bytes());
    }
    vault.set_xattr(file, ACL_ACCESS_XATTR, &list, SetXattrMode::Any).unwrap();
    vault.close().unwrap();
    let tree = SecondReader::open(files(&world), VaultHarness::master(), UUID).tree();
    let node = &tree[&b"file"[..]];
    assert_eq!((node.mode, &node.xattrs[ACL_ACCESS_XATTR]), (0o4671, &list));
}
