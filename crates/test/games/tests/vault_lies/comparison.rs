//! The comparison of a vault with a model of its content: an error of verification is always right,
//! and any other answer must be that of the model.

use crate::vault_harness::model::{FsModel, Node};
use lacuna_games::fold_counts;
use lacuna_vault::{Attr, FileKind, FsError, FsResult, INTEGRITY_XATTR, ROOT, Vault};
use std::collections::BTreeSet;

/// The results of openings.
#[derive(Default)]
pub(crate) struct OpeningCounts {
    pub(crate) refused: u64,
    pub(crate) correct: u64,
    pub(crate) errors: u64,
    pub(crate) wrong: Vec<String>,
    /// A digest of the results of each vault.
    pub(crate) digest: u64,
}

impl OpeningCounts {
    /// Ends the results of one vault.
    pub(crate) fn end_vault(&mut self) {
        self.digest = fold_counts(self.digest, self.refused << 42 ^ self.errors << 21 ^ self.correct);
    }
}

/// Compares a vault with its model.
struct VaultComparison<'a> {
    vault: &'a Vault,
    model: &'a FsModel,
    shown: &'a mut OpeningCounts,
    context: &'a str,
    /// Names that directories have, or had.
    names: BTreeSet<Vec<u8>>,
}

/// Compares everything that a vault shows with a model.
pub(crate) fn compare(vault: &Vault, model: &FsModel, shown: &mut OpeningCounts, context: &str) {
    let there = model.nodes.values().flat_map(|node| node.entries.keys().cloned());
    let names = there.chain((b'a'..=b'g').map(|name| vec![name])).collect();
    VaultComparison { vault, model, shown, context, names }.node(ROOT, "");
}

impl VaultComparison<'_> {
    /// A successful answer; `None` otherwise. An error of verification is always permitted; an
    /// error that something does not exist or cannot be done is not.
    fn permitted_answer<T>(&mut self, path: &str, answer: FsResult<T>) -> Option<T> {
        match answer {
            Ok(answer) => return Some(answer),
            Err(FsError::Storage(_)) => self.shown.errors += 1,
            Err(FsError::Errno(errno)) => {
                self.expect(path, false, || format!("gives the error number {errno}"));
            }
        }
        None
    }

    /// Counts a correct result, or records a violation.
    fn expect(&mut self, path: &str, right: bool, what: impl FnOnce() -> String) {
        if right {
            self.shown.correct += 1;
        } else {
            self.shown.wrong.push(format!("{}: {path}/ {}", self.context, what()));
        }
    }

    /// Checks a node, and all nodes below it.
    fn node(&mut self, ino: u64, path: &str) {
        let (vault, model) = (self.vault, self.model);
        let node = &model.nodes[&ino];
        let Some(attr) = self.permitted_answer(path, vault.attr(ino)) else { return };
        self.attributes(&attr, node, path);
        self.extended_attributes(ino, node, path);
        match node.kind {
            FileKind::Directory => self.directory(ino, node, path),
            FileKind::File => self.content(ino, node, path),
            FileKind::Symlink => {
                if let Some(target) = self.permitted_answer(path, vault.read_link(ino)) {
                    self.expect(path, target == node.target, || "leads elsewhere".into());
                }
            }
            _ => {}
        }
    }

    fn attributes(&mut self, attr: &Attr, node: &Node, path: &str) {
        let found = (attr.kind, attr.mode, attr.uid, attr.gid, attr.nlink);
        let expected = (node.kind, node.mode, node.uid, node.gid, node.nlink);
        let is_as_long = node.kind != FileKind::File || attr.size == node.data.len() as u64;
        self.expect(path, found == expected && is_as_long, || format!("is {attr:?}"));
    }

    fn extended_attributes(&mut self, ino: u64, node: &Node, path: &str) {
        let vault = self.vault;
        if let Some(names) = self.permitted_answer(path, vault.list_xattrs(ino)) {
            let found: BTreeSet<&[u8]> = names.iter().map(Vec::as_slice).collect();
            let expected: BTreeSet<&[u8]> = node.xattrs.keys().map(Vec::as_slice).collect();
            let right = found.iter().filter(|name| **name != INTEGRITY_XATTR).eq(&expected);
            self.expect(path, right, || format!("has the attributes {names:?}"));
        }
        for (name, value) in &node.xattrs {
            if let Some(found) = self.permitted_answer(path, vault.get_xattr(ino, name)) {
                self.expect(path, found == *value, || format!("has another value of {name:?}"));
            }
        }
    }

    fn directory(&mut self, ino: u64, node: &Node, path: &str) {
        let vault = self.vault;
        for name in self.names.clone() {
            let below = format!("{path}/{}", String::from_utf8_lossy(&name));
            match (vault.lookup(ino, &name), node.entries.get(&name)) {
                (Err(FsError::Errno(libc::ENOENT)), None) => self.shown.correct += 1,
                (Ok(attr), None) => self.expect(&below, false, || format!("is back as {}", attr.ino)),
                (looked, None) => _ = self.permitted_answer(&below, looked),
                (looked, Some(child)) => {
                    let Some(attr) = self.permitted_answer(&below, looked) else { continue };
                    self.expect(&below, attr.ino == *child, || format!("is {}", attr.ino));
                    self.node(*child, &below);
                }
            }
        }
        let mut listed = vec![];
        let read = vault.read_dir(ino, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                listed.push((entry.name.to_vec(), entry.ino));
            }
            true
        });
        if self.permitted_answer(path, read).is_some() {
            listed.sort();
            let expected = node.entries.iter().map(|(name, child)| (name.clone(), *child));
            self.expect(path, listed.iter().cloned().eq(expected), || format!("lists {listed:?}"));
        }
    }

    fn content(&mut self, ino: u64, node: &Node, path: &str) {
        let mut bytes = vec![0; node.data.len() + 10];
        let read = self.vault.read(ino, 0, &mut bytes);
        let Some(read) = self.permitted_answer(path, read) else { return };
        if read < node.data.len() && node.data.starts_with(&bytes[..read]) {
            // A read may end before a block that does not verify.
            self.shown.errors += 1;
        } else {
            self.expect(path, bytes[..read] == node.data[..], || {
                format!("reads {:?}", String::from_utf8_lossy(&bytes[..6]))
            });
        }
    }
}
