//! The life of a disk: a series of sessions, most with faults of the medium, and a check of the
//! whole disk in the end.

use crate::faults::{FailureExcuse, SessionFaults, SessionMedium};
use crate::level_model::{CheckedResult, LevelModel};
use crate::script::{BlockParts, ClientId, ClientOp, LevelClient, client_ids};
use crate::session::{DiskSession, GameCounts, Weakness, count};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Budget, Disk, Result};
use lacuna_games::SeedReporter;
use lacuna_levels::{LevelFormat, OpenOptions, level_disks};
use lacuna_medium::Medium;
use lacuna_sim::{CrashMedium, Rng, RunDigest};
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
const SESSIONS_WITH_EVERY_FAULT: u64 = 100;

/// A format and the parameters of its game.
pub(crate) struct LevelsGame<F> {
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
pub(crate) struct GameOutcome {
    name: &'static str,
    first: u64,
    disks: u64,
    sessions: u64,
    digest: u64,
    counts: GameCounts,
    /// The seed of a disk with a violation, and its description.
    violation: Option<(u64, String)>,
}

impl<F: LevelFormat> LevelsGame<F> {
    /// Plays `sessions` sessions, or fewer if there is a violation. The seeds of the disks count up
    /// from `first`.
    pub(crate) fn play(&self, first: u64, sessions: u64) -> GameOutcome {
        let (name, counts, digest) = (self.name, GameCounts::default(), 0);
        let mut outcome = GameOutcome { name, first, disks: 0, sessions: 0, digest, counts, violation: None };
        let mut digest = RunDigest::new();
        while outcome.sessions < sessions && outcome.violation.is_none() {
            let seed = first + outcome.disks;
            let _seed = SeedReporter(seed);
            let mut play = PlayedDisk::new(self, seed, &outcome.counts);
            let outcome_of_disk = play.run_sessions(sessions - outcome.sessions);
            digest.add_word(play.digest.0);
            outcome.sessions += play.sessions;
            outcome.disks += 1;
            outcome.violation = outcome_of_disk.err().map(|wrong| (seed, wrong));
        }
        GameOutcome { digest: digest.0, ..outcome }
    }

    /// Prepares a medium for the game.
    fn prepare_medium(&self, medium: CrashMedium) -> Arc<CrashMedium> {
        medium.ignore_syncs(self.weakness == Some(Weakness::IgnoresSyncs));
        medium.keep_history();
        Arc::new(medium)
    }
}

impl GameOutcome {
    /// Prints the counts of the game, and its digest.
    ///
    /// # Panics
    ///
    /// If there was a violation, or if hardly any fault occurred.
    pub(crate) fn assert_no_violation(self) {
        let GameOutcome { name, first, disks, sessions, digest, counts, violation: wrong } = self;
        println!("{name}: {sessions} sessions of {disks} disks, seed {first}, digest {digest:016x}");
        println!("{name}: {counts:?}");
        if let Some((seed, wrong)) = wrong {
            panic!("{name}, seed {seed}, {wrong}; LACUNA_SEED={seed} plays that disk first");
        }
        let GameCounts { cuts, failed_calls, detected_lies, closed_in_use, failed_closings, .. } = &counts;
        let all = [cuts, failed_calls, detected_lies, closed_in_use, failed_closings];
        let happened = all.iter().all(|counter| counter.load(Ordering::Relaxed) > 0);
        assert!(
            happened || sessions < SESSIONS_WITH_EVERY_FAULT,
            "{name}: hardly any fault occurred: {counts:?}"
        );
    }

    /// The digest of a game without a violation.
    pub(crate) fn digest(self) -> u64 {
        assert!(self.violation.is_none(), "{}: {:?}", self.name, self.violation);
        self.digest
    }

    /// Checks that the game caught the weakness.
    ///
    /// # Panics
    ///
    /// If there was no violation.
    pub(crate) fn assert_caught(self, weakness: Weakness) {
        let GameOutcome { name, sessions, violation: wrong, .. } = self;
        let (seed, wrong) = wrong.unwrap_or_else(|| panic!("{name}: {weakness:?} was not detected"));
        println!("{name}, {weakness:?}: caught in session {sessions}, seed {seed}, {wrong}");
    }
}

/// The end of a session without an earlier power cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SessionEnd {
    /// All levels are flushed and the disk is closed after all clients have finished.
    Closed,
    /// The levels are closed while clients and the cover go on (`closing.rs`).
    ClosedInUse,
    /// The server is killed.
    Killed,
    /// The power is cut after all clients have finished.
    PowerCut,
}

/// A disk, the models of its levels, and the progress of its life.
struct PlayedDisk<'g, F> {
    game: &'g LevelsGame<F>,
    counts: &'g GameCounts,
    rng: Rng,
    params: F,
    /// The number of its levels, which are all open.
    levels: usize,
    threads: bool,
    medium: Arc<CrashMedium>,
    models: Vec<Mutex<LevelModel>>,
    sessions: u64,
    digest: RunDigest,
}

impl<'g, F: LevelFormat> PlayedDisk<'g, F> {
    fn new(game: &'g LevelsGame<F>, seed: u64, counts: &'g GameCounts) -> PlayedDisk<'g, F> {
        let (mut rng, params) = (Rng::new(seed), (game.params)(seed));
        let levels = *rng.pick(&[1, 2, 3, 3, 3]);
        let threads = game.threads.unwrap_or(seed % 3 == 2);
        let made = Arc::new(CrashMedium::new(params.end()));
        let shared: Arc<dyn Medium> = made.clone();
        let seeds = [(); 2].map(|()| rng.next_u64() >> 8);
        create(&shared, &params, levels, seeds[0]).unwrap();
        let disks = models(&*open(&shared, &params, levels, seeds[1]).unwrap());
        let models = disks.into_iter().map(|model| {
            let shared = BlockParts::of_level(model.blocks()).shared();
            // If clients take turns, the last writer is known.
            let contended = if threads { shared } else { 0..0 };
            Mutex::new(LevelModel::new(model, contended))
        });
        let models = models.collect();
        let medium = game.prepare_medium(CrashMedium::from_image(made.image()));
        let (sessions, digest) = (0, RunDigest::new());
        PlayedDisk { game, counts, rng, params, levels, threads, medium, models, sessions, digest }
    }

    /// Plays some sessions, at most `left`, and checks the disk afterwards.
    fn run_sessions(&mut self, left: u64) -> CheckedResult<()> {
        let planned = 3 + self.rng.below(3);
        for _ in 0..planned.min(left) {
            self.sessions += 1;
            self.session().map_err(|wrong| format!("session {}: {wrong}", self.sessions))?;
        }
        self.check_whole_disk().map_err(|wrong| format!("in the end: {wrong}"))
    }

    fn session(&mut self) -> CheckedResult<()> {
        // Drawn in advance, so that random choices do not depend on events in the session.
        let mut plan = Rng::new(self.rng.next_u64());
        let hardship = SessionFaults::draw(&mut plan, self.game.operations);
        if hardship.has_lies() {
            return self.lying_session(hardship, &mut plan);
        }
        let ending = *plan.pick(&[
            SessionEnd::Closed,
            SessionEnd::ClosedInUse,
            SessionEnd::Killed,
            SessionEnd::PowerCut,
        ]);
        let media = SessionMedium::new(&self.medium, hardship);
        let session_digest = self.run_clients(&media, &self.models, ending, &mut plan)?;
        self.digest.add_word(session_digest);
        if media.is_cut() {
            count(&self.counts.cuts);
        }
        if media.is_cut() || ending == SessionEnd::PowerCut {
            self.medium.cut_now();
            self.medium = self.game.prepare_medium(self.medium.after_power_cycle(&mut plan));
        }
        Ok(())
    }

    /// A session on a copy of the medium that lies, and becomes honest afterwards. Every block must
    /// read as a version of its own.
    fn lying_session(&mut self, hardship: SessionFaults, plan: &mut Rng) -> CheckedResult<()> {
        count(&self.counts.lies);
        let fork = self.game.prepare_medium(self.medium.fork());
        let copies = self.models.iter().map(|model| Mutex::new(model.lock().clone()));
        let copies: Vec<Mutex<LevelModel>> = copies.collect();
        let media = SessionMedium::new(&fork, hardship);
        let ending = *plan.pick(&[
            SessionEnd::Closed,
            SessionEnd::ClosedInUse,
            SessionEnd::Killed,
            SessionEnd::Killed,
        ]);
        let session_digest = self.run_clients(&media, &copies, ending, plan)?;
        self.digest.add_word(session_digest);
        fork.set_lies(None);
        let after = if fork.is_cut() { self.game.prepare_medium(fork.after_power_cycle(plan)) } else { fork };
        let Ok(disk) = self.open_to_read(&after, self.levels, plan.next_u64() >> 8) else {
            count(&self.counts.detected_lies);
            return Ok(());
        };
        for (level, model) in level_disks(&disk).iter().zip(&copies) {
            for block in BlockParts::of_level(level.blocks()).all() {
                let mut data = vec![0; BLOCK_SIZE];
                if level.read(BlockAddr(block), &mut data).is_ok() {
                    model.lock().check_own(block, &data).map_err(|wrong| format!("afterwards: {wrong}"))?;
                }
            }
        }
        Ok(())
    }

    /// Opens the disk, runs its clients, and closes it if the session ends so. Returns a digest of
    /// data that depends on the seed alone.
    fn run_clients(
        &self,
        media: &SessionMedium,
        models: &[Mutex<LevelModel>],
        ending: SessionEnd,
        plan: &mut Rng,
    ) -> CheckedResult<u64> {
        let mut digest = RunDigest::new();
        let clients = self.clients(media.is_lying(), plan, &mut digest);
        let seeds = [(); 2].map(|()| plan.next_u64() >> 8);
        let mut turns = Rng::new(plan.next_u64());
        if let Some(disk) = self.open(media, self.threads, seeds)? {
            let session = self.new_session(disk, media, models, self.threads);
            if session.read_after_open()? {
                match (ending, self.threads) {
                    (SessionEnd::ClosedInUse, true) => session.close_concurrently(clients, &mut turns)?,
                    (SessionEnd::ClosedInUse, false) => session.close_in_turns(clients, &mut turns)?,
                    (_, true) => session.run_concurrently(clients)?,
                    (_, false) => session.run_in_turns(clients, &mut turns)?,
                }
                if ending == SessionEnd::Closed {
                    session.close()?;
                }
            }
            if let Some(answers) = &session.answer_digest {
                digest.add_word(answers.lock().0);
            }
        }
        if !self.threads {
            digest.add_word(media.operations());
        }
        self.counts.failed_calls.fetch_add(media.failed(), Ordering::Relaxed);
        Ok(digest.0)
    }

    /// The clients of a session, with their requests.
    fn clients(&self, lies: bool, plan: &mut Rng, digest: &mut RunDigest) -> Vec<LevelClient> {
        let client = |seat: ClientId| {
            let parts = self.parts(seat.level);
            let requests = if lies { 4 + plan.below(4) } else { 6 + plan.below(10) };
            let script = seat.draw_script(requests, parts, plan, digest).into_iter();
            // With threads it is unknown whether changes by another client came before the flush.
            let flushes = if self.threads { parts.own(seat.client) } else { parts.all() };
            LevelClient { level: seat.level, flushes, script }
        };
        client_ids(self.sessions, self.levels).map(client).collect()
    }

    fn parts(&self, level: usize) -> BlockParts {
        BlockParts::of_level(self.models[level].lock().blocks())
    }

    fn new_session<'s>(
        &self,
        disk: Arc<F::Disk>,
        media: &'s SessionMedium,
        models: &'s [Mutex<LevelModel>],
        threads: bool,
    ) -> DiskSession<'s, F::Disk>
    where
        'g: 's,
    {
        DiskSession {
            levels: level_disks(&disk),
            disk,
            models,
            media,
            beats: self.game.beats,
            weakness: self.game.weakness,
            counts: self.counts,
            answer_digest: (!threads).then(|| Mutex::new(RunDigest::new())),
            stopped: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
        }
    }

    /// Opens the disk, with one retry after a failed call of the medium. `None` after a power cut,
    /// or if the medium lied.
    fn open(
        &self,
        media: &SessionMedium,
        threads: bool,
        seeds: [u64; 2],
    ) -> CheckedResult<Option<Arc<F::Disk>>> {
        let medium = media.for_disk(threads);
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
                FailureExcuse::Lies => {
                    count(&self.counts.detected_lies);
                    return Ok(None);
                }
                FailureExcuse::Failure if media.is_cut() => return Ok(None),
                FailureExcuse::Failure | FailureExcuse::Refusal => refused = Some(e),
                FailureExcuse::Nothing => return Err(format!("it does not open: {e}")),
            }
        }
        Err(format!("the second opening failed too, after one failed call: {refused:?}"))
    }

    /// Opens some levels of the disk read-only.
    fn open_to_read(&self, medium: &Arc<CrashMedium>, levels: usize, seed: u64) -> Result<Arc<F::Disk>> {
        let medium: Arc<dyn Medium> = medium.clone();
        let options = OpenOptions { read_only: true, ..options(seed, seed + (1 << 40)) };
        open_with(&medium, &self.params, levels, options)
    }

    /// Checks in the end that the disk opens, takes writes on every level, closes, and reads
    /// correctly at every depth.
    fn check_whole_disk(&mut self) -> CheckedResult<()> {
        let seeds = [(); 2].map(|()| self.rng.next_u64() >> 8);
        let media = SessionMedium::new(&self.medium, SessionFaults::default());
        let last: Vec<(ClientId, u64)> = client_ids(self.sessions + 1, self.levels)
            .map(|seat| (seat, self.parts(seat.level).own(seat.client).start))
            .collect();
        if let Some(disk) = self.open(&media, false, seeds)? {
            let session = self.new_session(disk, &media, &self.models, false);
            session.read_after_open()?;
            for (seat, first) in &last {
                let op = ClientOp::Write { first: *first, count: 1, stamp: seat.stamp(0) };
                session.perform(seat.level, &(0..0), op)?;
            }
            session.close()?;
        }
        for depth in 1..=self.levels {
            let disk = self.open_to_read(&self.medium, depth, seeds[0]);
            let disk = disk.map_err(|e| format!("it does not open at depth {depth}: {e}"))?;
            for (level, model) in level_disks(&disk).iter().zip(&self.models) {
                let mut data = vec![0; level.blocks() as usize * BLOCK_SIZE];
                let read = level.read(BlockAddr(0), &mut data);
                read.map_err(|e| format!("level {}, at depth {depth}: {e}", level.level()))?;
                model.lock().adopt(0, &data)?;
            }
        }
        for (seat, first) in last {
            self.digest.add_word(self.models[seat.level].lock().latest(first));
        }
        Ok(())
    }
}
