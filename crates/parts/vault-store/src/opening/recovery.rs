//! Opening: finds the newest state by superblock and journal, checks it against the anchor, and
//! cleans up after a crash.

use crate::anchor::AnchorState;
use crate::commits::codec::Commit;
use crate::commits::record::RecordLog;
use crate::ids::{CommitInfo, PAGE};
use crate::journal::Journal;
use crate::keys::StoreKeys;
use crate::objects::change_collector::CommitRequest;
use crate::objects::table::{SYNCS, subfolder};
use crate::opening::assembly::{Assembly, assemble};
use crate::opening::recovered::{Recovered, SuperblockStatus};
use crate::opening::replay::JournalReplay;
use crate::opening::rollback::{Lineage, check_rollback, not_before};
use crate::opening::superblock::{SuperblockFiles, ThirdFile};
use crate::options::{RollbackPolicy, StoreBacking, StoreOptions, ToleratedDamage};
use lacuna_contracts::{Action, Error, Hint, Kind, Result};
use lacuna_medium::FolderFile;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// The work that activating a store must still do.
pub(crate) struct PendingActivation {
    lineage: Lineage,
    /// Objects with a removal that may be incomplete.
    removed: BTreeSet<u64>,
}

/// Finds and checks the newest state, and changes nothing.
pub(crate) fn probe(
    base: StoreBacking,
    keys: Arc<StoreKeys>,
    options: &StoreOptions,
) -> Result<(Assembly, Recovered, PendingActivation)> {
    let writable = !options.read_only;
    let past = if writable { ToleratedDamage::Nothing } else { options.tolerated };
    let known = base.anchor.load()?;
    let journal = Arc::new(Journal::open(&*base.folder, options.journal, writable, keys.clone())?);
    let records = RecordLog::new(keys.clone(), journal.clone());
    let third = match past {
        _ if writable => ThirdFile::Maintained,
        ToleratedDamage::Nothing => ThirdFile::Unread,
        _ => ThirdFile::Fallback,
    };
    let (folder, random) = (base.folder.clone(), base.random.clone());
    let (superblock, newest) = SuperblockFiles::open(folder, keys.clone(), random, writable, third)?;
    let (from, older, passed_over) = match newest.older {
        Some(older) if past == ToleratedDamage::Checkpoint => (older, None, Some(newest.found)),
        older => (newest.found, older, None),
    };
    let mut replay =
        JournalReplay::read_from_either(&records, from, older, |commit| is_durable(known.as_ref(), commit))?;
    if let Some(known) = known.as_ref().filter(|_| past >= ToleratedDamage::Records) {
        replay.cross_gap(&records, known)?;
    }
    let judged = check_rollback(&base.uuid, known.as_ref(), &replay.last, &replay.state)
        .and_then(|standing| not_before(passed_over, &replay.last, &replay.state).map(|()| standing));
    // Pages of the journal that the system cannot read do not matter then: this machine's newest
    // state is the anchored one.
    let is_newest = matches!(judged, Ok(Lineage::Anchored | Lineage::NextOwn));
    if let Some(e) = replay.read_error.take().filter(|_| !is_newest && options.on_rollback.is_none()) {
        return Err(e.context("cannot read the journal of the vault"));
    }
    let (standing, accepted) = match judged {
        Ok(standing) => (standing, false),
        Err(e) if e.kind() == Kind::RolledBack => {
            let Some(RollbackPolicy(agrees)) = &options.on_rollback else {
                let is_there = known.as_ref().map(|known| holds_newest(&records, &replay.last, known));
                return Err(if is_there.transpose()?.unwrap_or(false) { damaged(&replay.last) } else { e });
            };
            // The consent is for the state that was just read, whatever the folder holds later.
            agrees(e)?;
            (Lineage::Descendant, true)
        }
        Err(e) => return Err(e),
    };
    let recovered = Recovered {
        root: replay.root.clone(),
        puts: replay.puts.clone(),
        previous_root: replay.previous_root.clone(),
        stale_numbers: stale_numbers(&replay, known.as_ref(), options.read_only, standing),
        may_be_mixed: accepted || replay.has_gap || (replay.unfinished.is_none() && !superblock.is_in_both()),
        first_opening: known.is_none(),
        accepted,
        state: CommitInfo { number: replay.last.number, time: replay.state.time },
        records: replay.records,
        superblocks: match newest.fault {
            None => SuperblockStatus::Whole,
            Some(_) if newest.is_by_third => SuperblockStatus::Lost,
            Some(_) if replay.was_finished || replay.unfinished.is_none() => SuperblockStatus::Damaged,
            Some(_) => SuperblockStatus::Torn,
        },
        superblock_fault: newest.fault,
    };
    let untaken = PendingActivation { lineage: standing, removed: std::mem::take(&mut replay.removed) };
    let assembly = assemble(base, keys, options, journal, superblock, replay, known)?;
    Ok((assembly, recovered, untaken))
}

/// The commit numbers that no page of the found root can carry: see [`Recovered::stale_numbers`].
/// The range ends before the numbers that this opening will give.
fn stale_numbers(
    replay: &JournalReplay,
    known: Option<&AnchorState>,
    read_only: bool,
    standing: Lineage,
) -> Range<u64> {
    let end = match standing {
        _ if read_only => u64::MAX,
        Lineage::Anchored | Lineage::NextOwn => replay.last.number,
        // This opening makes a commit first.
        Lineage::NoAnchor | Lineage::Descendant => replay.next_number(known),
    };
    replay.root_commit..end
}

/// Whether the journal holds the record of the anchored commit, although no chain reaches it from
/// the last commit found: then the records between are damaged, and no older state was restored.
fn holds_newest(records: &RecordLog, last: &Commit, known: &AnchorState) -> Result<bool> {
    for area in 0..2 {
        let unreached = records.find_unreachable(area, last.number)?;
        if unreached.iter().any(|found| is_durable(Some(known), &found.commit)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn damaged(last: &Commit) -> Error {
    Error::new(Kind::Corrupt, "the journal of the vault is damaged")
        .found(format!("state {}, and later states after damaged records", last.number))
        .expected("a journal without gaps")
        .hint(
            Hint::from("restore the journal files, or copy the remaining data out with ")
                .action(Action("vault::rescue"))
                .text("; ")
                .action(Action("vault::accept"))
                .text(" continues from the state before the gap"),
        )
}

/// Whether the anchor proves that a commit was durable.
fn is_durable(known: Option<&AnchorState>, commit: &Commit) -> bool {
    known.is_some_and(|known| (known.number, known.digest) == (commit.number, commit.digest))
}

/// Activates the found state: cleans up after a crash, and advances the anchor.
pub(crate) fn activate(store: &Assembly, untaken: &PendingActivation) -> Result<()> {
    let Assembly { folder, objects, journal, log, checkpoints, background, .. } = store;
    journal.recreate_lost(&**folder)?;
    checkpoints.recreate_lost()?;
    remove_unreferenced(store, &untaken.removed)?;
    for (id, pages) in log.state().appendable {
        objects.get_or_make(id).write().trimmed_to(pages);
    }
    if matches!(untaken.lineage, Lineage::NoAnchor | Lineage::Descendant) {
        // Another program may have just brought these files here.
        folder.sync_all()?;
    }
    anchor_found_state(store, untaken.lineage)?;
    let unless_refused =
        |done: Result<()>| done.or_else(|e| if e.changed_nothing() { Ok(()) } else { Err(e) });
    if !checkpoints.is_begun() {
        // Otherwise the checkpoint writes both. If the host refuses, the next checkpoint does it.
        unless_refused(checkpoints.complete_superblock())?;
    }
    // With `background` the thread finishes it while the vault is in use.
    if !background {
        // If the host refuses, it is tried again before the next checkpoint.
        unless_refused(checkpoints.finish_begun())?;
    }
    Ok(())
}

/// Removes everything that the last commit does not refer to: objects that it removed, objects made
/// since, and pages past the ends of appendable objects.
fn remove_unreferenced(store: &Assembly, removed: &BTreeSet<u64>) -> Result<()> {
    let (folder, objects, facts) = (&store.folder, &store.objects, store.log.state());
    let mut folders = BTreeSet::new();
    for id in removed.iter().copied().chain(facts.next_object..facts.object_limit) {
        let name = objects.name(id);
        match folder.open(&name) {
            Err(e) if e.kind() == Kind::NotFound => {}
            // Whatever it is, the last commit does not refer to it.
            _ => {
                folder.remove(&name)?;
                folders.insert(subfolder(&name).to_owned());
            }
        }
    }
    let mut trimmed: Vec<Arc<dyn FolderFile>> = Vec::new();
    for (id, pages) in &facts.appendable {
        if let Some(file) = objects.file(*id)?
            && file.len()? > pages * PAGE as u64
        {
            file.set_len(pages * PAGE as u64)?;
            trimmed.push(file);
        }
    }
    if folders.len() + trimmed.len() > SYNCS {
        return folder.sync_all();
    }
    trimmed.iter().try_for_each(|file| file.sync())?;
    folders.iter().try_for_each(|name| folder.sync_names(name))
}

/// Anchors the found state. After a state of another machine this machine makes a commit, so that
/// the anchored state is always this machine's last commit, and other machines find it in the
/// table.
fn anchor_found_state(store: &Assembly, standing: Lineage) -> Result<()> {
    match standing {
        Lineage::Anchored => Ok(()),
        Lineage::NextOwn => store.log.advance_anchor(),
        Lineage::NoAnchor | Lineage::Descendant => {
            store.log.commit(&CommitRequest { puts: &[], root: None, is_forced: true }, &mut || ()).map(drop)
        }
    }
}
