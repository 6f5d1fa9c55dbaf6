//! The life of a disk: a series of sessions, most with faults of the medium, and a check of the
//! whole disk in the end.

use crate::hardship::{Excuse, Hardship, Media};
use crate::ledger::{Judged, Ledger};
use crate::script::{Client, Op, Parts, Seat, seats};
use crate::session::{Counts, Session, Weakness, count};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Budget, Disk, Result};
use lacuna_games::Seed;
use lacuna_levels::{LevelFormat, OpenOptions, level_disks};
use lacuna_medium::Medium;
use lacuna_sim::{CrashMedium, Digest, Rng};
use lacuna_testkit::levels::{create, models, open, open_with, options};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Memory for caches. Queues of hidden levels are so short that writers wait for room.
const BUDGET: Budget = Budget::bytes(1 << 20);
/// How long hidden data waits for cover on a disk with threads; then its client triggers a beat.
const COVER_TIMEOUT: Duration = Duration::from_millis(20);
/// In this many sessions each kind of fault must occur.
const MANY: u64 = 100;

/// A format and the parameters of its game.
pub(crate) struct Game<F> {
    pub(crate) name: &'static str,
    /// The parameters of the disk for a seed. Only the play beats its paced clock.
    pub(crate) params: fn(u64) -> F,
    /// The most beats that a flush of a hidden level takes.
    pub(crate) beats: u64,
    /// Approximate number of medium operations of a session.
    pub(crate) operations: u64,
    /// The deliberate fault of the disks in a control game.
    pub(crate) weakness: Option<Weakness>,
    /// Whether disks have threads and clients run concurrently; `None` leaves it to the seed.
    pub(crate) threads: Option<bool>,
}

/// The outcome of a game.
pub(crate) struct Outcome {
    name: &'static str,
    first: u64,
    disks: u64,
    sessions: u64,
    digest: u64,
    counts: Counts,
    /// The seed of a disk with a violation, and its description.
    wrong: Option<(u64, String)>,
}

impl<F: LevelFormat> Game<F> {
    /// Plays `sessions` sessions, or fewer if there is a violation. The seeds of the disks count up
    /// from `first`.
    pub(crate) fn play(&self, first: u64, sessions: u64) -> Outcome {
        let (name, counts, digest) = (self.name, Counts::default(), 0);
        let mut outcome = Outcome { name, first, disks: 0, sessions: 0, digest, counts, wrong: None };
        let mut digest = Digest::new();
        while outcome.sessions < sessions && outcome.wrong.is_none() {
            let seed = first + outcome.disks;
            let _seed = Seed(seed);
            let mut play = Play::begin(self, seed, &outcome.counts);
            let lived = play.live(sessions - outcome.sessions);
            digest.word(play.digest.0);
            outcome.sessions += play.sessions;
            outcome.disks += 1;
            outcome.wrong = lived.err().map(|wrong| (seed, wrong));
        }
        Outcome { digest: digest.0, ..outcome }
    }

    /// Prepares a medium for the game.
    fn fitted(&self, medium: CrashMedium) -> Arc<CrashMedium> {
        medium.ignore_syncs(self.weakness == Some(Weakness::SyncsNothing));
        medium.keep_past();
        Arc::new(medium)
    }
}

impl Outcome {
    /// Prints the counts of the game, and its digest.
    ///
    /// # Panics
    ///
    /// If there was a violation, or if hardly any fault occurred.
    pub(crate) fn nothing_is_wrong(self) {
        let Outcome { name, first, disks, sessions, digest, counts, wrong } = self;
        println!("{name}: {sessions} sessions of {disks} disks, seed {first}, digest {digest:016x}");
        println!("{name}: {counts:?}");
        if let Some((seed, wrong)) = wrong {
            panic!("{name}, seed {seed}, {wrong}; LACUNA_SEED={seed} plays that disk first");
        }
        let all = [&counts.cuts, &counts.failed_calls, &counts.noticed_lies];
        let happened = all.iter().all(|counter| counter.load(Ordering::Relaxed) > 0);
        assert!(happened || sessions < MANY, "{name}: hardly anything happened: {counts:?}");
    }

    /// The digest of a game without a violation.
    pub(crate) fn digest(self) -> u64 {
        assert!(self.wrong.is_none(), "{}: {:?}", self.name, self.wrong);
        self.digest
    }

    /// Checks that the game caught the weakness.
    ///
    /// # Panics
    ///
    /// If there was no violation.
    pub(crate) fn assert_caught(self, weakness: Weakness) {
        let Outcome { name, sessions, wrong, .. } = self;
        let (seed, wrong) = wrong.unwrap_or_else(|| panic!("{name}: {weakness:?} was not noticed"));
        println!("{name}, {weakness:?}: caught in session {sessions}, seed {seed}, {wrong}");
    }
}

/// The end of a session without an earlier power cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Closed,
    /// The server is killed.
    Killed,
    /// The power is cut after all clients have finished.
    Cut,
}

/// A disk, the ledgers of its levels, and the progress of its life.
struct Play<'g, F> {
    game: &'g Game<F>,
    counts: &'g Counts,
    rng: Rng,
    params: F,
    /// The number of its levels, which are all open.
    levels: usize,
    threads: bool,
    medium: Arc<CrashMedium>,
    ledgers: Vec<Mutex<Ledger>>,
    sessions: u64,
    digest: Digest,
}

impl<'g, F: LevelFormat> Play<'g, F> {
    fn begin(game: &'g Game<F>, seed: u64, counts: &'g Counts) -> Play<'g, F> {
        let (mut rng, params) = (Rng::new(seed), (game.params)(seed));
        let levels = *rng.pick(&[1, 2, 3, 3, 3]);
        let threads = game.threads.unwrap_or(seed % 3 == 2);
        let made = Arc::new(CrashMedium::new(params.end()));
        let shared: Arc<dyn Medium> = made.clone();
        let seeds = [(); 2].map(|()| rng.next_u64() >> 8);
        create(&shared, &params, levels, seeds[0]).unwrap();
        let models = models(&*open(&shared, &params, levels, seeds[1]).unwrap());
        let ledgers = models.into_iter().map(|model| {
            let shared = Parts::of(model.blocks()).shared();
            // If clients take turns, the last writer is known.
            let contended = if threads { shared } else { 0..0 };
            Mutex::new(Ledger::new(model, contended))
        });
        let ledgers = ledgers.collect();
        let medium = game.fitted(CrashMedium::from_image(made.image()));
        let (sessions, digest) = (0, Digest::new());
        Play { game, counts, rng, params, levels, threads, medium, ledgers, sessions, digest }
    }

    /// Plays some sessions, at most `left`, and checks the disk afterwards.
    fn live(&mut self, left: u64) -> Judged<()> {
        let planned = 3 + self.rng.below(3);
        for _ in 0..planned.min(left) {
            self.sessions += 1;
            self.session().map_err(|wrong| format!("session {}: {wrong}", self.sessions))?;
        }
        self.end().map_err(|wrong| format!("in the end: {wrong}"))
    }

    fn session(&mut self) -> Judged<()> {
        // Drawn in advance, so that random choices do not depend on events in the session.
        let mut plan = Rng::new(self.rng.next_u64());
        let hardship = Hardship::draw(&mut plan, self.game.operations);
        if hardship.lies() {
            return self.lying_session(hardship, &mut plan);
        }
        let ending = *plan.pick(&[Ending::Closed, Ending::Closed, Ending::Killed, Ending::Cut]);
        let media = Media::new(&self.medium, hardship);
        let told = self.work(&media, &self.ledgers, ending == Ending::Closed, &mut plan)?;
        self.digest.word(told);
        if media.is_cut() {
            count(&self.counts.cuts);
        }
        if media.is_cut() || ending == Ending::Cut {
            self.medium.cut_now();
            self.medium = self.game.fitted(self.medium.restarted(&mut plan));
        }
        Ok(())
    }

    /// A session on a copy of the medium that lies, and becomes honest afterwards. Every block must
    /// read as a version of its own.
    fn lying_session(&mut self, hardship: Hardship, plan: &mut Rng) -> Judged<()> {
        count(&self.counts.lies);
        let fork = self.game.fitted(self.medium.fork());
        let copies = self.ledgers.iter().map(|ledger| Mutex::new(ledger.lock().clone()));
        let copies: Vec<Mutex<Ledger>> = copies.collect();
        let media = Media::new(&fork, hardship);
        let closes = plan.chance(1, 2);
        let told = self.work(&media, &copies, closes, plan)?;
        self.digest.word(told);
        fork.lie(None);
        let after = if fork.is_cut() { self.game.fitted(fork.restarted(plan)) } else { fork };
        let Ok(disk) = self.open_to_read(&after, self.levels, plan.next_u64() >> 8) else {
            count(&self.counts.noticed_lies);
            return Ok(());
        };
        for (level, ledger) in level_disks(&disk).iter().zip(&copies) {
            for block in Parts::of(level.blocks()).all() {
                let mut data = vec![0; BLOCK_SIZE];
                if level.read(BlockAddr(block), &mut data).is_ok() {
                    ledger.lock().check_own(block, &data).map_err(|wrong| format!("afterwards: {wrong}"))?;
                }
            }
        }
        Ok(())
    }

    /// Opens the disk, runs its clients, and closes it if it `closes`. Returns a digest of data
    /// that depends on the seed alone.
    fn work(&self, media: &Media, ledgers: &[Mutex<Ledger>], closes: bool, plan: &mut Rng) -> Judged<u64> {
        let mut digest = Digest::new();
        let clients = self.clients(media.lies(), plan, &mut digest);
        let seeds = [(); 2].map(|()| plan.next_u64() >> 8);
        let mut turns = Rng::new(plan.next_u64());
        if let Some(disk) = self.open(media, self.threads, seeds)? {
            let session = self.session_of(disk, media, ledgers, self.threads);
            if session.look()? {
                if self.threads {
                    session.at_once(clients)?;
                } else {
                    session.in_turns(clients, &mut turns)?;
                }
                if closes {
                    session.close()?;
                }
            }
            if let Some(told) = &session.told {
                digest.word(told.lock().0);
            }
        }
        if !self.threads {
            digest.word(media.operations());
        }
        self.counts.failed_calls.fetch_add(media.failed(), Ordering::Relaxed);
        Ok(digest.0)
    }

    /// The clients of a session, with their requests.
    fn clients(&self, lies: bool, plan: &mut Rng, digest: &mut Digest) -> Vec<Client> {
        let client = |seat: Seat| {
            let parts = self.parts(seat.level);
            let requests = if lies { 4 + plan.below(4) } else { 6 + plan.below(10) };
            let script = seat.script(requests, parts, plan, digest).into_iter();
            // With threads it is unknown whether changes by another client came before the flush.
            let flushes = if self.threads { parts.own(seat.client) } else { parts.all() };
            Client { level: seat.level, flushes, script }
        };
        seats(self.sessions, self.levels).map(client).collect()
    }

    fn parts(&self, level: usize) -> Parts {
        Parts::of(self.ledgers[level].lock().blocks())
    }

    fn session_of<'s>(
        &self,
        disk: Arc<F::Disk>,
        media: &'s Media,
        ledgers: &'s [Mutex<Ledger>],
        threads: bool,
    ) -> Session<'s, F::Disk>
    where
        'g: 's,
    {
        Session {
            levels: level_disks(&disk),
            disk,
            ledgers,
            media,
            beats: self.game.beats,
            weakness: self.game.weakness,
            counts: self.counts,
            told: (!threads).then(|| Mutex::new(Digest::new())),
            stopped: AtomicBool::new(false),
        }
    }

    /// Opens the disk, with one retry after a failed call of the medium. `None` after a power cut,
    /// or if the medium lied.
    fn open(&self, media: &Media, threads: bool, seeds: [u64; 2]) -> Judged<Option<Arc<F::Disk>>> {
        let medium = media.of_disk(threads);
        let mut refused = None;
        for seed in seeds {
            let options = OpenOptions {
                budget: BUDGET,
                background: threads,
                cover_timeout: COVER_TIMEOUT,
                ..options(seed, seed + (1 << 40))
            };
            let e = match open_with(&medium, &self.params, self.levels, options) {
                Ok(disk) => return Ok(Some(disk)),
                Err(e) => e,
            };
            match media.excuse() {
                Excuse::Lies => {
                    count(&self.counts.noticed_lies);
                    return Ok(None);
                }
                Excuse::Failure if media.is_cut() => return Ok(None),
                Excuse::Failure | Excuse::Refusal => refused = Some(e),
                Excuse::Nothing => return Err(format!("it does not open: {e}")),
            }
        }
        Err(format!("it does not open again, though one call failed: {refused:?}"))
    }

    /// Opens some levels of the disk read-only.
    fn open_to_read(&self, medium: &Arc<CrashMedium>, levels: usize, seed: u64) -> Result<Arc<F::Disk>> {
        let medium: Arc<dyn Medium> = medium.clone();
        let options = OpenOptions { read_only: true, ..options(seed, seed + (1 << 40)) };
        open_with(&medium, &self.params, levels, options)
    }

    /// Checks in the end that the disk opens, takes writes on every level, closes, and reads
    /// correctly at every depth.
    fn end(&mut self) -> Judged<()> {
        let seeds = [(); 2].map(|()| self.rng.next_u64() >> 8);
        let media = Media::new(&self.medium, Hardship::default());
        let last: Vec<(Seat, u64)> = seats(self.sessions + 1, self.levels)
            .map(|seat| (seat, self.parts(seat.level).own(seat.client).start))
            .collect();
        if let Some(disk) = self.open(&media, false, seeds)? {
            let session = self.session_of(disk, &media, &self.ledgers, false);
            session.look()?;
            for (seat, first) in &last {
                let op = Op::Write { first: *first, count: 1, stamp: seat.stamp(0) };
                session.perform(seat.level, &(0..0), op)?;
            }
            session.close()?;
        }
        for depth in 1..=self.levels {
            let disk = self.open_to_read(&self.medium, depth, seeds[0]);
            let disk = disk.map_err(|e| format!("it does not open at depth {depth}: {e}"))?;
            for (level, ledger) in level_disks(&disk).iter().zip(&self.ledgers) {
                let mut data = vec![0; level.blocks() as usize * BLOCK_SIZE];
                let read = level.read(BlockAddr(0), &mut data);
                read.map_err(|e| format!("level {}, at depth {depth}: {e}", level.level()))?;
                ledger.lock().keep(0, &data)?;
            }
        }
        for (seat, first) in last {
            self.digest.word(self.ledgers[seat.level].lock().latest(first));
        }
        Ok(())
    }
}
