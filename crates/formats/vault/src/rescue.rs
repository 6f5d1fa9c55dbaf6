//! Rescue: shows everything of a damaged vault that verifies, and the names of missing files.
//!
//! Writes nothing, neither to the directory nor to the anchor. Also shows a state that does not
//! descend from the anchored state, with the refusal that any other opening gives.

use crate::names::directories;
use crate::names::entries::Bucket;
use crate::names::paths;
use crate::namespace::tables::{self, Table};
use crate::namespace::{Namespace, each_change};
use crate::settings::Settings;
use crate::startup::Leniency;
use crate::{FileKind, Vault, VaultBacking, VaultOpenOptions};
use lacuna_contracts::{Error, Result, Secret};
use lacuna_vault_store::{RollbackPolicy, SuperblockStatus, ToleratedDamage};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most names of one path: a loop, which only damage can make, must end.
const DEPTH: usize = 4096;

/// A damaged vault, opened for reading.
pub struct Rescue {
    vault: Vault,
    refusal: Option<Error>,
    uses_previous_root: bool,
    skips_damaged_record: bool,
    /// Whether all blocks of the namespace verify.
    is_whole: bool,
}

/// Tolerates all damage.
struct Lenient {
    past: ToleratedDamage,
    uses_previous_root: AtomicBool,
    is_whole: AtomicBool,
}

impl Leniency for Lenient {
    fn choose_namespace(
        &self,
        newest: Result<Namespace>,
        before: &dyn Fn() -> Option<Result<Namespace>>,
    ) -> Result<Namespace> {
        if newest.as_ref().is_ok_and(Namespace::is_intact) {
            self.is_whole.store(true, Ordering::Relaxed);
            return newest;
        }
        let Some(Ok(before)) = before() else { return newest };
        let is_whole = before.is_intact();
        if newest.is_ok() && !is_whole {
            return newest;
        }
        self.uses_previous_root.store(true, Ordering::Relaxed);
        self.is_whole.store(is_whole, Ordering::Relaxed);
        Ok(before)
    }

    fn tolerated_damage(&self) -> ToleratedDamage {
        self.past
    }

    fn settings(&self, namespace: &Namespace) -> Result<Settings> {
        Ok(Settings::read(namespace).unwrap_or_else(|_| Settings::unknown()))
    }
}

/// Whether it is the newest state, with all its names.
fn is_best(seen: &Result<Rescue>) -> bool {
    seen.as_ref().is_ok_and(|seen| seen.is_whole && seen.refusal.is_none())
}

/// The other opening, if that has all its names and the first one has not, or is of an earlier
/// state; or if the first one failed.
fn better(first: Result<Rescue>, other: Result<Rescue>) -> Result<Rescue> {
    let is_whole = |seen: &Result<Rescue>| seen.as_ref().is_ok_and(|seen| seen.is_whole);
    let has_more = is_whole(&other) && !is_whole(&first);
    let takes_other = is_best(&other) || has_more || (first.is_err() && other.is_ok());
    if takes_other { other } else { first }
}

impl Rescue {
    /// Opens a vault in the newest state that can be reached, whatever the anchored state, or in an
    /// earlier one if only that has all its names. Superblocks and pages of the names have three
    /// copies here, so that no two bad blocks hide anything else.
    ///
    /// Errors: [`lacuna_contracts::Kind::Corrupt`] if none of the three superblocks verifies, or no
    /// copy of a page that the database of names depends on.
    pub fn open(
        base: VaultBacking,
        master: &Secret<32>,
        uuid: [u8; 16],
        options: &VaultOpenOptions,
    ) -> Result<Rescue> {
        let look = |base, past| Rescue::open_lenient(base, master, uuid, options, past);
        let found = look(base.clone(), ToleratedDamage::Superblocks);
        if is_best(&found) {
            return found;
        }
        let found = better(found, look(base.clone(), ToleratedDamage::Records));
        if is_best(&found) { found } else { better(found, look(base, ToleratedDamage::Checkpoint)) }
    }

    fn open_lenient(
        base: VaultBacking,
        master: &Secret<32>,
        uuid: [u8; 16],
        options: &VaultOpenOptions,
        past: ToleratedDamage,
    ) -> Result<Rescue> {
        let refusal = Arc::<Mutex<Option<Error>>>::default();
        let noted = refusal.clone();
        let accept = RollbackPolicy::ask(move |e| {
            *noted.lock() = Some(e);
            Ok(())
        });
        let options = VaultOpenOptions { read_only: true, on_rollback: Some(accept), ..options.clone() };
        let (is_by_root_before, is_whole) = (AtomicBool::new(false), AtomicBool::new(false));
        let leniency = Lenient { past, uses_previous_root: is_by_root_before, is_whole };
        let vault = Vault::open_with(base, master, uuid, &options, &leniency)?;
        let refusal = refusal.lock().take();
        let [is_by_root_before, is_whole] =
            [leniency.uses_previous_root, leniency.is_whole].map(AtomicBool::into_inner);
        let is_past_gap = past > ToleratedDamage::Superblocks && refusal.is_none();
        Ok(Rescue {
            vault,
            refusal,
            uses_previous_root: is_by_root_before,
            skips_damaged_record: is_past_gap,
            is_whole,
        })
    }

    /// The vault.
    pub fn vault(&self) -> &Vault {
        &self.vault
    }

    /// The refusal that any other opening gives for this state, if any.
    pub fn refusal(&self) -> Option<&Error> {
        self.refusal.as_ref()
    }

    /// Whether the names are by the root before that of an unfinished checkpoint, with all changes
    /// since: pages of that checkpoint do not verify.
    pub fn uses_previous_root(&self) -> bool {
        self.uses_previous_root
    }

    /// Whether the state lies past a damaged record of the journal: it is the anchored state, and
    /// blocks of files that only this record lists do not verify, unless they were written back
    /// already.
    pub fn skips_damaged_record(&self) -> bool {
        self.skips_damaged_record
    }

    /// A message about the detours to this state, if a normal opening would show another state,
    /// less of it, or none.
    pub fn detours(&self) -> Option<String> {
        let found = self.vault.opening_report();
        let mut used = Vec::new();
        if found.superblocks == SuperblockStatus::Lost {
            let unknown = if found.first_opening {
                format!("; without an anchor it is unknown whether {} is the newest", found.state)
            } else {
                String::new()
            };
            used.push(format!("neither superblock verifies: the state is by the third one{unknown}"));
        }
        if self.skips_damaged_record {
            used.push(
                "a record of the journal does not verify: the newest state is shown, except blocks that only this record lists"
                    .to_owned(),
            );
        } else if self.uses_previous_root {
            used.push(
                "pages of the last checkpoint do not verify: names are from the checkpoint before it, with the changes since"
                    .to_owned(),
            );
        }
        (!used.is_empty()).then(|| used.join("; "))
    }

    /// Calls `each` with the name, node and kind of every entry of a directory that verifies.
    /// Returns whether all do.
    pub fn entries(&self, directory: u64, each: &mut dyn FnMut(&[u8], u64, FileKind)) -> bool {
        directories::scan_past_damage(&self.vault.contents().namespace, directory, &mut |entry| {
            each(&entry.name, entry.ino, entry.kind);
        })
    }

    /// The first number that no node was given; 2 if that cannot be read.
    pub fn next_inode(&self) -> u64 {
        self.vault.contents().inodes.made() + 1
    }

    /// Plain paths that durable but unreachable commits changed, as far as the journal still has
    /// them; and the numbers of these commits.
    pub fn unreachable_changes(&self) -> Result<(Vec<u64>, BTreeSet<OsString>)> {
        let contents = self.vault.contents();
        let (mut numbers, mut named, mut changed) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
        for (number, batch) in contents.store.unreachable_batches()? {
            numbers.push(number);
            let each = |key: &[u8], value: Option<&[u8]>| match key.first() {
                Some(table) if *table == Table::Entries as u8 => {
                    // A malformed bucket names nothing.
                    if let Some(Ok(bucket)) = value.map(Bucket::parse) {
                        let of = tables::inode_of(key);
                        named.extend(bucket.0.into_iter().map(|entry| (entry.ino, (of, entry.name))));
                    }
                }
                Some(table) if [Table::Inodes as u8, Table::Us as u8].contains(table) => {
                    changed.insert(tables::inode_of(key));
                }
                _ => {}
            };
            each_change(&batch, each)?;
        }
        let path = |ino: u64| {
            let (mut at, mut path) = (ino, Vec::new());
            for _ in 0..DEPTH {
                let Some((directory, name)) = named.get(&at) else { break };
                path = [&b"/"[..], &name[..], &path[..]].concat();
                at = *directory;
            }
            let mut above = paths::path_of(&contents.inodes, &contents.namespace, at);
            if !path.is_empty() && above == "/" {
                return OsString::from_vec(path);
            }
            above.push(OsStr::from_bytes(&path));
            above
        };
        Ok((numbers, changed.into_iter().map(path).collect()))
    }
}
