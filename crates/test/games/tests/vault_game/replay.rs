//! The replay game against a whole vault. The adversary may replace, swap, truncate, delete or roll
//! back any backing file or part of one, alone or all together, at any time, and may answer reads
//! with any of it. The user keeps the anchor. The adversary wins if the vault returns anything
//! other than the latest state or an error, or opens a rolled-back directory as the newest.

mod adversary;
mod lies;

use crate::vault_harness::VaultHarness;
use crate::vault_harness::ops::bytes;
use lacuna_contracts::Kind;
use lacuna_integrity::Choice;
use lacuna_sim::{FolderImage, Rng};
use lacuna_vault::{AttrChanges, FileKind, FsError, NewNode, ROOT, RenameMode, Vault};
use std::collections::BTreeMap;

const BLOCK: usize = 4096;
const NAMES: [&[u8]; 5] = [b"one", b"two", b"three", b"four", b"five"];

/// The permitted content of a file: the latest, and after failed operations also further ones, for
/// each block.
#[derive(Clone)]
struct PermittedFile {
    content: Vec<u8>,
    alternatives: Vec<Vec<u8>>,
}

impl PermittedFile {
    fn allows(&self, at: usize, found: &[u8]) -> bool {
        found
            .iter()
            .enumerate()
            .collect::<Vec<_>>()
            .chunk_by(|a, b| (at + a.0) / BLOCK == (at + b.0) / BLOCK)
            .all(|chunk| {
                let (from, to) = (at + chunk[0].0, at + chunk[0].0 + chunk.len());
                let found: Vec<u8> = chunk.iter().map(|(_, byte)| **byte).collect();
                let shows = |content: &Vec<u8>| {
                    let there = &content[from.min(content.len())..to.min(content.len())];
                    found.starts_with(there) && found[there.len()..].iter().all(|byte| *byte == 0)
                };
                shows(&self.content) || self.alternatives.iter().any(shows)
            })
    }
}

/// The state that the user expects.
#[derive(Clone, Default)]
struct PermittedState {
    names: BTreeMap<Vec<u8>, u64>,
    /// Names with a failed operation: they may exist or not.
    uncertain: Vec<Vec<u8>>,
    files: BTreeMap<u64, PermittedFile>,
}

/// A snapshot of the folder by the adversary.
struct FolderSnapshot {
    image: FolderImage,
    /// The number of the vault's last commit then.
    commit: u64,
    /// Whether the adversary had altered it. An altered snapshot is no earlier state of the vault:
    /// it is refused, but the error need not be that of a rollback.
    altered: bool,
}

/// The reason why the adversary won.
pub(crate) type AdversaryWin = String;

/// One game.
pub(crate) struct VaultGame {
    world: VaultHarness,
    rng: Rng,
    vault: Option<Vault>,
    known: PermittedState,
    /// Snapshots of the folder after operations.
    snapshots: Vec<FolderSnapshot>,
    /// The randomness of lies.
    lie_rng: Rng,
    /// Whether the folder lies at present.
    is_lying: bool,
    /// Whether the folder was permanently altered, or changed by operations under lies.
    altered: bool,
    /// Whether the anchor forgets its state before each opening: a check that is left out.
    pub(crate) anchor_forgets: bool,
    /// The numbers of errors that the adversary caused, and of rollbacks that were reported as
    /// such.
    pub(crate) detected: u64,
    pub(crate) reported_rollbacks: u64,
    context: String,
}

impl VaultGame {
    pub(crate) fn new(seed: u64, choice: Choice) -> VaultGame {
        let mut world = VaultHarness::new(seed);
        world.folder.keep_history();
        let vault = Some(world.create(choice));
        let context = format!("seed {seed}, {}", choice.name());
        let (rng, known) = (Rng::new(seed), PermittedState::default());
        VaultGame {
            world,
            rng,
            vault,
            known,
            snapshots: vec![],
            lie_rng: Rng::new(!seed),
            is_lying: false,
            altered: false,
            anchor_forgets: false,
            detected: 0,
            reported_rollbacks: 0,
            context,
        }
    }

    /// Plays until the user cannot go on, at most `steps` steps.
    pub(crate) fn play(&mut self, steps: u64) -> Result<(), AdversaryWin> {
        for step in 0..steps {
            let context = format!("{}, step {step}", self.context);
            let may_continue = match self.vault {
                Some(_) => self.operate().map_err(|won| format!("{context}: {won}"))?,
                None => self.reopen().map_err(|won| format!("{context}: {won}"))?,
            };
            if !may_continue {
                return Ok(());
            }
            if self.vault.is_some()
                && step >= 5
                && !self.operate_under_lies().map_err(|won| format!("{context}, over lies: {won}"))?
            {
                return Ok(());
            }
            if let Some(vault) = &self.vault
                && step >= 5
            {
                if self.rng.chance(1, 3) {
                    let number = vault.last_commit().number;
                    self.snapshots.push(FolderSnapshot {
                        image: self.world.folder.snapshot(),
                        commit: number,
                        altered: self.altered,
                    });
                }
                if self.rng.chance(1, 4) {
                    // An alteration, which is undone afterwards or stays.
                    let before = self.world.folder.snapshot();
                    self.alter();
                    // A removed file that is restored is a new file: an open handle does not see
                    // it.
                    let kept = before.names().eq(self.world.folder.snapshot().names());
                    self.check_state().map_err(|won| format!("{context}: {won}"))?;
                    let back = self.rng.chance(3, 4);
                    if back {
                        self.world.folder.restore(&before);
                    }
                    self.altered |= !(back && kept);
                }
            }
        }
        Ok(())
    }

    /// One operation of the user. False if it failed permanently.
    fn operate(&mut self) -> Result<bool, AdversaryWin> {
        let name = self.rng.pick(&NAMES).to_vec();
        match self.rng.below(20) {
            0..3 => self.create(&name),
            3..10 => self.write(&name),
            10 => self.truncate(&name),
            11 => self.rename(&name),
            12 => self.unlink(&name),
            13..15 => self.check_state().map(|()| true),
            15..17 => Ok(self.sync()),
            _ => Ok(self.close()),
        }
    }

    fn vault(&self) -> &Vault {
        self.vault.as_ref().unwrap()
    }

    /// Records a failed change. Returns whether the user can go on.
    fn record_failure(&mut self, name: &[u8], e: &FsError) -> bool {
        self.detected += 1;
        self.known.uncertain.push(name.to_vec());
        matches!(e, FsError::Errno(_)) || matches!(e, FsError::Storage(e) if e.kind() == Kind::Corrupt)
    }

    fn create(&mut self, name: &[u8]) -> Result<bool, AdversaryWin> {
        match self.vault().create_node(ROOT, name, NewNode::File, 0o644, 0, 0) {
            Ok(attr) => {
                if self.known.names.contains_key(name) && !self.is_unsure(name) {
                    return Err(format!("{name:?} was made although it is there"));
                }
                self.known.names.insert(name.to_vec(), attr.ino);
                self.known.files.insert(attr.ino, PermittedFile { content: vec![], alternatives: vec![] });
                Ok(true)
            }
            Err(FsError::Errno(libc::EEXIST))
                if self.known.names.contains_key(name) || self.is_unsure(name) =>
            {
                Ok(true)
            }
            Err(FsError::Errno(errno)) => Err(format!("{name:?} cannot be made: {errno}")),
            Err(e) => Ok(self.record_failure(name, &e)),
        }
    }

    fn is_unsure(&self, name: &[u8]) -> bool {
        self.known.uncertain.iter().any(|unsure| unsure == name)
    }

    fn write(&mut self, name: &[u8]) -> Result<bool, AdversaryWin> {
        let Some(&ino) = self.known.names.get(name) else { return Ok(true) };
        let len = self.known.files[&ino].content.len() as u64;
        let offset = match self.rng.below(3) {
            0 => len,
            1 => self.rng.below(len + 5000),
            _ => self.rng.below(len / BLOCK as u64 + 2) * BLOCK as u64,
        };
        let count =
            if self.rng.chance(1, 6) { self.rng.below(50) * BLOCK as u64 } else { self.rng.below(9000) };
        let data = bytes(&mut self.rng, count as usize);
        let written = self.vault().write(ino, offset, &data);
        let file = self.known.files.get_mut(&ino).unwrap();
        let mut next = file.content.clone();
        let end = offset as usize + data.len();
        next.resize(next.len().max(if data.is_empty() { 0 } else { end }), 0);
        if !data.is_empty() {
            next[offset as usize..end].copy_from_slice(&data);
        }
        match written {
            Ok(all) if all == data.len() => {
                file.content = next;
                Ok(true)
            }
            Ok(some) => {
                file.alternatives.push(next.clone());
                let size = file.content.len().max(offset as usize + some);
                let mut short = file.content.clone();
                short.resize(size, 0);
                short[offset as usize..offset as usize + some].copy_from_slice(&data[..some]);
                file.content = short;
                self.detected += 1;
                Ok(true)
            }
            Err(FsError::Errno(errno)) => Err(format!("{name:?} cannot be written: {errno}")),
            Err(FsError::Storage(e)) => {
                file.alternatives.push(next);
                self.detected += 1;
                Ok(e.kind() == Kind::Corrupt)
            }
        }
    }

    fn truncate(&mut self, name: &[u8]) -> Result<bool, AdversaryWin> {
        let Some(&ino) = self.known.names.get(name) else { return Ok(true) };
        let size = self.rng.below(2 * self.known.files[&ino].content.len() as u64 + 10);
        let done = self.vault().set_attr(ino, &AttrChanges { size: Some(size), ..AttrChanges::default() });
        let file = self.known.files.get_mut(&ino).unwrap();
        let mut next = file.content.clone();
        next.resize(size as usize, 0);
        match done {
            Ok(_) => {
                file.content = next;
                Ok(true)
            }
            Err(FsError::Errno(errno)) => Err(format!("{name:?} cannot be cut: {errno}")),
            Err(FsError::Storage(e)) => {
                // The truncated content may appear, padded with zeros.
                file.alternatives.push(next);
                self.detected += 1;
                Ok(e.kind() == Kind::Corrupt)
            }
        }
    }

    fn rename(&mut self, name: &[u8]) -> Result<bool, AdversaryWin> {
        let to = self.rng.pick(&NAMES).to_vec();
        let known = self.known.names.contains_key(name);
        match self.vault().rename(ROOT, name, ROOT, &to, RenameMode::Replace) {
            Ok(()) => {
                if let Some(ino) = self.known.names.remove(name) {
                    self.known.names.insert(to, ino);
                }
                Ok(true)
            }
            Err(FsError::Errno(libc::ENOENT)) if !known || self.is_unsure(name) => Ok(true),
            Err(FsError::Errno(errno)) => Err(format!("{name:?} cannot be renamed: {errno}")),
            Err(e) => {
                self.known.uncertain.push(to);
                Ok(self.record_failure(name, &e))
            }
        }
    }

    fn unlink(&mut self, name: &[u8]) -> Result<bool, AdversaryWin> {
        let known = self.known.names.contains_key(name);
        match self.vault().unlink(ROOT, name) {
            Ok(()) => {
                self.known.names.remove(name);
                Ok(true)
            }
            Err(FsError::Errno(libc::ENOENT)) if !known || self.is_unsure(name) => Ok(true),
            Err(FsError::Errno(errno)) => Err(format!("{name:?} cannot be removed: {errno}")),
            Err(e) => {
                self.known.names.remove(name);
                Ok(self.record_failure(name, &e))
            }
        }
    }

    fn sync(&mut self) -> bool {
        let synced = self.vault().sync().is_ok();
        self.detected += u64::from(!synced);
        synced
    }

    fn close(&mut self) -> bool {
        // With or without an orderly close. Unsynced data may be lost, so sync first.
        if !self.sync() {
            return false;
        }
        let closed = !self.rng.chance(1, 2) || self.vault().close().is_ok();
        self.vault = None;
        closed
    }

    /// Checks that everything that the user sees is the latest state, or an error.
    fn check_state(&mut self) -> Result<(), AdversaryWin> {
        let Some(vault) = &self.vault else { return Ok(()) };
        let mut noticed = 0;
        for name in NAMES {
            let unsure = self.known.uncertain.iter().any(|unsure| unsure == name);
            let expected = self.known.names.get(name).copied();
            match vault.lookup(ROOT, name) {
                Ok(attr) if Some(attr.ino) == expected || unsure => {}
                Err(FsError::Errno(libc::ENOENT)) if expected.is_none() || unsure => {}
                Err(FsError::Storage(_)) => noticed += 1,
                other => return Err(format!("{name:?} is {other:?}, expected {expected:?}")),
            }
        }
        let mut listed = vec![];
        let read = vault.read_dir(ROOT, 0, &mut |entry| {
            listed.push((entry.name.to_vec(), entry.ino, entry.kind));
            true
        });
        if read.is_ok() {
            for (name, ino, kind) in &listed {
                let dot = name == b"." || name == b"..";
                let unsure = self.known.uncertain.contains(name);
                if !dot && !unsure && (self.known.names.get(name) != Some(ino) || *kind != FileKind::File) {
                    return Err(format!("{name:?} is listed as {ino}"));
                }
            }
            let complete =
                |name: &Vec<u8>| self.known.uncertain.contains(name) || listed.iter().any(|l| l.0 == *name);
            if !self.known.names.keys().all(complete) {
                return Err("a name is missing".into());
            }
        }
        for (name, ino) in &self.known.names {
            let file = &self.known.files[ino];
            let mut at = 0;
            while at < file.content.len() {
                let len = (1 + self.rng.below(40_000) as usize).min(file.content.len() - at);
                let mut buf = vec![0xee; len];
                match vault.read(*ino, at as u64, &mut buf) {
                    Ok(read) => {
                        if !file.allows(at, &buf[..read]) {
                            return Err(format!("{name:?} shows another content at {at}"));
                        }
                        if read < len && file.alternatives.is_empty() {
                            // The read ended before a block that fails. With lies, that block may
                            // succeed in the next read.
                            let at = at + read;
                            match vault.read(*ino, at as u64, &mut buf) {
                                Ok(more) if more == 0 || !self.is_lying => {
                                    return Err(format!("{name:?} is cut at {at}"));
                                }
                                Ok(more) if !file.allows(at, &buf[..more]) => {
                                    return Err(format!("{name:?} shows another content at {at}"));
                                }
                                _ => noticed += 1,
                            }
                        }
                    }
                    Err(FsError::Storage(_)) => noticed += 1,
                    Err(e) if file.alternatives.is_empty() && !self.known.uncertain.contains(name) => {
                        return Err(format!("{name:?}: {e}"));
                    }
                    Err(_) => {}
                }
                at += len;
            }
        }
        self.detected += noticed;
        Ok(())
    }

    /// Opens the vault after the adversary had access to it. False if it cannot be opened.
    fn reopen(&mut self) -> Result<bool, AdversaryWin> {
        // The vault was closed, and all data was synced.
        self.open_under_lies().map_err(|won| format!("opened over lies: {won}"))?;
        let newest = self.world.folder.snapshot();
        let number = self.world.memory_number();
        let older: Vec<&FolderSnapshot> = self.snapshots.iter().filter(|seen| seen.commit < number).collect();
        if !older.is_empty() && self.rng.chance(2, 3) {
            // A rollback of the whole directory.
            let seen = *self.rng.pick(&older);
            let altered = seen.altered;
            self.world.folder.restore(&seen.image);
            match self.open() {
                Err(e) if e.kind() == Kind::RolledBack => self.reported_rollbacks += 1,
                Err(_) if altered => self.detected += 1,
                Err(e) => return Err(format!("a rollback was named {:?}: {e}", e.kind())),
                Ok(_) => return Err("a rolled-back directory was opened".into()),
            }
            self.world.folder.restore(&newest);
        }
        if self.rng.chance(1, 3) {
            self.alter();
            match self.open() {
                Ok(vault) => {
                    self.vault = Some(vault);
                    self.altered = true;
                    return self.check_state().map(|()| true);
                }
                Err(_) => self.detected += 1,
            }
            // The adversary restores the newest state, and the user goes on with it.
            self.world.folder.restore(&newest);
        }
        match self.open() {
            Ok(vault) => {
                self.vault = Some(vault);
                self.check_state().map(|()| true)
            }
            Err(_) if self.altered => {
                self.detected += 1;
                Ok(false)
            }
            Err(e) => Err(format!("the newest directory is refused: {e}")),
        }
    }

    fn open(&mut self) -> lacuna_contracts::Result<Vault> {
        if self.anchor_forgets {
            self.world.forget();
        }
        self.world.open()
    }
}
