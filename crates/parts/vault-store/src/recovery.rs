//! Opening: finds the newest state by superblock and journal, checks it against the anchor, and
//! cleans up after a crash.

use crate::anchor::AnchorState;
use crate::assembly::{Assembly, assemble};
use crate::change_collector::Request;
use crate::content::Commit;
use crate::freshness::{Standing, judge, not_before};
use crate::ids::{CommitInfo, PAGE};
use crate::journal::Journal;
use crate::keys::StoreKeys;
use crate::object_table::{SYNCS, subfolder};
use crate::options::{Consent, PastDamage, StoreBase, StoreOptions};
use crate::record::RecordLog;
use crate::recovered::{Recovered, Superblocks};
use crate::replay::Replay;
use crate::superblock::{SuperFiles, ThirdFile};
use lacuna_contracts::{Action, Advice, Error, Kind, Result};
use lacuna_medium::FolderFile;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// The work that activating a store must still do.
pub(crate) struct Untaken {
    standing: Standing,
    /// Objects with a removal that may be incomplete.
    removed: BTreeSet<u64>,
}

/// Finds and checks the newest state, and changes nothing.
pub(crate) fn look(
    base: StoreBase,
    keys: Arc<StoreKeys>,
    options: &StoreOptions,
) -> Result<(Assembly, Recovered, Untaken)> {
    let writable = !options.read_only;
    let past = if writable { PastDamage::Nothing } else { options.past };
    let known = base.anchor.load()?;
    let journal = Arc::new(Journal::open(&*base.folder, options.journal, writable, keys.clone())?);
    let records = RecordLog::new(keys.clone(), journal.clone());
    let third = match past {
        _ if writable => ThirdFile::Kept,
        PastDamage::Nothing => ThirdFile::Unread,
        PastDamage::Superblocks | PastDamage::Records | PastDamage::Checkpoint => ThirdFile::Counts,
    };
    let (folder, random) = (base.folder.clone(), base.random.clone());
    let (superblock, newest) = SuperFiles::open(folder, keys.clone(), random, writable, third)?;
    let (from, older, passed_over) = match newest.older {
        Some(older) if past == PastDamage::Checkpoint => (older, None, Some(newest.found)),
        older => (newest.found, older, None),
    };
    let mut replay =
        Replay::read_from_either(&records, from, older, |commit| is_durable(known.as_ref(), commit))?;
    if let Some(known) = known.as_ref().filter(|_| past >= PastDamage::Records) {
        replay.cross_gap(&records, known)?;
    }
    let judged = judge(&base.uuid, known.as_ref(), &replay.last, &replay.facts)
        .and_then(|standing| not_before(passed_over, &replay.last, &replay.facts).map(|()| standing));
    // Pages of the journal that the system cannot read do not matter then: this machine's newest
    // state is the anchored one.
    let is_newest = matches!(judged, Ok(Standing::Same | Standing::Next));
    if let Some(e) = replay.unread.take().filter(|_| !is_newest && options.accept.is_none()) {
        return Err(e.context("cannot read the journal of the vault"));
    }
    let (standing, accepted) = match judged {
        Ok(standing) => (standing, false),
        Err(e) if e.kind() == Kind::RolledBack => {
            let Some(Consent(agrees)) = &options.accept else {
                let is_there = known.as_ref().map(|known| holds_newest(&records, &replay.last, known));
                return Err(if is_there.transpose()?.unwrap_or(false) { damaged(&replay.last) } else { e });
            };
            // The consent is for the state that was just read, whatever the folder holds later.
            agrees(e)?;
            (Standing::Newer, true)
        }
        Err(e) => return Err(e),
    };
    let recovered = Recovered {
        root: replay.root.clone(),
        puts: replay.puts.clone(),
        before: replay.before.clone(),
        stale: stale(&replay, known.as_ref(), options.read_only, standing),
        may_be_mixed: accepted || replay.has_gap || (replay.unfinished.is_none() && !superblock.is_in_both()),
        first_opening: known.is_none(),
        accepted,
        state: CommitInfo { number: replay.last.number, time: replay.facts.time },
        records: replay.records,
        superblocks: match newest.fault {
            None => Superblocks::Whole,
            Some(_) if newest.is_by_third => Superblocks::Lost,
            Some(_) if replay.was_finished || replay.unfinished.is_none() => Superblocks::Damaged,
            Some(_) => Superblocks::Torn,
        },
        superblock_fault: newest.fault,
    };
    let untaken = Untaken { standing, removed: std::mem::take(&mut replay.removed) };
    let assembly = assemble(base, keys, options, journal, superblock, replay, known)?;
    Ok((assembly, recovered, untaken))
}

/// The commit numbers that no page of the found root can carry: see [`Recovered::stale`]. The range
/// ends before the numbers that this opening will give.
fn stale(replay: &Replay, known: Option<&AnchorState>, read_only: bool, standing: Standing) -> Range<u64> {
    let end = match standing {
        _ if read_only => u64::MAX,
        Standing::Same | Standing::Next => replay.last.number,
        // This opening makes a commit first.
        Standing::Unknown | Standing::Newer => replay.following(known),
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
        .found(format!("state {}, and later ones that nothing leads to", last.number))
        .expected("a journal without gaps")
        .remedy(
            Advice::from("bring the journal files back as they were, or bring out what there is with ")
                .action(Action("vault::rescue"))
                .text("; ")
                .action(Action("vault::accept"))
                .text(" goes on from the state before the gap"),
        )
}

/// Whether the anchor proves that a commit was durable.
fn is_durable(known: Option<&AnchorState>, commit: &Commit) -> bool {
    known.is_some_and(|known| (known.number, known.digest) == (commit.number, commit.digest))
}

/// Activates the found state: cleans up after a crash, and advances the anchor.
pub(crate) fn take_up(store: &Assembly, untaken: &Untaken) -> Result<()> {
    let Assembly { folder, objects, journal, log, checkpoints, background, .. } = store;
    journal.make_lost(&**folder)?;
    checkpoints.make_lost()?;
    tidy(store, &untaken.removed)?;
    for (id, pages) in log.facts().appendable {
        objects.get_or_make(id).write().trimmed_to(pages);
    }
    if matches!(untaken.standing, Standing::Unknown | Standing::Newer) {
        // Another program may have just brought these files here.
        folder.sync_all()?;
    }
    remember(store, untaken.standing)?;
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
fn tidy(store: &Assembly, removed: &BTreeSet<u64>) -> Result<()> {
    let (folder, objects, facts) = (&store.folder, &store.objects, store.log.facts());
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
fn remember(store: &Assembly, standing: Standing) -> Result<()> {
    match standing {
        Standing::Same => Ok(()),
        Standing::Next => store.log.advance_anchor(),
        Standing::Unknown | Standing::Newer => {
            store.log.commit(&Request { puts: &[], root: None, anyway: true }, &mut || ()).map(drop)
        }
    }
}
