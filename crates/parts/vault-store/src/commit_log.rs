//! The commit log: what changed becomes durable whole, and the anchor advances.
//!
//! The order is the security argument and the crash argument in one: (1) what was written in place,
//! (2) the record, which is the new state and the signed intent to advance, (3) the anchor, (4)
//! only then what the old state alone refers to goes.
//!
//! A host that refuses to take the record (it is full, or has a quota) fails this commit and
//! nothing else: what it says is kept, and the next commit writes it first, in the same place and
//! with the same bytes. Nothing that it notes is undone, so nothing is sealed twice with different
//! words.

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

/// What a commit was asked for.
pub(crate) struct Request<'a> {
    pub(crate) puts: &'a [u8],
    pub(crate) root: Option<&'a [u8]>,
    /// Whether a record is written even if nothing changed.
    pub(crate) anyway: bool,
}

/// What a checkpoint brings to its place, and what its superblock says. A commit with a root leaves
/// it.
pub(crate) struct Frozen {
    pub(crate) objects: Vec<u64>,
    /// The journal file that holds it.
    pub(crate) left: u8,
    /// The commit that began it.
    pub(crate) commit: Commit,
    pub(crate) facts: Facts,
    pub(crate) root: Option<Vec<u8>>,
}

/// Where the history of commits stands.
pub(crate) struct History {
    /// The last durable commit, and what is true after it.
    last: Commit,
    facts: Facts,
    /// What the anchor remembers.
    anchor: Option<AnchorState>,
    machine: [u8; 16],
    /// A commit that was noted and is not durable, because the host refused to take its record. The
    /// next one makes it durable first.
    pending: Option<Pending>,
}

impl History {
    /// The history up to a durable commit, for this machine.
    pub(crate) fn new(last: Commit, facts: Facts, anchor: Option<AnchorState>, machine: [u8; 16]) -> History {
        History { last, facts, anchor, machine, pending: None }
    }
}

/// A commit that was noted: from then on changes belong to the next one.
struct Pending {
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
    /// The record and its digest, once it was tried: the next try writes the same bytes, also in
    /// another session.
    sealed: Option<(Vec<u8>, [u8; 32])>,
    /// Objects that must be durable before the record is.
    placed: Vec<u64>,
    /// Objects that changed, and those that were appended to before: nothing need be known of them
    /// once it is durable, if they are idle.
    touched: Vec<u64>,
    removed: Vec<u64>,
}

/// Objects that are frozen, and the journal file that was left.
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
    /// Whether a thread removes the files of removed objects, and not the commit.
    background: bool,
    /// Taken by one commit at a time.
    history: Mutex<History>,
    /// A commit with a root was noted and is not durable.
    owes_root: AtomicBool,
}

impl CommitLog {
    /// A log that goes on from this history, in this session.
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

    /// The number of the present session.
    pub(crate) fn session(&self) -> u64 {
        self.session.number()
    }

    /// The last durable commit.
    pub(crate) fn last(&self) -> CommitInfo {
        let history = self.history.lock();
        CommitInfo { number: history.last.number, time: history.facts.time }
    }

    /// What is true after the last durable commit.
    pub(crate) fn facts(&self) -> Facts {
        self.history.lock().facts.clone()
    }

    /// Whether a commit with a root was noted and is not durable: [`CommitLog::resume`] makes it
    /// so.
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
            // What is newer than the anchor was never acknowledged.
            let durable = found.into_iter().filter(|found| found.commit.number <= known);
            batches.extend(durable.map(|found| (found.commit.number, found.changes.puts)));
        }
        batches.sort_by_key(|(number, _)| *number);
        Ok(batches)
    }

    /// Makes the anchor remember the last commit, which a crash kept it from.
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

    /// Pages of the journal that writes of this many pages may take, and those of the record of a
    /// commit after them, with a root and with this many bytes of puts.
    pub(crate) fn room(&self, pages: u64, puts: u64) -> (u64, u64) {
        let pages = pages + COPIED;
        let (touched, removed) = {
            let changed = self.parts.interval.changed();
            (changed.touched.len() as u64, changed.removed.len() as u64)
        };
        // At most: every page since the last record is listed, every object was cut, and there are
        // as many facts as there can be.
        let lists = 44 * (self.parts.journal.taken() + pages) + 16 * touched + 8 * removed;
        let facts = 88 * MACHINES as u64 + 16 * APPENDABLE as u64 + puts + ROOT_MAX as u64 + 256;
        (pages, record::pages_of((lists + facts) as usize))
    }

    /// Commits. With a root, gives what the checkpoint must bring to its place; the one before it
    /// is complete then. `noted` is called as soon as changes belong to the next commit.
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
        // It may have failed while this waited.
        health.check()?;
        if history.pending.as_ref().is_some_and(|pending| pending.switched.is_some()) {
            // What it freezes would be lost here.
            return Err(Error::new(Kind::NoSpace, "a commit before this one waits for space"));
        }
        self.complete(&mut history)?;
        history.pending = self.note(&history, asked).map_err(|e| health.refused(e))?;
        noted();
        self.complete(&mut history)
    }

    /// Makes a commit durable that was noted and whose record the host refused to take. With a
    /// root, gives what the checkpoint must bring to its place.
    pub(crate) fn resume(&self) -> Result<Option<Frozen>> {
        self.parts.health.check()?;
        let _cut_short = self.parts.health.end_on_panic();
        self.complete(&mut self.history.lock())
    }

    /// Makes what was noted durable. What the host refuses to take stays noted.
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
        // Before another commit can begin a checkpoint, after which no recovery would look for
        // their files.
        self.reclaimer.add(&noted.removed);
        match self.release(&noted) {
            // Files of removed objects are left: they go with the next commit.
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

    /// Notes what the commit says. Until it returns no object changes; from then on changes belong
    /// to the next commit.
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
            // With a root as well: until its checkpoint is done they lead to it from the root
            // before, whose pages are whole.
            puts: asked.puts.to_vec(),
            ..Changes::default()
        };
        let (appendable, placed) = self.list(&changed, copied, &mut changes);
        let facts = self.facts_after(history, appendable);
        check_readable(number, &facts, &changes)?;
        let plain = record_to_bytes(&facts, &changes);
        // Where the host may refuse what it seems to have room for, it is asked while nothing is
        // noted: what is removed now may still make room, and files that no commit refers to need
        // no other commit to go.
        let asks = health.is_tight() || asked.root.is_some();
        let place = journal.take_record(record::pages_of(plain.len()), asks)?;
        // Nothing fails from here on.
        let Changed { mut touched, removed } = std::mem::take(&mut *changed);
        for id in &touched {
            let Some(object) = objects.get(*id) else { continue };
            let mut object = object.write();
            let listed = is_listed(&facts, *id);
            // What was in no record, or in the last one's list, is cut by a recovery that does not
            // find this record.
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

    /// Lists cuts and journaled pages of the objects that were touched. Gives those that may be
    /// appended to in place from now on, with their pages, and those that must be durable before
    /// the record is: none if what was written in place was `copied` to the journal.
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

    /// Objects of the last list that are not in this one go to the journal again. Gives them.
    fn forget_appendable(&self, history: &History, facts: &Facts) -> Vec<u64> {
        let last = history.facts.appendable.iter().map(|(id, _)| *id);
        let dropped: Vec<u64> = last.filter(|id| !is_listed(facts, *id)).collect();
        for object in dropped.iter().filter_map(|id| self.parts.objects.get(*id)) {
            object.write().appendable = None;
        }
        dropped
    }

    /// What is true after the commit that is noted.
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

    /// Steps 1 to 3: makes the commit durable. Gives it. What the host refused to take may be tried
    /// again.
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

    /// Step 4: the files of removed objects go, at once or by the thread, and what is known of idle
    /// objects is forgotten.
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
