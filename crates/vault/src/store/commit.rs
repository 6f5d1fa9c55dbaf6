//! Commits: what changed becomes durable whole, and the anchor advances.
//!
//! The order is the security argument and the crash argument in one: (1) what was written in place, (2) the record, which is
//! the new state and the signed intent to advance, (3) the anchor, (4) only then what the old state alone refers to goes.
//!
//! A host that refuses to take the record (it is full, or has a quota) fails this commit and nothing else: what it says is kept, and the
//! next commit writes it first, in the same place and with the same bytes. Nothing that it notes is undone, so nothing is sealed twice
//! with different words.

use super::anchor::AnchorState;
use super::checkpoint::Frozen;
use super::content::{
    self, APPENDABLE, Changes, Commit, Facts, JournaledPage, MACHINES, MOST_PAGES, ROOT_MAX, record_to_bytes,
};
use super::engine::{Engine, History, Interval};
use super::journal::Place;
use super::object::{COPIED, Source};
use super::objects::subfolder;
use super::{PAGE, record};
use lacuna_core::{Error, Kind, OnPanic, Result, defect};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// Files and names that are synced one by one; beyond, everything is synced with one call.
pub(super) const SYNCS: usize = 16;

/// Object numbers that may be given before the first commits; bursts get more.
const NUMBERS: std::ops::RangeInclusive<u64> = 1024..=16384;

/// What a commit was asked for.
pub(super) struct Request<'a> {
    pub(super) puts: &'a [u8],
    pub(super) root: Option<&'a [u8]>,
    /// Whether a record is written even if nothing changed.
    pub(super) anyway: bool,
}

/// A commit that was noted: from then on changes belong to the next one.
pub(super) struct Pending {
    noted: Noted,
    /// With a root: what is frozen, and the root.
    switched: Option<(Switched, Vec<u8>)>,
}

/// What a commit says, noted while nothing could change.
struct Noted {
    number: u64,
    facts: Facts,
    /// The text of the record, and its place.
    plain: Vec<u8>,
    place: Place,
    /// The record and its digest, once it was tried: the next try writes the same bytes, also in another session.
    sealed: Option<(Vec<u8>, [u8; 32])>,
    /// Objects that must be durable before the record is.
    placed: Vec<u64>,
    touched: Vec<u64>,
    removed: Vec<u64>,
}

/// Commits. With a root, gives what the checkpoint must bring to its place; `frozen` is empty then. `noted` is called as soon as
/// changes belong to the next commit.
pub(super) fn commit(
    engine: &Engine,
    asked: &Request<'_>,
    noted: &mut dyn FnMut(),
) -> Result<Option<Frozen>> {
    engine.may_change()?;
    if let Some(root) = asked.root.filter(|root| root.len() > ROOT_MAX) {
        return Err(Error::new(Kind::Usage, "the root of a commit is too long")
            .found(format!("{} bytes", root.len()))
            .expected(format!("at most {ROOT_MAX} bytes")));
    }
    let _cut_short = unless_cut_short(engine);
    let mut history = engine.history.lock();
    // It may have failed while this waited.
    engine.health.check()?;
    if history.pending.as_ref().is_some_and(|pending| pending.switched.is_some()) {
        // What it freezes would be lost here.
        return Err(Error::new(Kind::NoSpace, "a commit before this one waits for space"));
    }
    complete(engine, &mut history)?;
    history.pending = note(engine, &history, asked).map_err(|e| engine.refused(e))?;
    noted();
    complete(engine, &mut history)
}

/// Makes a commit durable that was noted and whose record the host refused to take. With a root, gives what the checkpoint must bring to
/// its place.
pub(super) fn resume(engine: &Engine) -> Result<Option<Frozen>> {
    engine.health.check()?;
    let _cut_short = unless_cut_short(engine);
    complete(engine, &mut engine.history.lock())
}

/// Ends all writing if this thread panics from now on: what was noted would be left out.
fn unless_cut_short(engine: &Engine) -> OnPanic<impl FnMut()> {
    OnPanic::new(move || drop(engine.health.fail(defect())))
}

/// Makes what was noted durable. What the host refuses to take stays noted.
fn complete(engine: &Engine, history: &mut History) -> Result<Option<Frozen>> {
    let Some(mut pending) = history.pending.take() else { return Ok(None) };
    engine.owes_root.store(pending.switched.is_some(), Ordering::Release);
    let last = match publish(engine, history, &mut pending.noted) {
        Err(e) if e.kind().is_refusal() => {
            history.pending = Some(pending);
            return Err(engine.refused(e));
        }
        done => done.map_err(|e| engine.broken(e))?,
    };
    engine.owes_root.store(false, Ordering::Release);
    let Pending { noted, switched } = pending;
    // Before another commit can begin a checkpoint, after which no recovery would look for their files.
    engine.leaving.add(&noted.removed);
    match release(engine, &noted) {
        // Files of removed objects are left: they go with the next commit.
        Err(e) if e.kind().is_refusal() => {}
        done => done.map_err(|e| engine.broken(e))?,
    }
    let Noted { facts, .. } = noted;
    Ok(switched.map(|((objects, left), root)| Frozen {
        objects,
        left,
        commit: last,
        facts,
        root: Some(root),
    }))
}

/// Objects that are frozen, and the journal file that was left.
type Switched = (Vec<u64>, u8);

/// Notes what the commit says. Until it returns nobody changes anything; from then on changes belong to the next commit.
fn note(engine: &Engine, history: &History, asked: &Request<'_>) -> Result<Option<Pending>> {
    let _alone = engine.gate.write();
    let mut interval = engine.interval.lock();
    interval.touched.sort_unstable();
    interval.removed.sort_unstable();
    let nothing = interval.touched.is_empty() && interval.removed.is_empty();
    if nothing && asked.puts.is_empty() && asked.root.is_none() && !asked.anyway {
        return Ok(None);
    }
    let copied = copy_few(engine, &interval)?;
    let number = engine.commit.load(Ordering::Acquire);
    let mut changes = Changes {
        removals: interval.removed.clone(),
        root: asked.root.map(<[u8]>::to_vec),
        // With a root as well: until its checkpoint is done they lead to it from the root before, whose pages are whole.
        puts: asked.puts.to_vec(),
        ..Changes::default()
    };
    let (mut appendable, mut placed) = (Vec::new(), Vec::new());
    for &id in &interval.touched {
        let Some(object) = engine.objects.get(id) else { continue };
        let object = object.read();
        if object.removed {
            continue;
        }
        changes.cuts.extend(object.fresh.cut.map(|cut| (id, cut)));
        changes.pages.extend(object.listed().into_iter().map(|(page, entry)| JournaledPage {
            object: id,
            page,
            place: entry.place.page,
            sequence: entry.sequence,
            tag: entry.tag,
        }));
        let fresh = &object.fresh;
        if !copied && (fresh.placed > 0 || fresh.shrunk) {
            placed.push(id);
        }
        let many = fresh.placed.max(fresh.journaled.len() as u64) > COPIED;
        if many && !object.is_cut() && appendable.len() < APPENDABLE && !engine.doubled.has(id) {
            appendable.push((id, object.stable.unwrap_or(0).max(object.end)));
        }
    }
    let facts = facts_of(engine, history, appendable);
    check_readable(number, &facts, &changes)?;
    let plain = record_to_bytes(&facts, &changes);
    // Where the host may refuse what it seems to have room for, it is asked while nothing is noted: what is removed now may still make
    // room, and files that no commit refers to need no other commit to go.
    let asks = engine.tight.load(Ordering::Relaxed) || asked.root.is_some();
    let place = engine.journal.take_record(record::pages_of(plain.len()), asks)?;
    // Nothing fails from here on.
    let Interval { touched, removed } = std::mem::take(&mut *interval);
    for id in &touched {
        let Some(object) = engine.objects.get(*id) else { continue };
        let mut object = object.write();
        let listed = facts.appendable.binary_search_by_key(id, |(listed, _)| *listed).is_ok();
        // What was in no record, or in the last one's list, is cut by a recovery that does not find this record.
        let known = engine.is_new(*id) || object.appendable.is_some();
        object.said(listed.then_some(if known { 0 } else { number }));
    }
    forget_appendable(engine, history, &facts);
    engine.numbers.new_from.store(facts.next_object, Ordering::Release);
    engine.commit.store(number + 1, Ordering::Release);
    let switched = asked.root.is_some().then(|| {
        engine.epoch.fetch_add(1, Ordering::AcqRel);
        let objects = std::mem::take(&mut *engine.journaled.lock());
        let left = engine.journal.switch(objects.len() as u64);
        (objects.into_iter().collect(), left)
    });
    let switched = switched.zip(asked.root.map(<[u8]>::to_vec));
    let noted = Noted { number, facts, plain, place, sealed: None, placed, touched, removed };
    Ok(Some(Pending { noted, switched }))
}

/// Refuses a commit that no opening could read.
fn check_readable(number: u64, facts: &Facts, changes: &Changes) -> Result<()> {
    if content::is_readable(number, facts, changes) {
        return Ok(());
    }
    Err(Error::new(Kind::Other, "the vault cannot commit what it could not read again")
        .found(format!("commit {number}, objects up to {}", facts.object_limit))
        .expected(format!("at most {}, and objects of less than {MOST_PAGES} pages", content::MOST_NUMBER)))
}

/// Objects of the last list that are not in this one go to the journal again.
fn forget_appendable(engine: &Engine, history: &History, facts: &Facts) {
    for (id, _) in &history.facts.appendable {
        let listed = facts.appendable.binary_search_by_key(id, |(listed, _)| *listed).is_ok();
        if let Some(object) = engine.objects.get(*id)
            && !listed
        {
            object.write().appendable = None;
        }
    }
}

/// What is true after the commit.
fn facts_of(engine: &Engine, history: &History, appendable: Vec<(u64, u64)>) -> Facts {
    let next_object = engine.numbers.next.load(Ordering::Acquire);
    let made = next_object - engine.numbers.new_from.load(Ordering::Acquire);
    let reserve = (8 * made).clamp(*NUMBERS.start(), *NUMBERS.end());
    let mut table: Vec<Commit> = history.facts.table.clone();
    table.retain(|commit| commit.machine != history.last.machine);
    table.push(history.last.clone());
    table.retain(|commit| commit.machine != history.machine);
    if table.len() > MACHINES {
        table.sort_by_key(|commit| commit.number);
        table.remove(0);
    }
    Facts {
        machine: history.machine,
        time: (engine.now)(),
        next_object,
        object_limit: next_object + reserve,
        table,
        appendable,
    }
}

/// Pages of the journal that writes of so many pages may take, and those of the record of a commit after them, with a root and with
/// so many bytes of puts.
pub(super) fn room(engine: &Engine, pages: u64, puts: u64) -> (u64, u64) {
    let pages = pages + COPIED;
    let (touched, removed) = {
        let interval = engine.interval.lock();
        (interval.touched.len() as u64, interval.removed.len() as u64)
    };
    // At most: every page since the last record is listed, every object was cut, and there are as many facts as there can be.
    let lists = 44 * (engine.journal.taken() + pages) + 16 * touched + 8 * removed;
    let facts = 88 * MACHINES as u64 + 16 * APPENDABLE as u64 + puts + ROOT_MAX as u64 + 256;
    (pages, record::pages_of((lists + facts) as usize))
}

/// If few pages were written in place, copies them to the journal: then nothing but the journal must be synced. Whether it
/// did.
fn copy_few(engine: &Engine, interval: &Interval) -> Result<bool> {
    let objects = || interval.touched.iter().filter_map(|id| Some((*id, engine.objects.get(*id)?)));
    let mut total = 0;
    for (_, object) in objects() {
        let object = object.read();
        if !object.removed {
            total += object.fresh.placed;
            if object.fresh.shrunk || total > COPIED {
                return Ok(false);
            }
        }
    }
    let mut page = vec![0; PAGE];
    for (id, object) in objects() {
        let mut object = object.write();
        if object.removed {
            continue;
        }
        let pages: BTreeSet<u64> = object.fresh.runs.iter().cloned().flatten().collect();
        for number in pages {
            if number < object.end && object.source(number) == Source::Own {
                engine.read_known(&object, id, number..number + 1, &mut page)?;
                let taken = engine.journal.take(1);
                match taken.and_then(|place| engine.write_journal(&mut object, number, place, &page)) {
                    // They are synced where they are.
                    Err(e) if e.kind().is_refusal() => return Ok(false),
                    done => done?,
                }
                engine.journaled.lock().insert(id);
            }
        }
    }
    Ok(true)
}

/// Steps 1 to 3: makes the commit durable. Gives it. What the host refused to take may be tried again.
fn publish(engine: &Engine, history: &mut History, noted: &mut Noted) -> Result<Commit> {
    sync_objects(engine, &noted.placed)?;
    let sealed = if let Some(sealed) = noted.sealed.take() {
        sealed
    } else {
        let link = (noted.number, &history.last.digest);
        record::seal(&engine.keys, engine.session(), noted.place, link, &noted.plain)?
    };
    let (bytes, digest) = &*noted.sealed.insert(sealed);
    let digest = *digest;
    engine.journal.write_record(noted.place, bytes)?;
    engine.journal.sync(noted.place.area)?;
    let machine = history.machine;
    let last = Commit { machine, number: noted.number, digest, before: history.last.digest };
    let anchored =
        AnchorState { uuid: engine.uuid, machine, number: noted.number, digest, time: noted.facts.time };
    engine.anchor.advance(history.anchor.as_ref(), &anchored)?;
    history.anchor = Some(anchored);
    history.last = last.clone();
    history.facts = noted.facts.clone();
    engine.numbers.limit.store(noted.facts.object_limit, Ordering::Release);
    engine.durable.store(noted.number, Ordering::Release);
    Ok(last)
}

/// Makes objects durable, and the names of those whose files are new.
pub(super) fn sync_objects(engine: &Engine, objects: &[u64]) -> Result<()> {
    let named = |id: u64| engine.objects.get(id).is_some_and(|object| object.read().name_unsynced);
    let new: Vec<u64> = objects.iter().copied().filter(|id| named(*id)).collect();
    let folders: BTreeSet<String> =
        new.iter().map(|id| subfolder(&engine.objects.name(*id)).to_owned()).collect();
    if objects.len() + folders.len() > SYNCS {
        engine.folder.sync_all().map_err(Error::of_sync)?;
    } else {
        for id in objects {
            // One that somebody removed behind our back is missed when it is read.
            if let Some(file) = engine.objects.file(*id)? {
                file.sync().map_err(Error::of_sync)?;
            }
        }
        folders.iter().try_for_each(|folder| engine.folder.sync_names(folder)).map_err(Error::of_sync)?;
    }
    for id in new {
        if let Some(object) = engine.objects.get(id) {
            object.write().name_unsynced = false;
        }
    }
    Ok(())
}

/// Step 4: the files of removed objects go, at once or by the thread, and what is known of idle objects is forgotten.
fn release(engine: &Engine, noted: &Noted) -> Result<()> {
    if !engine.background {
        engine.unlink_leaving()?;
    }
    let _alone = engine.gate.write();
    engine.objects.forget_idle(&noted.touched, engine.commit.load(Ordering::Acquire));
    Ok(())
}
