//! Everything that a vault and a model show, in a comparable form: the node of each path.

use super::model::FsModel;
use lacuna_vault::{FileKind, ROOT, Vault};
use std::collections::BTreeMap;

/// The node of each path. Hard links show by their inode numbers.
pub type Dump = BTreeMap<String, DumpedNode>;

/// One node.
#[derive(Clone, PartialEq, Eq)]
pub struct DumpedNode {
    pub attributes: String,
    pub content: u64,
}

impl std::fmt::Debug for DumpedNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} content {:016x}", self.attributes, self.content)
    }
}

/// A digest of bytes (FNV-1a over words).
pub fn digest(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325 ^ bytes.len() as u64, |digest, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (digest ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
    })
}

pub fn of_model(model: &FsModel) -> Dump {
    let mut dump = Dump::new();
    walk_model(model, ROOT, "", &mut dump);
    dump
}

fn walk_model(model: &FsModel, ino: u64, path: &str, dump: &mut Dump) {
    let node = &model.nodes[&ino];
    let choice = node.choice.as_deref().map(String::from_utf8_lossy);
    let words = format!(
        "{ino} {:?} {:o} {}:{} links {} size {} blocks {} to {:?} xattrs {:?} choice {choice:?}",
        node.kind,
        node.mode,
        node.uid,
        node.gid,
        node.nlink,
        node.data.len(),
        node.blocks.len() * 8,
        String::from_utf8_lossy(&node.target),
        node.xattrs.iter().map(|(name, value)| (name.clone(), digest(value))).collect::<Vec<_>>(),
    );
    dump.insert(format!("{path}/"), DumpedNode { attributes: words, content: digest(&node.data) });
    for (name, child) in &node.entries {
        walk_model(model, *child, &format!("{path}/{}", String::from_utf8_lossy(name)), dump);
    }
}

pub fn of_vault(vault: &Vault) -> Dump {
    let mut dump = Dump::new();
    walk_vault(vault, ROOT, "", &mut dump);
    dump
}

fn walk_vault(vault: &Vault, ino: u64, path: &str, dump: &mut Dump) {
    let attr = vault.attr(ino).unwrap_or_else(|e| panic!("{path}: {e}"));
    let content = if attr.kind == FileKind::File { content(vault, ino, attr.size) } else { vec![] };
    let target = if attr.kind == FileKind::Symlink { vault.read_link(ino).unwrap() } else { vec![] };
    let mut names = vault.list_xattrs(ino).unwrap();
    names.sort();
    let integrity = lacuna_vault::INTEGRITY_XATTR;
    let choice = vault.get_xattr(ino, integrity).ok();
    let words = format!(
        "{ino} {:?} {:o} {}:{} links {} size {} blocks {} to {:?} xattrs {:?} choice {:?}",
        attr.kind,
        attr.mode,
        attr.uid,
        attr.gid,
        attr.nlink,
        content.len(),
        attr.blocks512,
        String::from_utf8_lossy(&target),
        names
            .iter()
            .filter(|name| *name != integrity)
            .map(|name| (name.clone(), digest(&vault.get_xattr(ino, name).unwrap())))
            .collect::<Vec<_>>(),
        choice.as_deref().map(String::from_utf8_lossy),
    );
    dump.insert(format!("{path}/"), DumpedNode { attributes: words, content: digest(&content) });
    if attr.kind == FileKind::Directory {
        for (name, child) in entries(vault, ino) {
            assert_eq!(vault.lookup(ino, &name).unwrap().ino, child);
            walk_vault(vault, child, &format!("{path}/{}", String::from_utf8_lossy(&name)), dump);
        }
    }
}

/// The content of a file, read at once.
pub fn content(vault: &Vault, ino: u64, size: u64) -> Vec<u8> {
    let mut bytes = vec![0xee; size as usize];
    let read = vault.read(ino, 0, &mut bytes).unwrap_or_else(|e| panic!("{}: {e}", vault.path_of(ino)));
    assert_eq!(read, bytes.len(), "{}", vault.path_of(ino));
    bytes
}

/// The entries of a directory except the dots, sorted.
pub fn entries(vault: &Vault, ino: u64) -> Vec<(Vec<u8>, u64)> {
    let mut found = vec![];
    vault
        .read_dir(ino, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                found.push((entry.name.to_vec(), entry.ino));
            }
            true
        })
        .unwrap();
    found.sort();
    found
}

/// Panics if two dumps differ, with the first difference.
pub fn assert_same(vault: &Dump, model: &Dump, context: &str) {
    if vault == model {
        return;
    }
    for path in vault.keys().chain(model.keys()) {
        let (found, expected) = (vault.get(path), model.get(path));
        assert!(found == expected, "{context}: {path}\n found: {found:?}\n expected: {expected:?}");
    }
}
