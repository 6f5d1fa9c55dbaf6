//! The commit log: makes changes durable as a whole, and advances the anchor.
//!
//! The order of the steps is the argument for security and for crashes: (1) sync pages written in
//! place, (2) write the record, which holds the new state and the sealed intent to advance, (3)
//! advance the anchor, (4) only then remove data that only the old state refers to.
//!
//! If the host refuses the record (it is full, or has a quota), only this commit fails: its notes
//! are kept, and the next commit first writes the same bytes to the same place. No note is undone,
//! so no two texts are sealed for one commit.

use crate::anchor::{Anchor, AnchorState};
use crate::content::{
    self, APPENDABLE, Changes, Commit, Facts, JournaledPage, MACHINES, MOST_PAGES, ROOT_MAX, record_to_bytes,
};
use crate::ids::CommitInfo;
use crate::interval::Changed;
use crate::journal::Place;
use crate::object::COPIED;
use crate::options::{Now, StoreBase};
use crate::parts::Parts;
use crate::reclaimer::Reclaimer;
use crate::record;
use crate::session::DrawnSession;
use crate::write::Writer;
use lacuna_contracts::{Error, Kind, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Object numbers that may be given before the first commits; bursts get more.
const NUMBERS: std::ops::RangeInclusive<u64> = 1024..=16384;

/// The parameters of a commit.
pub(crate) struct Request<'a> {
    pub(crate) puts: &'a [u8],
    pub(crate) root: Option<&'a [u8]>,
    /// Whether a record is written even if nothing changed.
    pub(crate) anyway: bool,
}

/// The objects that a checkpoint writes back, and the content of its superblock; the result of a
/// commit with a root.
pub(crate) struct Frozen {
    pub(crate) objects: Vec<u64>,
    /// The journal file that holds them.
    pub(crate) left: u8,
    /// The commit that began the checkpoint.
    pub(crate) commit: Commit,
    pub(crate) facts: Facts,
    pub(crate) root: Option<Vec<u8>>,
}

/// The state of the commit history.
pub(crate) struct History {
    /// The last durable commit, and the state after it.
    last: Commit,
    facts: Facts,
    /// The anchored state.
    anchor: Option<AnchorState>,
    machine: [u8; 16],
    /// A commit that was noted and is not durable, because the host refused its record. The next
    /// commit makes it durable first.
    pending: Option<Pending>,
}

impl History {
    /// The history up to a durable commit, for this machine.
    pub(crate) fn new(last: Commit, facts: Facts, anchor: Option<AnchorState>, machine: [u8; 16]) -> History {
        History { last, facts, anchor, machine, pending: None }
    }
}

/// A noted commit: later changes belong to the next one.
struct Pending {
    noted: Noted,
    /// With a root: the frozen objects, and the root.
    switched: Option<(Switched, Vec<u8>)>,
}

/// The content of a commit, noted while no object could change.
struct Noted {
    number: u64,
    facts: Facts,
    /// The text of the record, and its place.
    plain: Vec<u8>,
    place: Place,
    /// The record and its digest after the first try: the next try writes the same bytes, even in
    /// another session.
    sealed: Option<(Vec<u8>, [u8; 32])>,
    /// Objects that must be durable before the record.
    placed: Vec<u64>,
    /// Objects that changed, and objects that are no longer appendable: their entries can be
    /// dropped once the commit is durable, if they are idle.
    touched: Vec<u64>,
    removed: Vec<u64>,
}

/// Frozen objects, and the journal file that was left.
type Switched = (Vec<u64>, u8);

/// The log of an open store.
pub(crate) struct CommitLog {
    parts: Arc<Parts>,
    writer: Arc<Writer>,
    reclaimer: Arc<Reclaimer>,
    anchor: Arc<dyn Anchor>,
    now: Now,
    uuid: [u8; 16],
    session: DrawnSession,
    /// Whether a thread removes the files of removed objects, instead of the commit.
    background: bool,
    /// Locked by one commit at a time.
    history: Mutex<History>,
    /// Whether a commit with a root was noted and is not durable.
    owes_root: AtomicBool,
}

impl CommitLog {
    /// A log that continues this history in this session.
    pub(crate) fn new(
        parts: Arc<Parts>,
        writer: Arc<Writer>,
        reclaimer: Arc<Reclaimer>,
        base: &StoreBase,
        session: DrawnSession,
        background: bool,
        history: History,
    ) -> CommitLog {
        CommitLog {
            parts,
            writer,
            reclaimer,
            anchor: base.anchor.clone(),
            now: base.now.clone(),
            uuid: base.uuid,
            session,
            background,
            history: Mutex::new(history),
            owes_root: AtomicBool::new(false),
        }
    }

    /// The number of the current session.
    pub(crate) fn session(&self) -> u64 {
        self.session.number()
    }

    /// The last durable commit.
    pub(crate) fn last(&self) -> CommitInfo {
        let history = self.history.lock();
        CommitInfo { number: history.last.number, time: history.facts.time }
    }

    /// The state after the last durable commit.
    pub(crate) fn facts(&self) -> Facts {
        self.history.lock().facts.clone()
    }

    /// Whether a commit with a root was noted and is not durable: [`CommitLog::resume`] makes it
    /// durable.
    pub(crate) fn owes_root(&self) -> bool {
        self.owes_root.load(Ordering::Acquire)
    }

    /// See [`crate::Store::unreached`].
    pub(crate) fn unreached(&self) -> Result<Vec<(u64, Vec<u8>)>> {
        let (last, known) = {
            let history = self.history.lock();
            (history.last.number, history.anchor.as_ref().map_or(u64::MAX, |known| known.number))
        };
        let mut batches = Vec::new();
        for area in 0..2 {
            let found = record::unreached(&self.parts.keys, &self.parts.journal, area, last)?;
            // Records newer than the anchored state were never acknowledged.
            let durable = found.into_iter().filter(|found| found.commit.number <= known);
            batches.extend(durable.map(|found| (found.commit.number, found.changes.puts)));
        }
        batches.sort_by_key(|(number, _)| *number);
        Ok(batches)
    }

    /// Advances the anchor to the last commit, after a crash prevented that.
    pub(crate) fn advance_anchor(&self) -> Result<()> {
        let mut history = self.history.lock();
        let next = AnchorState {
            uuid: self.uuid,
            machine: history.machine,
            number: history.last.number,
            digest: history.last.digest,
            time: history.facts.time,
        };
        self.anchor.advance(history.anchor.as_ref(), &next)?;
        history.anchor = Some(next);
        Ok(())
    }

    /// The pages of the journal that writes of this many pages may take, and the pages of the
    /// record of a later commit with a root and with this many bytes of puts.
    pub(crate) fn room(&self, pages: u64, puts: u64) -> (u64, u64) {
        let pages = pages + COPIED;
        let (touched, removed) = {
            let changed = self.parts.interval.changed();
            (changed.touched.len() as u64, changed.removed.len() as u64)
        };
        // The worst case: every page since the last record is listed, every object was truncated,
        // and all lists of facts are full.
        let lists = 44 * (self.parts.journal.taken() + pages) + 16 * touched + 8 * removed;
        let facts = 88 * MACHINES as u64 + 16 * APPENDABLE as u64 + puts + ROOT_MAX as u64 + 256;
        (pages, record::pages_of((lists + facts) as usize))
    }

    /// Commits. With a root, returns the data of the checkpoint that begins; the previous
    /// checkpoint is finished then. `noted` is called as soon as changes belong to the next commit.
    pub(crate) fn commit(&self, asked: &Request<'_>, noted: &mut dyn FnMut()) -> Result<Option<Frozen>> {
        let health = &self.parts.health;
        health.may_change()?;
        if let Some(root) = asked.root.filter(|root| root.len() > ROOT_MAX) {
            return Err(Error::new(Kind::Usage, "the root of a commit is too long")
                .found(format!("{} bytes", root.len()))
                .expected(format!("at most {ROOT_MAX} bytes")));
        }
        let _cut_short = health.end_on_panic();
        let mut history = self.history.lock();
        // Another commit may have failed while this one waited for the lock.
        health.check()?;
        if history.pending.as_ref().is_some_and(|pending| pending.switched.is_some()) {
            // Completing it here would lose its frozen objects.
            return Err(Error::new(Kind::NoSpace, "a commit before this one waits for space"));
        }
        self.complete(&mut history)?;
        history.pending = self.note(&history, asked).map_err(|e| health.refused(e))?;
        noted();
        self.complete(&mut history)
    }

    /// Makes a commit durable that was noted and refused. With a root, returns the data of the
    /// checkpoint that begins.
    pub(crate) fn resume(&self) -> Result<Option<Frozen>> {
        self.parts.health.check()?;
        let _cut_short = self.parts.health.end_on_panic();
        self.complete(&mut self.history.lock())
    }

    /// Makes the noted commit durable. If the host refuses, it stays noted.
    fn complete(&self, history: &mut History) -> Result<Option<Frozen>> {
        let health = &self.parts.health;
        let Some(mut pending) = history.pending.take() else { return Ok(None) };
        self.owes_root.store(pending.switched.is_some(), Ordering::Release);
        let last = match self.publish(history, &mut pending.noted) {
            Err(e) if e.changed_nothing() => {
                history.pending = Some(pending);
                return Err(health.refused(e));
            }
            done => done.map_err(|e| health.broken(e))?,
        };
        self.owes_root.store(false, Ordering::Release);
        let Pending { noted, switched } = pending;
        // Before another commit can begin a checkpoint: no recovery after that would look for these
        // files.
        self.reclaimer.add(&noted.removed);
        match self.release(&noted) {
            // The files of removed objects remain until the next commit.
            Err(e) if e.changed_nothing() => {}
            done => done.map_err(|e| health.broken(e))?,
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

    /// Notes the content of the commit. No object changes until it returns; later changes belong to
    /// the next commit.
    fn note(&self, history: &History, asked: &Request<'_>) -> Result<Option<Pending>> {
        let Parts { health, objects, interval, journal, .. } = &*self.parts;
        let _alone = interval.alone();
        let mut changed = interval.changed();
        changed.touched.sort_unstable();
        changed.removed.sort_unstable();
        let nothing = changed.touched.is_empty() && changed.removed.is_empty();
        if nothing && asked.puts.is_empty() && asked.root.is_none() && !asked.anyway {
            return Ok(None);
        }
        let copied = self.writer.copy_few(&changed)?;
        let number = interval.commit();
        let mut changes = Changes {
            removals: changed.removed.clone(),
            root: asked.root.map(<[u8]>::to_vec),
            // Also with a root: until its checkpoint is finished, the puts lead to it from the
            // previous root, which has its pages whole.
            puts: asked.puts.to_vec(),
            ..Changes::default()
        };
        let (appendable, placed) = self.list(&changed, copied, &mut changes);
        let facts = self.facts_after(history, appendable);
        check_readable(number, &facts, &changes)?;
        let plain = record_to_bytes(&facts, &changes);
        // If the host may refuse space that it seems to have, probe while nothing is noted: a
        // removal now may still free space, and files that no commit refers to can go without
        // another commit.
        let asks = health.is_tight() || asked.root.is_some();
        let place = journal.take_record(record::pages_of(plain.len()), asks)?;
        // Nothing below can fail.
        let Changed { mut touched, removed } = std::mem::take(&mut *changed);
        for id in &touched {
            let Some(object) = objects.get(*id) else { continue };
            let mut object = object.write();
            let listed = is_listed(&facts, *id);
            // An object that is new or was in the previous list is truncated by a recovery that
            // does not find this record.
            let known = interval.is_new(*id) || object.appendable.is_some();
            object.said(listed.then_some(if known { 0 } else { number }));
        }
        touched.extend(self.forget_appendable(history, &facts));
        interval.end(number, facts.next_object);
        let switched = asked.root.map(|root| {
            let frozen = interval.begin_checkpoint();
            let left = journal.switch(frozen.len() as u64);
            ((frozen.into_iter().collect(), left), root.to_vec())
        });
        let noted = Noted { number, facts, plain, place, sealed: None, placed, touched, removed };
        Ok(Some(Pending { noted, switched }))
    }

    /// Adds the cuts and journaled pages of touched objects to `changes`. Returns the objects that
    /// are appendable in place from now, with their pages; and the objects that must be durable
    /// before the record: none if pages written in place were `copied` to the journal.
    fn list(
        &self,
        changed: &Changed,
        copied: bool,
        changes: &mut Changes,
    ) -> (Vec<content::ObjectPages>, Vec<u64>) {
        let objects = &self.parts.objects;
        let (mut appendable, mut placed) = (Vec::new(), Vec::new());
        for &id in &changed.touched {
            let Some(object) = objects.get(id) else { continue };
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
            if many && !object.is_cut() && appendable.len() < APPENDABLE && !objects.doubled.has(id) {
                appendable.push((id, object.stable.unwrap_or(0).max(object.end)));
            }
        }
        (appendable, placed)
    }

    /// Makes objects of the previous list that are not in this one non-appendable. Returns them.
    fn forget_appendable(&self, history: &History, facts: &Facts) -> Vec<u64> {
        let last = history.facts.appendable.iter().map(|(id, _)| *id);
        let dropped: Vec<u64> = last.filter(|id| !is_listed(facts, *id)).collect();
        for object in dropped.iter().filter_map(|id| self.parts.objects.get(*id)) {
            object.write().appendable = None;
        }
        dropped
    }

    /// The state after the commit that is being noted.
    fn facts_after(&self, history: &History, appendable: Vec<content::ObjectPages>) -> Facts {
        let (next_object, made) = self.parts.interval.given();
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
            time: (self.now)(),
            next_object,
            object_limit: next_object + reserve,
            table,
            appendable,
        }
    }

    /// Steps 1 to 3: makes the commit durable and returns it. After a refusal of the host it may be
    /// tried again.
    fn publish(&self, history: &mut History, noted: &mut Noted) -> Result<Commit> {
        let Parts { keys, objects, interval, journal, .. } = &*self.parts;
        objects.sync(&noted.placed)?;
        let sealed = if let Some(sealed) = noted.sealed.take() {
            sealed
        } else {
            let (number, before) = (noted.number, &history.last.digest);
            record::seal(keys, self.session(), noted.place, number, before, &noted.plain)?
        };
        let (bytes, digest) = &*noted.sealed.insert(sealed);
        let digest = *digest;
        journal.write_record(noted.place, bytes)?;
        journal.sync(noted.place.area)?;
        let machine = history.machine;
        let last = Commit { machine, number: noted.number, digest, before: history.last.digest };
        let anchored =
            AnchorState { uuid: self.uuid, machine, number: noted.number, digest, time: noted.facts.time };
        self.anchor.advance(history.anchor.as_ref(), &anchored)?;
        history.anchor = Some(anchored);
        history.last = last.clone();
        history.facts = noted.facts.clone();
        interval.made_durable(noted.number, noted.facts.object_limit);
        Ok(last)
    }

    /// Step 4: removes the files of removed objects, unless the thread does, and drops the entries
    /// of idle objects.
    fn release(&self, noted: &Noted) -> Result<()> {
        if !self.background {
            self.reclaimer.reclaim()?;
        }
        let interval = &self.parts.interval;
        let _alone = interval.alone();
        self.parts.objects.forget_idle(&noted.touched, interval.commit());
        Ok(())
    }
}

/// Whether an object may be appended to in place after a commit.
fn is_listed(facts: &Facts, object: u64) -> bool {
    facts.appendable.binary_search_by_key(&object, |(listed, _)| *listed).is_ok()
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
