//! The replay game. The adversary may replace, swap, truncate, delete or roll back any block or US
//! page, alone or together, between operations, and may answer two reads of one place differently,
//! while the user reads and while it makes changes. The user keeps TS, and its machine may crash.
//! The adversary wins if a check returns anything other than the latest content or an error, or
//! returns data of a block that failed.

use super::fixture::{Bed, LyingReads, Model, Step, Stored, keys};
use lacuna_contracts::{Budget, Kind};
use lacuna_integrity::{Choice, ProtectedFile, Scheme, Session};
use lacuna_sim::{Lies, Rng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The number of areas of a wide game, which are far from each other.
const AREAS: u64 = 40;
/// The distance between areas. All areas take 44000 blocks: trees of three levels, and more leaf
/// pages than the cache has.
const STRIDE: u64 = 1100;

/// The permitted content of the file: the latest, and after a failed operation also the content
/// before it.
#[derive(Clone)]
struct Known {
    latest: Model,
    /// Further permitted contents of blocks after failed operations.
    also: BTreeMap<u64, Vec<Vec<u8>>>,
}

impl Known {
    fn allows(&self, block: u64, found: &[u8]) -> bool {
        let latest = self.latest.block(block, found.len());
        found == latest || self.also.get(&block).is_some_and(|also| also.iter().any(|other| other == found))
    }
}

/// The kind of a game.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GameKind {
    /// A short file.
    Short,
    /// Blocks spread over a long file.
    Wide,
    /// A short file. After a crash, an opening reuses the previous session, which is a fault.
    SameSession,
}

/// A game.
pub(crate) struct Game {
    rng: Rng,
    bed: Bed,
    /// Whether the user converts the file sometimes.
    converts: bool,
    kind: GameKind,
    known: Known,
    /// The permitted content and the untrusted storage at the last commit.
    committed: (Known, Stored),
    /// The untrusted storage after each operation.
    seen: Vec<Arc<Stored>>,
    /// The randomness of lying reads, in a game with such reads.
    liar: Option<Rng>,
    /// Whether storage was permanently altered, or changed by operations under lies.
    altered: bool,
    /// The number of errors that the adversary caused.
    pub(crate) noticed: u64,
}

/// A description of the adversary's win.
pub(crate) type Won = String;

impl Game {
    /// A game over an empty file.
    pub(crate) fn new(seed: u64, choice: Choice, block_size: usize) -> Self {
        let rng = Rng::new(seed);
        let bed = Bed::new(choice, block_size, Budget::bytes(0));
        let known = Known { latest: Model::default(), also: BTreeMap::new() };
        let committed = (known.clone(), bed.us.stored.lock().clone());
        Game {
            rng,
            bed,
            converts: seed.is_multiple_of(3) && choice != Choice::Fixed(Scheme::None),
            kind: GameKind::Short,
            known,
            committed,
            seen: vec![],
            liar: None,
            altered: false,
            noticed: 0,
        }
    }

    /// The game with storage that lies.
    #[allow(dead_code)]
    pub(crate) fn over_lies(self, seed: u64) -> Self {
        Game { liar: Some(Rng::new(!seed)), ..self }
    }

    /// A game over a file with counters too dispersed to fit into TS.
    pub(crate) fn scattered(seed: u64, choice: Choice, block_size: usize) -> Result<Self, Won> {
        let mut game = Game::new(seed, choice, block_size);
        for _ in 0..80 {
            let plain = super::fixture::content(&mut game.rng, block_size, 1);
            let step = Step::Update(game.rng.below(40), plain);
            game.bed.step(&step).map_err(|e| e.to_string())?;
            game.account(&step, false);
        }
        Ok(game)
    }

    /// A game over a long file, with blocks far from each other.
    pub(crate) fn wide(seed: u64, choice: Choice, block_size: usize) -> Result<Self, Won> {
        let mut game = Game { kind: GameKind::Wide, ..Game::new(seed, choice, block_size) };
        for area in 0..AREAS {
            let count = 1 + game.rng.below(6) as usize;
            let plain = super::fixture::content(&mut game.rng, block_size, count);
            let step = Step::Update(area * STRIDE + game.rng.below(4), plain);
            game.bed.step(&step).map_err(|e| e.to_string())?;
            game.account(&step, false);
        }
        game.commit()?;
        Ok(game)
    }

    /// A game with a user that continues in the same session after a crash.
    #[allow(dead_code)]
    pub(crate) fn without_new_sessions(seed: u64, choice: Choice, block_size: usize) -> Self {
        Game { kind: GameKind::SameSession, ..Game::new(seed, choice, block_size) }
    }

    fn commit(&mut self) -> Result<(), Won> {
        self.bed.commit().map_err(|e| e.to_string())?;
        self.remember();
        Ok(())
    }

    fn remember(&mut self) {
        self.committed = (self.known.clone(), self.bed.us.stored.lock().clone());
    }

    /// Crashes the machine. Uncommitted data is lost; or sometimes the storage keeps uncommitted
    /// data, and committed data is overwritten.
    fn crash(&mut self) -> Result<(), Won> {
        self.known = self.committed.0.clone();
        if self.rng.chance(7, 8) {
            *self.bed.us.stored.lock() = self.committed.1.clone();
        } else {
            self.altered = true;
        }
        self.bed.reopen(self.kind == GameKind::SameSession).map_err(|e| e.to_string())
    }

    /// A random block for an operation.
    fn place(&mut self) -> u64 {
        let blocks = self.known.latest.blocks;
        if self.is_wide() {
            self.rng.below(AREAS) * STRIDE + self.rng.below(8)
        } else {
            self.rng.below(blocks.min(60) + 3)
        }
    }

    fn is_wide(&self) -> bool {
        self.kind == GameKind::Wide
    }

    pub(crate) fn play(&mut self, steps: u64) -> Result<(), Won> {
        for number in 0..steps {
            let at = |won: Won| format!("step {number}: {won}");
            self.operate().map_err(at)?;
            self.seen.push(Arc::new(self.bed.us.stored.lock().clone()));
            match self.rng.below(6) {
                0 => {
                    self.alter();
                    self.altered = true;
                    self.look().map_err(at)?;
                }
                1..4 => {
                    // The adversary alters storage once, and then restores it.
                    self.commit().map_err(at)?;
                    let before = self.bed.us.stored.lock().clone();
                    self.seen.push(Arc::new(before.clone()));
                    (0..=self.rng.below(3)).for_each(|_| self.alter());
                    self.look_anew().map_err(at)?;
                    *self.bed.us.stored.lock() = before;
                }
                _ => self.look().map_err(at)?,
            }
            self.lie().map_err(at)?;
        }
        Ok(())
    }

    /// In a game with lies, opens the file again and reads it while reads return any earlier state
    /// of the storage; often makes a change first.
    fn lie(&mut self) -> Result<(), Won> {
        let Some(liar) = &mut self.liar else { return Ok(()) };
        if liar.chance(1, 2) {
            return Ok(());
        }
        let of_a_thousand = *liar.pick(&[30, 100, 300, 600]);
        let (changes, forges) = (liar.chance(1, 4), liar.chance(1, 2));
        let lies = Lies { of_a_thousand, rng: Rng::new(liar.next_u64()), forges };
        self.commit()?;
        self.bed.us.lie(Some(LyingReads { lies, past: self.seen.clone() }));
        let mut looked = Ok(());
        if changes {
            self.altered = true;
            looked = self.operate().and_then(|()| self.commit_or_lose());
        }
        let looked = looked.and_then(|()| self.look_anew());
        self.bed.us.lie(None);
        looked
    }

    /// Commits. If that fails under lies, uncommitted data is lost.
    fn commit_or_lose(&mut self) -> Result<(), Won> {
        match self.bed.commit() {
            Ok(()) => {
                self.remember();
                Ok(())
            }
            Err(e) if e.kind() == Kind::Corrupt => self.crash(),
            Err(e) => Err(e.to_string()),
        }
    }

    fn operate(&mut self) -> Result<(), Won> {
        let size = self.bed.us.block_size;
        let blocks = self.known.latest.blocks;
        let (place, wide) = (self.place(), self.is_wide());
        let rng = &mut self.rng;
        let step = match rng.below(17) {
            0..9 => {
                let count = if rng.chance(1, 8) { 1 + rng.below(40) } else { 1 + rng.below(3) };
                Step::Update(place, super::fixture::content(rng, size, count as usize))
            }
            9 if wide => {
                Step::Resize(if rng.chance(1, 4) { place } else { AREAS * STRIDE - rng.below(3 * STRIDE) })
            }
            9 => Step::Resize(rng.below(blocks + 20)),
            10 if wide => {
                Step::Punch(place, if rng.chance(1, 4) { rng.below(8 * STRIDE) } else { rng.below(10) })
            }
            10 => Step::Punch(rng.below(blocks + 1), rng.below(10)),
            11 => Step::Convert,
            12 if self.converts => Step::Choose(Choice::Fixed(Scheme::OFFERED[rng.below(3) as usize])),
            12..14 => Step::Commit,
            14..16 => Step::Reopen(rng.chance(1, 2)),
            _ => return self.crash(),
        };
        let result = self.bed.step(&step);
        let failed = match &result {
            Ok(()) => false,
            Err(e) if e.kind() == Kind::Corrupt && self.altered => true,
            Err(e) => return Err(format!("{step:.40?} failed: {e}")),
        };
        self.noticed += u64::from(failed);
        self.account(&step, failed);
        if !failed && matches!(step, Step::Commit | Step::Reopen(_)) {
            self.remember();
        }
        let (found, expected) = (self.bed.file.blocks(), self.known.latest.blocks);
        if found != expected && !failed {
            return Err(format!("{found} blocks instead of {expected}"));
        }
        self.known.latest.resize(found);
        Ok(())
    }

    /// Updates the permitted content after an operation. If it failed, its blocks may have their
    /// earlier content.
    fn account(&mut self, step: &Step, failed: bool) {
        let size = self.bed.us.block_size;
        let latest = &mut self.known.latest;
        let range = match step {
            Step::Update(first, plain) => *first..*first + (plain.len() / size) as u64,
            Step::Punch(first, count) => *first..*first + *count,
            Step::Resize(blocks) => *blocks.min(&latest.blocks)..latest.blocks.max(*blocks),
            _ => return,
        };
        if !failed {
            self.known.also.retain(|block, _| !range.contains(block));
        }
        let before: BTreeMap<_, _> = latest.data.range(range.clone()).map(|(b, p)| (*b, p.clone())).collect();
        match step {
            Step::Update(first, plain) => latest.update(*first, plain, size),
            Step::Punch(first, count) => latest.punch(*first, *count),
            Step::Resize(blocks) => latest.resize(*blocks),
            _ => {}
        }
        if failed {
            let after: Vec<u64> = latest.data.range(range).map(|(block, _)| *block).collect();
            for block in after.into_iter().chain(before.keys().copied()).collect::<BTreeSet<u64>>() {
                let old = before.get(&block).cloned().unwrap_or_else(|| vec![0; size]);
                self.known.also.entry(block).or_default().push(old);
            }
        }
    }

    /// Checks some blocks of the open file.
    fn look(&mut self) -> Result<(), Won> {
        let blocks = self.bed.file.blocks();
        for _ in 0..4 {
            let near = self.place();
            let first = if self.is_wide() { near.min(blocks) } else { self.rng.below(blocks + 1) };
            let count = self.rng.below((blocks - first).min(40) + 1);
            let noticed = Self::check(&self.known, &self.bed, &self.bed.file, first, count, self.altered)?;
            self.noticed += u64::from(noticed);
        }
        Ok(())
    }

    /// Opens the file again, with empty caches, and checks all blocks; in a wide game, all areas.
    fn look_anew(&mut self) -> Result<(), Won> {
        let Bed { trusted, session, budget, .. } = &self.bed;
        let file =
            ProtectedFile::open(keys(1), trusted, Session(*session), *budget).map_err(|e| e.to_string())?;
        let mut first = 0;
        while first < file.blocks() {
            if self.is_wide() && first % STRIDE > 50 {
                first = first.next_multiple_of(STRIDE);
                continue;
            }
            let count = (1 + self.rng.below(12)).min(file.blocks() - first);
            let noticed = Self::check(&self.known, &self.bed, &file, first, count, true)?;
            self.noticed += u64::from(noticed);
            first += count;
        }
        if !self.known.also.is_empty() {
            return Ok(());
        }
        for data in [true, false] {
            let from = self.rng.below(file.blocks() + 1);
            if let Ok(found) = file.seek(&self.bed.us, from, data)
                && found != self.known.latest.seek(from, data)
            {
                return Err(format!(
                    "from {from} on, the next block that is data ({data}) is said to be {found:?}"
                ));
            }
        }
        Ok(())
    }

    /// Whether the check failed; or the adversary's win.
    fn check(
        known: &Known,
        bed: &Bed,
        file: &ProtectedFile,
        first: u64,
        count: u64,
        may_fail: bool,
    ) -> Result<bool, Won> {
        let size = bed.us.block_size;
        let mut plain = vec![0x55; count as usize * size];
        let result = file.check(&bed.us, first, &mut plain);
        let good = match &result {
            Ok(()) => count,
            Err(failed) if failed.error.kind() == Kind::Corrupt && may_fail => failed.block - first,
            Err(failed) => return Err(format!("nothing was altered: {failed}")),
        };
        if plain[good as usize * size..].iter().any(|byte| *byte != 0) {
            return Err(format!("something is shown of block {}, which failed", first + good));
        }
        for (block, found) in (first..first + good).zip(plain.chunks_exact(size)) {
            if !known.allows(block, found) {
                return Err(format!("block {block} is not the latest"));
            }
        }
        Ok(result.is_err())
    }

    /// Makes one alteration.
    fn alter(&mut self) {
        let wide = self.is_wide();
        let rng = &mut self.rng;
        let old = self.seen[rng.below(self.seen.len() as u64) as usize].clone();
        let mut guard = self.bed.us.stored.lock();
        let now = &mut *guard;
        match rng.below(16) {
            0 => *now = Stored::clone(&old),
            1 => now.blocks = old.blocks.clone(),
            2 => now.pages = old.pages.clone(),
            3 => {
                // One kind of pages.
                if let Some((kind, _)) = pick(rng, &old.pages).map(|(key, _)| *key) {
                    now.pages.retain(|(part, _), _| *part != kind);
                    now.pages.extend(
                        old.pages.iter().filter(|((part, _), _)| *part == kind).map(|(k, v)| (*k, v.clone())),
                    );
                }
            }
            4..7 => {
                if let Some((block, bytes)) = pick(rng, &old.blocks) {
                    now.blocks.insert(*block, bytes.clone());
                }
            }
            7 => {
                if let Some((page, bytes)) = pick(rng, &old.pages) {
                    now.pages.insert(*page, bytes.clone());
                }
            }
            8 => {
                // A block in place of another.
                let place = pick(rng, &now.blocks).map(|(block, _)| *block);
                if let (Some(place), Some((_, bytes))) = (place, pick(rng, &old.blocks)) {
                    now.blocks.insert(place, bytes.clone());
                }
            }
            9 => {
                let place = pick(rng, &now.pages).map(|(page, _)| *page);
                if let (Some(place), Some((_, bytes))) = (place, pick(rng, &old.pages)) {
                    now.pages.insert(place, bytes.clone());
                }
            }
            10 => {
                if let Some(block) = pick(rng, &now.blocks).map(|(block, _)| *block) {
                    now.blocks.remove(&block);
                }
            }
            11 => {
                if let Some(page) = pick(rng, &now.pages).map(|(page, _)| *page) {
                    now.pages.remove(&page);
                }
            }
            12 => {
                if let Some(page) = pick(rng, &now.pages).map(|(page, _)| *page) {
                    let bytes = now.pages.get_mut(&page).expect("it was picked");
                    bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
                }
            }
            13 => {
                let from = rng.below(if wide { AREAS * STRIDE } else { 64 });
                now.blocks.split_off(&from);
            }
            14 => {
                if let Some(page) = pick(rng, &now.pages).map(|(page, _)| *page) {
                    flip(rng, now.pages.get_mut(&page).expect("it was picked"));
                }
            }
            _ => {
                if let Some(block) = pick(rng, &now.blocks).map(|(block, _)| *block) {
                    flip(rng, now.blocks.get_mut(&block).expect("it was picked"));
                }
            }
        }
    }
}

fn pick<'m, K: Ord, V>(rng: &mut Rng, map: &'m BTreeMap<K, V>) -> Option<(&'m K, &'m V)> {
    if map.is_empty() { None } else { map.iter().nth(rng.below(map.len() as u64) as usize) }
}

fn flip(rng: &mut Rng, bytes: &mut [u8]) {
    if !bytes.is_empty() {
        let at = rng.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << rng.below(8);
    }
}
