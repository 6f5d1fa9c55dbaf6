//! One writer at a time: an exclusive lock on an object, and a watch that proves that its holder is
//! alive.
//!
//! A client that finds the lock held sends a notification to the holder. A live holder answers, and
//! keeps the lock unless the client steals it; a holder that does not answer is dead. In both
//! cases, before the lock is taken from its holder, the holder's connection is put on the cluster's
//! blocklist, so its operations in flight cannot arrive later.
//!
//! Connections of one series take the lock over from each other without a notification
//! (`series.rs`).

use super::cluster_options::c_string;
use super::epoch::Epoch;
use super::error::{RadosCode, had_by_another};
use super::ffi::{IoContext, Locker, ObjectWatch, WriteOp};
use super::pool::RadosPool;
use super::series::WriterSeries;
use lacuna_contracts::{Error, Hint, Kind, Result, Setting};
use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The name of the lock on its object.
const LOCK: &CStr = c"lacuna.writer";
/// The milliseconds within which the holder must answer before it counts as dead.
const ANSWER_MS: u64 = 5000;
/// Seconds for which the cluster keeps the watch of an unreachable client.
const WATCH_SECONDS: u32 = 30;
const DAY: u32 = 24 * 3600;
/// Seconds of the blocklist entry of a live client: twenty years.
const STOLEN_SECONDS: u32 = 20 * 365 * DAY;
/// Seconds of the blocklist entry of a client that did not answer. Nearly all of these never
/// return, and the cluster keeps a list of them. A client that resumes after a longer pause finds
/// that it has lost the lock; `epoch.rs` explains how its operations in flight are refused.
const DEAD_SECONDS: u32 = 30 * DAY;
/// Attempts to take a lock that keeps changing hands.
const TRIES: u32 = 8;
/// The pause between attempts to renew a lost watch.
const RENEW_PAUSE: Duration = Duration::from_secs(1);
/// The time to wait for the release of the lock. After that, the lock may stay until a takeover.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// Distinguishes the locks of one connection.
static NEXT_COOKIE: AtomicU64 = AtomicU64::new(0);

/// The locked object, and the identity of the holder.
struct LockClaim {
    pool: Arc<RadosPool>,
    context: Arc<IoContext>,
    object: CString,
    cookie: CString,
    series: Option<WriterSeries>,
}

/// An event for the thread that keeps the watch.
enum LockEvent {
    Lost,
    Stop,
    /// Stop, and keep the lock.
    Abandon,
    /// Remove lock and object, and send the result.
    Remove(Sender<Result<()>>),
}

/// The right to write, until this is dropped. It never expires, but another client may take it
/// over; then all operations of this connection fail with [`Kind::Fenced`]. They also do if the
/// locked object is removed, and its lock with it.
pub struct WriterLock {
    evicted_client: Option<String>,
    events: Sender<LockEvent>,
    ended: Receiver<()>,
    watch_thread: Option<JoinHandle<()>>,
}

impl RadosPool {
    /// Takes the lock on `object`, which is created if absent. Takes the lock over from a holder
    /// that does not answer, and excludes its connection from the cluster. With `steal`, a live
    /// holder on another connection loses the lock too.
    ///
    /// Errors: [`Kind::Busy`] if another client holds it; [`Kind::Permission`] if the key permits
    /// no locking or no blocklisting.
    pub fn lock_writer(self: &Arc<Self>, object: &str, steal: bool) -> Result<WriterLock> {
        self.lock_writer_in_series(object, steal, None)
    }

    /// The same, as the next connection of a series. A holder of the same series counts as dead:
    /// the caller ensures that its process has ended.
    ///
    /// Errors: also [`Kind::Fenced`], each time, if the series continues and another client has, or
    /// has had, the lock since.
    pub fn lock_writer_in_series(
        self: &Arc<Self>,
        object: &str,
        steal: bool,
        series: Option<WriterSeries>,
    ) -> Result<WriterLock> {
        let number = NEXT_COOKIE.fetch_add(1, Ordering::Relaxed);
        let cookie = series.map_or_else(|| number.to_string(), |series| series.cookie(number));
        let claim = LockClaim {
            pool: self.clone(),
            context: Arc::new(self.context()?),
            object: c_string(object, "the object to lock")?,
            cookie: c_string(&cookie, "the cookie")?,
            series,
        };
        let (events, inbox) = channel();
        // The watch comes first: a holder must be able to answer at any time.
        let watch = claim.first_watch(&events)?;
        let taken_from = claim.acquire(steal)?;
        match claim.next_epoch() {
            Ok(epoch) => claim.pool.set_epoch(epoch),
            Err(e) => {
                claim.release();
                return Err(e);
            }
        }
        claim.spawn_watch_thread(watch, events, inbox, taken_from)
    }
}

impl LockClaim {
    fn what(&self) -> String {
        format!("cannot lock object `{}` of pool `{}`", self.object.to_string_lossy(), self.pool.name())
    }

    fn failed(&self, code: RadosCode) -> Error {
        self.pool.failed(code, self.what())
    }

    fn make_object(&self) -> Result<()> {
        let mut op = WriteOp::new()?;
        op.create(false);
        let made = self.context.write_all(std::iter::once(Ok((self.object.clone(), op)))).remove(0)?;
        made.map(drop).map_err(|code| self.failed(code))
    }

    fn first_watch(&self, events: &Sender<LockEvent>) -> Result<ObjectWatch> {
        let mut tries = 0..TRIES;
        loop {
            self.make_object()?;
            match self.watch(events) {
                // Another client removed it meanwhile.
                Err(RadosCode::NO_ENTRY) if tries.next().is_some() => {}
                watch => return watch.map_err(|code| self.failed(code)),
            }
        }
    }

    fn watch(&self, events: &Sender<LockEvent>) -> std::result::Result<ObjectWatch, RadosCode> {
        let events = events.clone();
        // The keeper thread ends only when there is nothing left to keep.
        let lost = Box::new(move |_| drop(events.send(LockEvent::Lost)));
        ObjectWatch::new(&self.context, &self.object, WATCH_SECONDS, lost)
    }

    /// Takes the lock. Returns the client that was excluded for it, if any.
    fn acquire(&self, steal: bool) -> Result<Option<String>> {
        let mut taken_from = None;
        let about = format!("lacuna, process {}", std::process::id());
        let about = c_string(&about, "the description of the lock")?;
        for _ in 0..TRIES {
            match self.context.lock(&self.object, LOCK, &self.cookie, &about) {
                Ok(()) => return Ok(taken_from),
                Err(RadosCode::BUSY) => {}
                Err(code) => return Err(self.failed(code)),
            }
            let lockers = self.lockers()?;
            // `None`: the holder gave the lock back just now.
            let Some(holder) = lockers.first() else { continue };
            if holder.instance() == Some(self.pool.cluster().instance()) {
                return Err(Error::new(Kind::Busy, self.what())
                    .found("this very process holds it")
                    .hint("close it there first"));
            }
            if !steal && !self.is_predecessor(holder) {
                if self.is_alive(holder)? {
                    // It has the lock, so that this series is refused when it has given it back.
                    let continues = self.series.is_some_and(|series| series.continues);
                    return Err(if continues { had_by_another(self.what()) } else { self.busy(holder) });
                }
                if self.lockers()?.first() != Some(holder) {
                    // The holder is alive: it gave the lock back, and then stopped answering.
                    continue;
                }
            }
            self.take_over(holder, if steal { STOLEN_SECONDS } else { DEAD_SECONDS })?;
            taken_from = Some(describe(holder));
        }
        Err(Error::new(Kind::Busy, self.what()).found("its holder keeps changing").hint("try again"))
    }

    /// Begins an epoch later than those of all former holders. Requires the lock.
    fn next_epoch(&self) -> Result<Epoch> {
        let attribute = |name| self.context.attribute(&self.object, name).map_err(|code| self.failed(code));
        let stands = attribute(Epoch::NAME)?;
        if let Some(series) = self.series.filter(|series| series.continues)
            && !series.was_last(&stands, &attribute(WriterSeries::NAME)?)
        {
            // Nothing is stored, so a later attempt fails too.
            return Err(had_by_another(self.what()));
        }
        let epoch = Epoch::after(&stands);
        let mut op = WriteOp::new()?;
        epoch.stamp(&mut op);
        self.series.iter().for_each(|series| series.stamp(epoch, &mut op));
        let stamped = self.context.write_all(std::iter::once(Ok((self.object.clone(), op)))).remove(0)?;
        stamped.map(|_| epoch).map_err(|code| self.failed(code))
    }

    fn lockers(&self) -> Result<Vec<Locker>> {
        self.context.lockers(&self.object, LOCK).map_err(|code| self.failed(code))
    }

    /// Whether the holder is an earlier connection of the same series.
    fn is_predecessor(&self, holder: &Locker) -> bool {
        self.series.is_some_and(|series| series.has_cookie(&holder.cookie))
    }

    fn is_alive(&self, holder: &Locker) -> Result<bool> {
        let Some(instance) = holder.instance() else { return Ok(true) };
        let answered = self.context.notify(&self.object, ANSWER_MS).map_err(|code| self.failed(code))?;
        Ok(answered.contains(&instance))
    }

    fn busy(&self, holder: &Locker) -> Error {
        let advice = Hint::from("close it there first, or take it over with ").setting(Setting("steal"));
        Error::new(Kind::Busy, self.what())
            .found(format!("{} holds it and is alive", describe(holder)))
            .hint(advice.text(", which shuts the other client out"))
    }

    /// Excludes the holder from the cluster for `seconds`, and then takes the lock from it.
    fn take_over(&self, holder: &Locker, seconds: u32) -> Result<()> {
        self.pool.cluster().blocklist(&holder.address, seconds).map_err(|code| {
            let address = holder.address.to_string_lossy();
            let what = format!("{}: cannot shut out its holder at {address}", self.what());
            let error = self.pool.failed(code, what);
            if code.is_refusal() {
                return error
                    .hint("the key needs the right to (`mon 'profile rbd'`); or ask an administrator of the cluster");
            }
            error
        })?;
        match self.context.break_lock(&self.object, LOCK, holder) {
            // The holder gave it back, or another client took it, meanwhile.
            Ok(()) | Err(RadosCode::NO_ENTRY) => Ok(()),
            Err(code) => Err(self.failed(code)),
        }
    }

    fn is_ours(&self) -> std::result::Result<bool, RadosCode> {
        let lockers = self.context.lockers(&self.object, LOCK)?;
        let instance = self.pool.cluster().instance();
        Ok(lockers.iter().any(|holder| holder.instance() == Some(instance) && holder.cookie == self.cookie))
    }

    fn release(&self) {
        if self.pool.is_in_doubt() {
            // Operations that timed out may still arrive. So keep the lock: the next client
            // excludes this connection before it takes over.
            return;
        }
        // If the release fails, the next client takes the lock over as from a dead holder.
        let _left_to_the_cluster = self.context.unlock(&self.object, LOCK, &self.cookie);
    }

    /// Removes the object, and the lock with it. Does nothing if this client has lost the lock.
    fn remove(&self) -> Result<()> {
        if !self.is_ours().map_err(|code| self.failed(code))? {
            return Ok(());
        }
        let mut op = WriteOp::new()?;
        op.remove();
        match self.context.write_all(std::iter::once(Ok((self.object.clone(), op)))).remove(0)? {
            Ok(_) | Err(RadosCode::NO_ENTRY) => Ok(()),
            Err(code) => Err(self.failed(code)),
        }
    }

    /// Starts the thread that keeps the watch and finally releases the lock.
    fn spawn_watch_thread(
        self,
        watch: ObjectWatch,
        events: Sender<LockEvent>,
        inbox: Receiver<LockEvent>,
        taken_from: Option<String>,
    ) -> Result<WriterLock> {
        let (ending, ended) = channel();
        let renewing = events.clone();
        let what = self.what();
        let keeper = std::thread::Builder::new().name("lacuna-lock".to_owned()).spawn(move || {
            run_watch(&self, watch, &renewing, &inbox);
            // Dropped before `ending`, so that the connection is unused when the caller learns that
            // the lock is gone.
            drop(self);
            drop(ending);
        });
        let keeper = keeper.map_err(|e| Error::io(what, &e))?;
        Ok(WriterLock { evicted_client: taken_from, events, ended, watch_thread: Some(keeper) })
    }
}

/// Renews the watch whenever it is lost, until told to stop, or until this client has lost the
/// lock.
fn run_watch(claim: &LockClaim, watch: ObjectWatch, events: &Sender<LockEvent>, inbox: &Receiver<LockEvent>) {
    let mut watch = Some(watch);
    let mut event = inbox.recv();
    while let Ok(LockEvent::Lost) = event {
        drop(watch.take());
        event = match renew_watch(claim, events, inbox) {
            WatchRenewal::Renewed(again) => {
                watch = Some(again);
                inbox.recv()
            }
            WatchRenewal::Interrupted(event) => Ok(event),
            WatchRenewal::LockLost => break,
        };
    }
    match event {
        Ok(LockEvent::Remove(answer)) => {
            let _nobody_waits_any_more = answer.send(claim.remove());
        }
        Ok(LockEvent::Stop) | Err(_) => {}
        // The lock stays for a takeover, or another client already holds it.
        Ok(LockEvent::Abandon | LockEvent::Lost) => return,
    }
    // The watch ends last: the holder of the lock must answer.
    claim.release();
}

/// The outcome of renewing a lost watch.
enum WatchRenewal {
    Renewed(ObjectWatch),
    /// This event makes it unnecessary.
    Interrupted(LockEvent),
    /// Another client holds the lock.
    LockLost,
}

/// Tries to renew the watch until that succeeds or becomes pointless.
fn renew_watch(claim: &LockClaim, events: &Sender<LockEvent>, inbox: &Receiver<LockEvent>) -> WatchRenewal {
    loop {
        // The watch comes before the check: no client takes the lock from a holder that answers.
        match claim.watch(events).and_then(|watch| Ok((watch, claim.is_ours()?))) {
            Ok((watch, true)) => return WatchRenewal::Renewed(watch),
            // If the object was removed, the lock is lost too.
            Ok((_, false)) | Err(RadosCode::FENCED | RadosCode::NO_ENTRY) => {
                claim.pool.fence();
                return WatchRenewal::LockLost;
            }
            Err(_) => {}
        }
        match inbox.recv_timeout(RENEW_PAUSE) {
            Ok(LockEvent::Lost) | Err(RecvTimeoutError::Timeout) => {}
            Ok(event) => return WatchRenewal::Interrupted(event),
            Err(RecvTimeoutError::Disconnected) => return WatchRenewal::Interrupted(LockEvent::Stop),
        }
    }
}

/// The client that holds a lock, for messages.
fn describe(holder: &Locker) -> String {
    format!("{} at {}", holder.client.to_string_lossy(), holder.address.to_string_lossy())
}

impl WriterLock {
    /// The client that was excluded for this lock, if any: its name and address.
    pub fn evicted_client(&self) -> Option<&str> {
        self.evicted_client.as_deref()
    }

    /// Removes the locked object, and the lock with it, while this client still holds the lock.
    pub fn remove(self) -> Result<()> {
        let (answer, answered) = channel();
        if self.events.send(LockEvent::Remove(answer)).is_err() {
            // The lock was lost, so there is nothing to remove.
            return Ok(());
        }
        answered.recv().unwrap_or(Ok(()))
    }

    /// Keeps the lock and stops answering: the next client takes it over as from a dead holder, and
    /// the cluster then refuses all operations of this client that are still in flight.
    pub fn abandon(mut self) {
        self.end(LockEvent::Abandon);
    }

    /// Ends the thread and waits for it: the process must not exit while the thread is in librados.
    fn end(&mut self, event: LockEvent) {
        let Some(keeper) = self.watch_thread.take() else { return };
        let _ended_already = self.events.send(event);
        // If the cluster does not answer, the thread keeps waiting, but the caller returns: see
        // `exit_at_once`.
        if self.ended.recv_timeout(RELEASE_TIMEOUT) == Err(RecvTimeoutError::Disconnected) {
            let _panicked = keeper.join();
        }
    }
}

impl Drop for WriterLock {
    fn drop(&mut self) {
        self.end(LockEvent::Stop);
    }
}
