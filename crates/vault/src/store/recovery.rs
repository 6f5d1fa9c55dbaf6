//! Opening: the newest state that superblock and journal give, judged by the anchor, and rid of what a crash left half done.

use super::checkpoint::{self, Frozen};
use super::commit::{Request, commit};
use super::content::Commit;
use super::doubled::Doubled;
use super::engine::{Engine, History, Interval, Leaving, Numbers};
use super::freshness::{Standing, judge};
use super::journal::Journal;
use super::keys::StoreKeys;
use super::object::Object;
use super::objects::{Objects, subfolder};
use super::record;
use super::replay::Replay;
use super::session::DrawnSession;
use super::superblock::SuperFiles;
use super::{AnchorState, CommitInfo, Consent, PAGE, Recovered, StoreBase, StoreOptions, Superblocks};
use lacuna_core::{Error, FailStop, Kind, Result};
use lacuna_medium::FolderFile;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Numbers drawn at random.
pub(super) fn draw<const N: usize>(base: &StoreBase) -> [u8; N] {
    let mut bytes = [0; N];
    base.random.fill(&mut bytes);
    bytes
}

/// What is left to be done when a store is taken up.
pub(super) struct Untaken {
    standing: Standing,
    /// Objects whose removal may not have been carried out.
    removed: BTreeSet<u64>,
}

/// Looks at the newest state, judges it, and changes nothing of it.
pub(super) fn look(
    base: StoreBase,
    keys: StoreKeys,
    options: &StoreOptions,
) -> Result<(Engine, Recovered, Untaken)> {
    let writable = !options.read_only;
    let keys = Arc::new(keys);
    let known = base.anchor.load()?;
    let journal = Journal::open(&*base.folder, options.journal, writable)?;
    let (superblock, newest) = SuperFiles::open(&*base.folder, &keys, writable)?;
    let mut replay = Replay::read_from_either(&keys, &journal, (newest.found, newest.older), |commit| {
        is_durable(known.as_ref(), commit)
    })?;
    if let Some(known) = known.as_ref().filter(|_| options.past_gap && options.read_only) {
        replay.cross_gap(&keys, &journal, known)?;
    }
    let judged = judge(&base.uuid, known.as_ref(), &replay.last, &replay.facts);
    // Whatever the system cannot read of the journal, the state that the anchor remembers is the newest of this machine.
    let is_newest = matches!(judged, Ok(Standing::Same | Standing::Next));
    if let Some(e) = replay.unread.take().filter(|_| !is_newest && options.accept.is_none()) {
        return Err(e.context("cannot read the journal of the vault"));
    }
    let (standing, accepted) = match judged {
        Ok(standing) => (standing, false),
        Err(e) if e.kind() == Kind::RolledBack => {
            let Some(Consent(agrees)) = &options.accept else {
                let is_there = known.as_ref().map(|known| holds_newest(&keys, &journal, &replay.last, known));
                return Err(if is_there.transpose()?.unwrap_or(false) { damaged(&replay.last) } else { e });
            };
            // What is agreed to is the state that was read just now, whatever lies in the folder meanwhile.
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
        first_opening: standing == Standing::Unknown,
        accepted,
        state: CommitInfo { number: replay.last.number, time: replay.facts.time },
        records: replay.records,
        superblocks: match newest.fault {
            None => Superblocks::Whole,
            Some(_) if replay.was_finished || replay.unfinished.is_none() => Superblocks::Damaged,
            Some(_) => Superblocks::Torn,
        },
        superblock_fault: newest.fault,
    };
    let (engine, frozen, removed) = assemble(base, keys, options, (journal, superblock), replay, known)?;
    *engine.frozen.lock() = frozen;
    Ok((engine, recovered, Untaken { standing, removed }))
}

/// Numbers in the marks of pages that the root of the state that was found cannot have: see [`Recovered::stale`]. They end with those
/// that this opening will give.
fn stale(replay: &Replay, known: Option<&AnchorState>, read_only: bool, standing: Standing) -> Range<u64> {
    let end = match standing {
        _ if read_only => u64::MAX,
        Standing::Same | Standing::Next => replay.last.number,
        // A commit of its own comes first.
        Standing::Unknown | Standing::Newer => following(replay, known),
    };
    replay.root_commit..end
}

/// The number of the next commit. An accepted state is followed by one that is newer than what the anchor knows: the anchor never goes
/// back.
fn following(replay: &Replay, known: Option<&AnchorState>) -> u64 {
    replay.last.number.max(known.map_or(0, |known| known.number)) + 1
}

/// Goes on from the state that was found: rids it of what a crash left half done, and lets the anchor remember it.
pub(super) fn take_up(engine: &Engine, untaken: &Untaken) -> Result<()> {
    engine.journal.make_lost(&*engine.folder)?;
    engine.superblock.lock().make_lost(&*engine.folder)?;
    tidy(engine, &untaken.removed)?;
    for (id, pages) in engine.history.lock().facts.appendable.clone() {
        engine.objects.get_or_make(id).write().trimmed_to(pages);
    }
    if matches!(untaken.standing, Standing::Unknown | Standing::Newer) {
        // Another program may have brought these files here a moment ago.
        engine.folder.sync_all()?;
    }
    remember(engine, untaken.standing)?;
    if engine.frozen.lock().is_none() {
        // Otherwise the checkpoint writes both.
        let mended = engine.superblock.lock().complete(&engine.keys, &*engine.random);
        // Where the host refuses that, the next checkpoint does it.
        mended.or_else(|e| if e.kind().is_refusal() { Ok(()) } else { Err(e) })?;
    }
    // The thread finishes it while the vault is in use.
    if !engine.background {
        checkpoint::finish(engine, &mut engine.frozen.lock()).or_else(|e| {
            // It is tried again before the next one.
            if e.kind().is_refusal() { Ok(()) } else { Err(e) }
        })?;
    }
    Ok(())
}

/// Whether the journal holds the record of the commit that the anchor remembers, although nothing leads to it from the last one that was
/// found: what lies between is damaged, and nobody rolled anything back.
fn holds_newest(keys: &StoreKeys, journal: &Journal, last: &Commit, known: &AnchorState) -> Result<bool> {
    for area in 0..2 {
        let unreached = record::unreached(keys, journal, area, last.number)?;
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
            "bring the journal files back as they were, or bring out what there is with `lacuna vault rescue DIR TARGET`; \
             `lacuna vault accept DIR` goes on from the state before the gap",
        )
}

/// Whether the anchor says that a commit was durable.
fn is_durable(known: Option<&AnchorState>, commit: &Commit) -> bool {
    known.is_some_and(|known| (known.number, known.digest) == (commit.number, commit.digest))
}

/// The parts of the engine, in the state that was found. Also the checkpoint that was not finished, and objects that were
/// removed.
fn assemble(
    base: StoreBase,
    keys: Arc<StoreKeys>,
    options: &StoreOptions,
    (journal, superblock): (Journal, SuperFiles),
    replay: Replay,
    known: Option<AnchorState>,
) -> Result<(Engine, Option<Frozen>, BTreeSet<u64>)> {
    let session = DrawnSession::new(&*base.random);
    let machine = known.as_ref().map_or_else(|| draw(&base), |known| known.machine);
    let number = replay.last.number;
    let next = following(&replay, known.as_ref());
    let objects = Objects::new(base.folder.clone(), keys.clone());
    let doubled = Doubled::new(base.folder.clone(), keys.clone());
    let (mut journaled, mut frozen_objects, mut frozen_pages) = (BTreeSet::new(), Vec::new(), 0);
    for (id, replayed) in replay.objects {
        let shared = objects.get_or_make(id);
        let mut object = shared.write();
        if let Some(frozen) = &replayed.frozen {
            frozen_pages += frozen.pages.len() as u64;
            frozen_objects.push(id);
        }
        if replayed.live.cut.is_some() || !replayed.live.pages.is_empty() {
            journaled.insert(id);
        }
        *object = Object::replayed(replayed.live, replayed.frozen, u64::from(replay.unfinished.is_some()));
    }
    for (id, pages) in &replay.facts.appendable {
        objects.get_or_make(*id).write().ends_at(*pages);
    }
    journal.go_on(replay.area, replay.tail);
    let frozen = replay.unfinished.map(|begun| Frozen {
        objects: frozen_objects,
        left: begun.left,
        commit: begun.commit,
        facts: begun.facts,
        root: begun.root,
    });
    if let Some(begun) = &frozen {
        journal.leave(frozen_pages, begun.objects.len() as u64);
    }
    let numbers = Numbers {
        next: AtomicU64::new(replay.facts.next_object),
        new_from: AtomicU64::new(replay.facts.next_object),
        limit: AtomicU64::new(replay.facts.object_limit),
    };
    let history = History { last: replay.last, facts: replay.facts, anchor: known, machine, pending: None };
    // Where nothing is written nothing becomes longer.
    let longest = if options.read_only { u64::MAX } else { journal.longest()? / PAGE as u64 };
    let engine = Engine {
        folder: base.folder,
        keys,
        anchor: base.anchor,
        random: base.random,
        now: base.now,
        uuid: base.uuid,
        read_only: options.read_only,
        session,
        sequence: AtomicU64::new(0),
        health: FailStop::of_vault(),
        gate: RwLock::new(()),
        commit: AtomicU64::new(next),
        durable: AtomicU64::new(number),
        epoch: AtomicU64::new(u64::from(frozen.is_some())),
        interval: Mutex::new(Interval::default()),
        numbers,
        objects,
        doubled,
        journal,
        history: Mutex::new(history),
        journaled: Mutex::new(journaled),
        names: Mutex::default(),
        leaving: Leaving::default(),
        background: options.background && !options.read_only,
        frozen: Mutex::new(None),
        superblock: Mutex::new(superblock),
        tight: AtomicBool::new(false),
        owes_root: AtomicBool::new(false),
        longest,
    };
    Ok((engine, frozen, replay.removed))
}

/// Removes what the last commit does not refer to: objects that it removed, objects made since, and pages past the ends of
/// those that may be appended to in place.
fn tidy(engine: &Engine, removed: &BTreeSet<u64>) -> Result<()> {
    let facts = engine.history.lock().facts.clone();
    let mut folders = BTreeSet::new();
    for id in removed.iter().copied().chain(facts.next_object..facts.object_limit) {
        let name = engine.objects.name(id);
        match engine.folder.open(&name) {
            Err(e) if e.kind() == Kind::NotFound => {}
            // Whatever it is: the last commit does not refer to it.
            _ => {
                engine.folder.remove(&name)?;
                folders.insert(subfolder(&name).to_owned());
            }
        }
    }
    let mut trimmed: Vec<Arc<dyn FolderFile>> = Vec::new();
    for (id, pages) in &facts.appendable {
        if let Some(file) = engine.objects.file(*id)?
            && file.len()? > pages * PAGE as u64
        {
            file.set_len(pages * PAGE as u64)?;
            trimmed.push(file);
        }
    }
    if folders.len() + trimmed.len() > super::commit::SYNCS {
        return engine.folder.sync_all();
    }
    trimmed.iter().try_for_each(|file| file.sync())?;
    folders.iter().try_for_each(|folder| engine.folder.sync_names(folder))
}

/// Makes the anchor remember the state that was found. A state that is not by this machine is followed by a commit of its
/// own, so that what the anchor remembers is always this machine's last commit, and other machines find it in the table.
fn remember(engine: &Engine, standing: Standing) -> Result<()> {
    match standing {
        Standing::Same => Ok(()),
        Standing::Next => {
            let mut history = engine.history.lock();
            let next = AnchorState {
                uuid: engine.uuid,
                machine: history.machine,
                number: history.last.number,
                digest: history.last.digest,
                time: history.facts.time,
            };
            engine.anchor.advance(history.anchor.as_ref(), &next)?;
            history.anchor = Some(next);
            Ok(())
        }
        Standing::Unknown | Standing::Newer => {
            commit(engine, &Request { puts: &[], root: None, anyway: true }, &mut || ()).map(drop)
        }
    }
}
