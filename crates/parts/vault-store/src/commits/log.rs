//! The commit log: makes changes durable as a whole, and advances the anchor.
//!
//! The order of the steps is the argument for security and for crashes: (1) sync pages written in
//! place, (2) write the record, which holds the new state and the sealed intent to advance, (3)
//! advance the anchor, (4) only then remove data that only the old state refers to.
//!
//! If the host refuses the record (it is full, or has a quota), only this commit fails: its notes
//! are kept, and the next commit first writes the same bytes to the same place. No note is undone,
//! so no two texts are sealed for one commit.

use crate::anchor::{AnchorState, MachineAnchor};
use crate::commits::codec::{
    self, Commit, CommitState, MACHINES, MOST_PAGES, ObjectPages, ROOT_MAX, RecordChanges, record_to_bytes,
};
use crate::commits::record::RecordLog;
use crate::health::StoreHealth;
use crate::ids::CommitInfo;
use crate::journal::size::JournalPlace;
use crate::objects::change_collector::{BegunCheckpoint, ChangeCollector, CommitRequest};
use crate::objects::reclaimer::Reclaimer;
use crate::opening::session::CurrentSession;
use crate::options::CommitClock;
use lacuna_contracts::{Error, Kind, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Object numbers that may be given before the first commits; bursts get more.
const NUMBERS: std::ops::RangeInclusive<u64> = 1024..=16384;

/// The objects that a checkpoint writes back, and the content of its superblock; the result of a
/// commit with a root.
pub(crate) struct PendingCheckpoint {
    pub(crate) objects: Vec<u64>,
    /// The journal file that holds them.
    pub(crate) journal_file: u8,
    /// The commit that began the checkpoint.
    pub(crate) commit: Commit,
    pub(crate) state: CommitState,
    pub(crate) root: Option<Vec<u8>>,
}

/// The state of the commit history.
pub(crate) struct CommitHistory {
    /// The last durable commit, and the state after it.
    last: Commit,
    state: CommitState,
    /// The anchored state.
    anchor: Option<AnchorState>,
    /// A commit that was noted and is not durable, because the host refused its record. The next
    /// commit makes it durable first.
    pending: Option<PendingCommit>,
}

impl CommitHistory {
    /// The history up to a durable commit.
    pub(crate) fn new(last: Commit, facts: CommitState, anchor: Option<AnchorState>) -> CommitHistory {
        CommitHistory { last, state: facts, anchor, pending: None }
    }
}

/// The author of commits: this machine, its session and its clock.
pub(crate) struct CommitAuthor {
    /// This machine's random number for this vault.
    pub(crate) machine: [u8; 16],
    pub(crate) session: CurrentSession,
    pub(crate) clock: CommitClock,
}

/// A noted commit: later changes belong to the next one.
struct PendingCommit {
    noted: NotedCommit,
    /// With a root: the checkpoint that begins, and the root.
    switched: Option<(BegunCheckpoint, Vec<u8>)>,
}

/// The content of a commit, noted while no object could change.
struct NotedCommit {
    number: u64,
    state: CommitState,
    /// The text of the record, and its place.
    plain: Vec<u8>,
    place: JournalPlace,
    /// The record and its digest after the first try: the next try writes the same bytes, even in
    /// another session.
    sealed: Option<(Vec<u8>, [u8; 32])>,
    /// Objects that must be durable before the record.
    must_sync: Vec<u64>,
    /// Objects that changed, and objects that are no longer appendable: their entries can be
    /// dropped once the commit is durable, if they are idle.
    touched: Vec<u64>,
    removed: Vec<u64>,
}

/// The log of an open store.
pub(crate) struct CommitLog {
    collector: ChangeCollector,
    records: RecordLog,
    anchor: MachineAnchor,
    author: CommitAuthor,
    reclaimer: Arc<Reclaimer>,
    health: Arc<StoreHealth>,
    /// Locked by one commit at a time.
    history: Mutex<CommitHistory>,
    /// Whether a commit with a root was noted and is not durable.
    has_pending_root: AtomicBool,
}

impl CommitLog {
    /// A log that continues this history.
    pub(crate) fn new(
        collector: ChangeCollector,
        records: RecordLog,
        anchor: MachineAnchor,
        author: CommitAuthor,
        reclaimer: Arc<Reclaimer>,
        health: Arc<StoreHealth>,
        history: CommitHistory,
    ) -> CommitLog {
        let (history, owes_root) = (Mutex::new(history), AtomicBool::new(false));
        CommitLog {
            collector,
            records,
            anchor,
            author,
            reclaimer,
            health,
            history,
            has_pending_root: owes_root,
        }
    }

    /// The number of the current session.
    pub(crate) fn session(&self) -> u64 {
        self.author.session.number()
    }

    /// The last durable commit.
    pub(crate) fn last(&self) -> CommitInfo {
        let history = self.history.lock();
        CommitInfo { number: history.last.number, time: history.state.time }
    }

    /// The state after the last durable commit.
    pub(crate) fn state(&self) -> CommitState {
        self.history.lock().state.clone()
    }

    /// Whether a commit with a root was noted and is not durable: [`CommitLog::resume`] makes it
    /// durable.
    pub(crate) fn has_pending_root(&self) -> bool {
        self.has_pending_root.load(Ordering::Acquire)
    }

    /// See [`crate::Store::unreachable_batches`].
    pub(crate) fn unreachable_batches(&self) -> Result<Vec<(u64, Vec<u8>)>> {
        let (last, known) = {
            let history = self.history.lock();
            (history.last.number, history.anchor.as_ref().map_or(u64::MAX, |known| known.number))
        };
        let mut batches = Vec::new();
        for area in 0..2 {
            let found = self.records.find_unreachable(area, last)?;
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
        let CommitHistory { last, state: facts, anchor, .. } = &mut *history;
        *anchor = Some(self.anchor.advance(anchor.as_ref(), last, facts.time)?);
        Ok(())
    }

    /// See [`ChangeCollector::space_needed`].
    pub(crate) fn space_needed(&self, pages: u64, puts: u64) -> (u64, u64) {
        self.collector.space_needed(pages, puts)
    }

    /// Commits. With a root, returns the data of the checkpoint that begins; the previous
    /// checkpoint is finished then. `noted` is called as soon as changes belong to the next commit.
    pub(crate) fn commit(
        &self,
        asked: &CommitRequest<'_>,
        noted: &mut dyn FnMut(),
    ) -> Result<Option<PendingCheckpoint>> {
        let health = &self.health;
        health.check_writable()?;
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
            return Err(Error::new(Kind::NoSpace, "an earlier commit waits for space"));
        }
        self.complete(&mut history)?;
        history.pending = self.note(&history, asked).map_err(|e| health.note_failure(e))?;
        noted();
        self.complete(&mut history)
    }

    /// Makes a commit durable that was noted and refused. With a root, returns the data of the
    /// checkpoint that begins.
    pub(crate) fn resume(&self) -> Result<Option<PendingCheckpoint>> {
        self.health.check()?;
        let _cut_short = self.health.end_on_panic();
        self.complete(&mut self.history.lock())
    }

    /// Makes the noted commit durable. If the host refuses, it stays noted.
    fn complete(&self, history: &mut CommitHistory) -> Result<Option<PendingCheckpoint>> {
        let health = &self.health;
        let Some(mut pending) = history.pending.take() else { return Ok(None) };
        self.has_pending_root.store(pending.switched.is_some(), Ordering::Release);
        let last = match self.publish(history, &mut pending.noted) {
            Err(e) if e.changed_nothing() => {
                history.pending = Some(pending);
                return Err(health.note_failure(e));
            }
            done => done.map_err(|e| health.fail_stop(e))?,
        };
        self.has_pending_root.store(false, Ordering::Release);
        let PendingCommit { noted, switched } = pending;
        // Before another commit can begin a checkpoint: no recovery after that would look for these
        // files.
        self.reclaimer.add(&noted.removed);
        match self.release(&noted) {
            // The files of removed objects remain until the next commit.
            Err(e) if e.changed_nothing() => {}
            done => done.map_err(|e| health.fail_stop(e))?,
        }
        let NotedCommit { state: facts, .. } = noted;
        Ok(switched.map(|(begun, root)| PendingCheckpoint {
            objects: begun.objects,
            journal_file: begun.journal_file,
            commit: last,
            state: facts,
            root: Some(root),
        }))
    }

    /// Notes the content of the commit. No object changes until it returns; later changes belong to
    /// the next commit.
    fn note(&self, history: &CommitHistory, asked: &CommitRequest<'_>) -> Result<Option<PendingCommit>> {
        let Some(mut collected) = self.collector.collect(asked)? else { return Ok(None) };
        let facts = self.next_state(history, std::mem::take(&mut collected.appendable));
        check_readable(collected.number, &facts, &collected.changes)?;
        let plain = record_to_bytes(&facts, &collected.changes);
        // If the host may refuse space that it seems to have, probe while nothing is noted: a
        // removal now may still free space, and files that no commit refers to can go without
        // another commit.
        let probes = self.health.has_refusal() || asked.root.is_some();
        let place = self.records.take(plain.len(), probes)?;
        // Nothing below can fail.
        let (number, placed) = (collected.number, std::mem::take(&mut collected.must_sync));
        let recorded = collected.record(&facts, &history.state.appendable);
        let (touched, removed) = (recorded.touched, recorded.removed);
        let noted = NotedCommit {
            number,
            state: facts,
            plain,
            place,
            sealed: None,
            must_sync: placed,
            touched,
            removed,
        };
        let switched = recorded.checkpoint.zip(asked.root.map(<[u8]>::to_vec));
        Ok(Some(PendingCommit { noted, switched }))
    }

    /// The state after the commit that is being noted.
    fn next_state(&self, history: &CommitHistory, appendable: Vec<ObjectPages>) -> CommitState {
        let (next_object, made) = self.collector.next_numbers();
        let reserve = (8 * made).clamp(*NUMBERS.start(), *NUMBERS.end());
        let mut table: Vec<Commit> = history.state.table.clone();
        table.retain(|commit| commit.machine != history.last.machine);
        table.push(history.last.clone());
        table.retain(|commit| commit.machine != self.author.machine);
        if table.len() > MACHINES {
            table.sort_by_key(|commit| commit.number);
            table.remove(0);
        }
        CommitState {
            machine: self.author.machine,
            time: (self.author.clock)(),
            next_object,
            object_limit: next_object + reserve,
            table,
            appendable,
        }
    }

    /// Steps 1 to 3: makes the commit durable and returns it. After a refusal of the host it may be
    /// tried again.
    fn publish(&self, history: &mut CommitHistory, noted: &mut NotedCommit) -> Result<Commit> {
        self.collector.sync(&noted.must_sync)?;
        let sealed = if let Some(sealed) = noted.sealed.take() {
            sealed
        } else {
            let (number, before) = (noted.number, &history.last.digest);
            self.records.seal(self.session(), noted.place, number, before, &noted.plain)?
        };
        let (bytes, digest) = &*noted.sealed.insert(sealed);
        let digest = *digest;
        self.records.write(noted.place, bytes)?;
        let machine = self.author.machine;
        let last = Commit { machine, number: noted.number, digest, previous_digest: history.last.digest };
        let anchored = self.anchor.advance(history.anchor.as_ref(), &last, noted.state.time)?;
        history.anchor = Some(anchored);
        history.last = last.clone();
        history.state = noted.state.clone();
        self.collector.note_durable(noted.number, noted.state.object_limit);
        Ok(last)
    }

    /// Step 4: removes the files of removed objects, unless the thread does, and drops the entries
    /// of idle objects.
    fn release(&self, noted: &NotedCommit) -> Result<()> {
        self.reclaimer.after_commit()?;
        self.reclaimer.drop_idle(&noted.touched);
        Ok(())
    }
}

/// Refuses a commit that no opening could read.
fn check_readable(number: u64, facts: &CommitState, changes: &RecordChanges) -> Result<()> {
    if codec::is_readable(number, facts, changes) {
        return Ok(());
    }
    Err(Error::new(Kind::Other, "cannot make a commit that no opening could read")
        .found(format!("commit {number}, objects up to {}", facts.object_limit))
        .expected(format!("at most {}, and objects of less than {MOST_PAGES} pages", codec::MOST_NUMBER)))
}
