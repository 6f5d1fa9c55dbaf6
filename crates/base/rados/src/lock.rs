//! One writer at a time: an exclusive lock on an object, and a watch by which its holder shows that
//! it lives.
//!
//! A client that finds the lock held asks the holder by a notification. One that lives answers, and
//! is left alone unless the lock is to be stolen; one that does not answer is dead. Either way,
//! before the lock changes hands against the holder's will, the cluster is told to answer its
//! connection no more: what it may still have under way can never arrive later.

use super::epoch::Epoch;
use super::error::Code;
use super::ffi::{IoContext, Locker, Watch, WriteOp};
use super::pool::RadosPool;
use super::settings::c_string;
use lacuna_contracts::{Advice, Error, Kind, Result, Setting};
use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The name of the lock on its object.
const LOCK: &CStr = c"lacuna.writer";
/// How long the holder may take to answer before it counts as dead.
const ANSWER_MS: u64 = 5000;
/// Seconds for which the cluster keeps a watch whose client cannot be reached.
const WATCH_SECONDS: u32 = 30;
const DAY: u32 = 24 * 3600;
/// Seconds for which a client that lived when it was shut out stays so: twenty years.
const STOLEN_SECONDS: u32 = 20 * 365 * DAY;
/// The same of one that did not answer. Nearly all of these are gone for good, and the cluster
/// keeps a list of them. One whose machine goes on after a longer pause than this finds that the
/// lock is another's; see `epoch.rs` for what becomes of what it still has under way.
const DEAD_SECONDS: u32 = 30 * DAY;
/// How often the lock is tried again while it changes hands under us.
const TRIES: u32 = 8;
/// How long a lost watch waits between tries to renew it.
const RENEW_PAUSE: Duration = Duration::from_secs(1);
/// How long giving the lock back may take before it is left to the cluster.
const FAREWELL: Duration = Duration::from_secs(10);

/// Tells the locks of one connection apart.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// What is locked, and as whom.
struct Claim {
    pool: Arc<RadosPool>,
    context: Arc<IoContext>,
    object: CString,
    cookie: CString,
}

/// What the thread that keeps a watch is told.
enum Event {
    Lost,
    Stop,
    /// Stop, and keep the lock.
    Abandon,
    /// Leave nothing of the lock, and say how that went.
    Remove(Sender<Result<()>>),
}

/// The right to write, which ends when this is dropped. It never expires by itself; but another
/// client may take it over, and then everything through this connection fails with
/// [`Kind::Fenced`]. So it does if the locked object is removed, and the lock with it.
pub struct WriterLock {
    taken_from: Option<String>,
    events: Sender<Event>,
    ended: Receiver<()>,
    keeper: Option<JoinHandle<()>>,
}

impl RadosPool {
    /// Takes the lock on `object`, which is made if it is not there. From a holder that does not
    /// answer any more it is taken over, and the holder's connection shut out of the cluster; with
    /// `steal`, from any other connection.
    ///
    /// Errors: [`Kind::Busy`] if another holds it; [`Kind::Permission`] if the key allows no lock,
    /// or no shutting out.
    pub fn lock_writer(self: &Arc<Self>, object: &str, steal: bool) -> Result<WriterLock> {
        let claim = Claim {
            pool: self.clone(),
            context: Arc::new(self.context()?),
            object: c_string(object, "the object to lock")?,
            cookie: c_string(&format!("{}", TAKEN.fetch_add(1, Ordering::Relaxed)), "the cookie")?,
        };
        let (events, inbox) = channel();
        // Watching comes first: a holder must be able to answer from the first moment on.
        let watch = claim.first_watch(&events)?;
        let taken_from = claim.take(steal)?;
        match claim.next_epoch() {
            Ok(epoch) => claim.pool.enter(epoch),
            Err(e) => {
                claim.give_back();
                return Err(e);
            }
        }
        claim.keep(watch, events, inbox, taken_from)
    }
}

impl Claim {
    fn what(&self) -> String {
        format!("cannot lock object `{}` of pool `{}`", self.object.to_string_lossy(), self.pool.name())
    }

    fn failed(&self, code: Code) -> Error {
        self.pool.failed(code, self.what())
    }

    fn make_object(&self) -> Result<()> {
        let mut op = WriteOp::new()?;
        op.create(false);
        let made = self.context.write_all(std::iter::once(Ok((self.object.clone(), op)))).remove(0)?;
        made.map(drop).map_err(|code| self.failed(code))
    }

    fn first_watch(&self, events: &Sender<Event>) -> Result<Watch> {
        let mut tries = 0..TRIES;
        loop {
            self.make_object()?;
            match self.watch(events) {
                // It was removed again meanwhile.
                Err(Code::NO_ENTRY) if tries.next().is_some() => {}
                watch => return watch.map_err(|code| self.failed(code)),
            }
        }
    }

    fn watch(&self, events: &Sender<Event>) -> std::result::Result<Watch, Code> {
        let events = events.clone();
        // The keeper is gone only when there is nothing to keep any more.
        let lost = Box::new(move |_| drop(events.send(Event::Lost)));
        Watch::new(&self.context, &self.object, WATCH_SECONDS, lost)
    }

    /// Takes the lock. Says which client was shut out for it, if one was.
    fn take(&self, steal: bool) -> Result<Option<String>> {
        let mut taken_from = None;
        let about = format!("lacuna, process {}", std::process::id());
        let about = c_string(&about, "the description of the lock")?;
        for _ in 0..TRIES {
            match self.context.lock(&self.object, LOCK, &self.cookie, &about) {
                Ok(()) => return Ok(taken_from),
                Err(Code::BUSY) => {}
                Err(code) => return Err(self.failed(code)),
            }
            let lockers = self.lockers()?;
            // None: it was given back just now.
            let Some(holder) = lockers.first() else { continue };
            if holder.instance() == Some(self.pool.cluster().instance()) {
                return Err(Error::new(Kind::Busy, self.what())
                    .found("this very process holds it")
                    .remedy("close it there first"));
            }
            if !steal {
                if self.lives(holder)? {
                    return Err(self.busy(holder));
                }
                if self.lockers()?.first() != Some(holder) {
                    // It did not die: it gave the lock back, and only then stopped answering for
                    // it.
                    continue;
                }
            }
            self.take_from(holder, if steal { STOLEN_SECONDS } else { DEAD_SECONDS })?;
            taken_from = Some(words(holder));
        }
        Err(Error::new(Kind::Busy, self.what()).found("it keeps changing hands").remedy("try again"))
    }

    /// Begins an epoch that is later than those of all who held the lock before. Only its holder
    /// may.
    fn next_epoch(&self) -> Result<Epoch> {
        let stands = self.context.attribute(&self.object, Epoch::NAME).map_err(|code| self.failed(code))?;
        let epoch = Epoch::after(&stands);
        let mut op = WriteOp::new()?;
        epoch.stamp(&mut op);
        let stamped = self.context.write_all(std::iter::once(Ok((self.object.clone(), op)))).remove(0)?;
        stamped.map(|_| epoch).map_err(|code| self.failed(code))
    }

    fn lockers(&self) -> Result<Vec<Locker>> {
        self.context.lockers(&self.object, LOCK).map_err(|code| self.failed(code))
    }

    fn lives(&self, holder: &Locker) -> Result<bool> {
        let Some(instance) = holder.instance() else { return Ok(true) };
        let answered = self.context.notify(&self.object, ANSWER_MS).map_err(|code| self.failed(code))?;
        Ok(answered.contains(&instance))
    }

    fn busy(&self, holder: &Locker) -> Error {
        let advice = Advice::from("close it there first, or take it over with ").setting(Setting("steal"));
        Error::new(Kind::Busy, self.what())
            .found(format!("{} holds it, and lives", words(holder)))
            .remedy(advice.text(", which shuts the other client out"))
    }

    /// Shuts the holder out of the cluster for so many seconds, and only then takes the lock from
    /// it.
    fn take_from(&self, holder: &Locker, seconds: u32) -> Result<()> {
        self.pool.cluster().blocklist(&holder.address, seconds).map_err(|code| {
            let address = holder.address.to_string_lossy();
            let what = format!("{}: cannot shut out its holder at {address}", self.what());
            let error = self.pool.failed(code, what);
            if code.is_refusal() {
                return error
                    .remedy("the key needs the right to (`mon 'profile rbd'`); or ask the one who has it");
            }
            error
        })?;
        match self.context.break_lock(&self.object, LOCK, holder) {
            // It was given back, or taken by somebody else, meanwhile.
            Ok(()) | Err(Code::NO_ENTRY) => Ok(()),
            Err(code) => Err(self.failed(code)),
        }
    }

    fn is_ours(&self) -> std::result::Result<bool, Code> {
        let lockers = self.context.lockers(&self.object, LOCK)?;
        let instance = self.pool.cluster().instance();
        Ok(lockers.iter().any(|holder| holder.instance() == Some(instance) && holder.cookie == self.cookie))
    }

    fn give_back(&self) {
        if self.pool.is_in_doubt() {
            // What was given up may arrive late. A client that takes over from the dead has us shut
            // out first.
            return;
        }
        // A lock that cannot be given back is taken over from us later, as from the dead.
        let _left_to_the_cluster = self.context.unlock(&self.object, LOCK, &self.cookie);
    }

    /// Removes the object, and the lock with it. Only its holder may: nobody else's lock is on the
    /// object then.
    fn remove(&self) -> Result<()> {
        if !self.is_ours().map_err(|code| self.failed(code))? {
            return Ok(());
        }
        let mut op = WriteOp::new()?;
        op.remove();
        match self.context.write_all(std::iter::once(Ok((self.object.clone(), op)))).remove(0)? {
            Ok(_) | Err(Code::NO_ENTRY) => Ok(()),
            Err(code) => Err(self.failed(code)),
        }
    }

    /// Starts the thread that keeps the watch and in the end gives the lock back.
    fn keep(
        self,
        watch: Watch,
        events: Sender<Event>,
        inbox: Receiver<Event>,
        taken_from: Option<String>,
    ) -> Result<WriterLock> {
        let (ending, ended) = channel();
        let renewing = events.clone();
        let what = self.what();
        let keeper = std::thread::Builder::new().name("lacuna-lock".to_owned()).spawn(move || {
            keep_watching(&self, watch, &renewing, &inbox);
            // Taken back before the answer, so that the connection is not used once the lock is
            // said to be gone.
            drop(self);
            drop(ending);
        });
        let keeper = keeper.map_err(|e| Error::io(what, &e))?;
        Ok(WriterLock { taken_from, events, ended, keeper: Some(keeper) })
    }
}

/// Renews the watch whenever it is lost, until told to stop, or until the lock turns out to be no
/// longer ours.
fn keep_watching(claim: &Claim, watch: Watch, events: &Sender<Event>, inbox: &Receiver<Event>) {
    let mut watch = Some(watch);
    let mut event = inbox.recv();
    while let Ok(Event::Lost) = event {
        drop(watch.take());
        event = match renewed(claim, events, inbox) {
            Renewed::Again(again) => {
                watch = Some(again);
                inbox.recv()
            }
            Renewed::Unwanted(event) => Ok(event),
            Renewed::Gone => break,
        };
    }
    match event {
        Ok(Event::Remove(answer)) => {
            let _nobody_waits_any_more = answer.send(claim.remove());
        }
        Ok(Event::Stop) | Err(_) => {}
        // It is to be taken over from the dead, or is another's already.
        Ok(Event::Abandon | Event::Lost) => return,
    }
    // The watch goes last: as long as we hold the lock we answer for it.
    claim.give_back();
}

/// What became of a watch that was lost.
enum Renewed {
    Again(Watch),
    /// It is not wanted any more: what was asked for meanwhile.
    Unwanted(Event),
    /// The lock is another's.
    Gone,
}

/// Tries to watch again until that succeeds, or makes no sense.
fn renewed(claim: &Claim, events: &Sender<Event>, inbox: &Receiver<Event>) -> Renewed {
    loop {
        // In this order: nobody takes the lock from one who watches and answers.
        match claim.watch(events).and_then(|watch| Ok((watch, claim.is_ours()?))) {
            Ok((watch, true)) => return Renewed::Again(watch),
            // Removed together with its object, it is not ours either.
            Ok((_, false)) | Err(Code::FENCED | Code::NO_ENTRY) => {
                claim.pool.fence();
                return Renewed::Gone;
            }
            Err(_) => {}
        }
        match inbox.recv_timeout(RENEW_PAUSE) {
            Ok(Event::Lost) | Err(RecvTimeoutError::Timeout) => {}
            Ok(event) => return Renewed::Unwanted(event),
            Err(RecvTimeoutError::Disconnected) => return Renewed::Unwanted(Event::Stop),
        }
    }
}

/// Which client holds a lock.
fn words(holder: &Locker) -> String {
    format!("{} at {}", holder.client.to_string_lossy(), holder.address.to_string_lossy())
}

impl WriterLock {
    /// The client that was shut out for this lock, if one was: its name and address.
    pub fn taken_from(&self) -> Option<&str> {
        self.taken_from.as_deref()
    }

    /// Gives the lock back and removes the object that was locked, while nobody else can hold it.
    pub fn remove(self) -> Result<()> {
        let (answer, answered) = channel();
        if self.events.send(Event::Remove(answer)).is_err() {
            // Who lost the lock has nothing to remove.
            return Ok(());
        }
        answered.recv().unwrap_or(Ok(()))
    }

    /// Keeps the lock, and stops answering for it: the next client takes it over as from the dead,
    /// and the cluster refuses from then on what of ours may still be on its way.
    pub fn abandon(mut self) {
        self.end(Event::Abandon);
    }

    /// Tells the thread to end, and waits for it: the process may not end while it is in librados.
    fn end(&mut self, event: Event) {
        let Some(keeper) = self.keeper.take() else { return };
        let _ended_already = self.events.send(event);
        // A cluster that does not answer keeps the thread waiting, but not us: see `exit_at_once`.
        if self.ended.recv_timeout(FAREWELL) == Err(RecvTimeoutError::Disconnected) {
            let _panicked = keeper.join();
        }
    }
}

impl Drop for WriterLock {
    fn drop(&mut self) {
        self.end(Event::Stop);
    }
}
