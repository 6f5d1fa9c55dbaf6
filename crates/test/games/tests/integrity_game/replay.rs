//! The replay game. The adversary may replace, swap, truncate, delete or roll back any block or US
//! page, alone or together, between operations, and may answer two reads of one place differently,
//! while the user reads and while it makes changes. The user keeps TS, and its machine may crash.
//! The adversary wins if a check returns anything other than the latest content or an error, or
//! returns data of a block that failed.

use super::fixture::{FileHarness, FileModel, FileStep, LyingReads, Stored, keys};
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
struct PermittedContent {
    latest: FileModel,
    /// Further permitted contents of blocks after failed operations.
    alternatives: BTreeMap<u64, Vec<Vec<u8>>>,
}

impl PermittedContent {
    fn allows(&self, block: u64, found: &[u8]) -> bool {
        let latest = self.latest.block(block, found.len());
        found == latest
            || self.alternatives.get(&block).is_some_and(|also| also.iter().any(|other| other == found))
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
pub(crate) struct IntegrityGame {
    rng: Rng,
    harness: FileHarness,
    /// Whether the user converts the file sometimes.
    may_convert: bool,
    kind: GameKind,
    known: PermittedContent,
    /// The permitted content and the untrusted storage at the last commit.
    committed: (PermittedContent, Stored),
    /// The untrusted storage after each operation.
    past_storage: Vec<Arc<Stored>>,
    /// The randomness of lying reads, in a game with such reads.
    lie_rng: Option<Rng>,
    /// Whether storage was permanently altered, or changed by operations under lies.
    altered: bool,
    /// The number of errors that the adversary caused.
    pub(crate) detected: u64,
}

/// A description of the adversary's win.
pub(crate) type AdversaryWin = String;

impl IntegrityGame {
    /// A game over an empty file.
    pub(crate) fn new(seed: u64, choice: Choice, block_size: usize) -> Self {
        let rng = Rng::new(seed);
        let harness = FileHarness::new(choice, block_size, Budget::bytes(0));
        let known = PermittedContent { latest: FileModel::default(), alternatives: BTreeMap::new() };
        let committed = (known.clone(), harness.us.stored.lock().clone());
        IntegrityGame {
            rng,
            harness,
            may_convert: seed.is_multiple_of(3) && choice != Choice::Fixed(Scheme::None),
            kind: GameKind::Short,
            known,
            committed,
            past_storage: vec![],
            lie_rng: None,
            altered: false,
            detected: 0,
        }
    }

    /// The game with storage that lies.
    #[allow(dead_code)]
    pub(crate) fn with_lies(self, seed: u64) -> Self {
        IntegrityGame { lie_rng: Some(Rng::new(!seed)), ..self }
    }

    /// A game over a file with counters too dispersed to fit into TS.
    pub(crate) fn with_dispersed_counters(
        seed: u64,
        choice: Choice,
        block_size: usize,
    ) -> Result<Self, AdversaryWin> {
        let mut game = IntegrityGame::new(seed, choice, block_size);
        for _ in 0..80 {
            let plain = super::fixture::content(&mut game.rng, block_size, 1);
            let step = FileStep::Update(game.rng.below(40), plain);
            game.harness.step(&step).map_err(|e| e.to_string())?;
            game.update_known(&step, false);
        }
        Ok(game)
    }

    /// A game over a long file, with blocks far from each other.
    pub(crate) fn wide(seed: u64, choice: Choice, block_size: usize) -> Result<Self, AdversaryWin> {
        let mut game = IntegrityGame { kind: GameKind::Wide, ..IntegrityGame::new(seed, choice, block_size) };
        for area in 0..AREAS {
            let count = 1 + game.rng.below(6) as usize;
            let plain = super::fixture::content(&mut game.rng, block_size, count);
            let step = FileStep::Update(area * STRIDE + game.rng.below(4), plain);
            game.harness.step(&step).map_err(|e| e.to_string())?;
            game.update_known(&step, false);
        }
        game.commit()?;
        Ok(game)
    }

    /// A game with a user that continues in the same session after a crash.
    #[allow(dead_code)]
    pub(crate) fn without_new_sessions(seed: u64, choice: Choice, block_size: usize) -> Self {
        IntegrityGame { kind: GameKind::SameSession, ..IntegrityGame::new(seed, choice, block_size) }
    }

    fn commit(&mut self) -> Result<(), AdversaryWin> {
        self.harness.commit().map_err(|e| e.to_string())?;
        self.save_storage();
        Ok(())
    }

    fn save_storage(&mut self) {
        self.committed = (self.known.clone(), self.harness.us.stored.lock().clone());
    }

    /// Crashes the machine. Uncommitted data is lost; or sometimes the storage keeps uncommitted
    /// data, and committed data is overwritten.
    fn crash(&mut self) -> Result<(), AdversaryWin> {
        self.known = self.committed.0.clone();
        if self.rng.chance(7, 8) {
            *self.harness.us.stored.lock() = self.committed.1.clone();
        } else {
            self.altered = true;
        }
        self.harness.reopen(self.kind == GameKind::SameSession).map_err(|e| e.to_string())
    }

    /// A random block for an operation.
    fn random_block(&mut self) -> u64 {
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

    pub(crate) fn play(&mut self, steps: u64) -> Result<(), AdversaryWin> {
        for number in 0..steps {
            let at = |won: AdversaryWin| format!("step {number}: {won}");
            self.operate().map_err(at)?;
            self.past_storage.push(Arc::new(self.harness.us.stored.lock().clone()));
            match self.rng.below(6) {
                0 => {
                    self.alter();
                    self.altered = true;
                    self.check_open_file().map_err(at)?;
                }
                1..4 => {
                    // The adversary alters storage once, and then restores it.
                    self.commit().map_err(at)?;
                    let before = self.harness.us.stored.lock().clone();
                    self.past_storage.push(Arc::new(before.clone()));
                    (0..=self.rng.below(3)).for_each(|_| self.alter());
                    self.check_reopened_file().map_err(at)?;
                    *self.harness.us.stored.lock() = before;
                }
                _ => self.check_open_file().map_err(at)?,
            }
            self.play_under_lies().map_err(at)?;
        }
        Ok(())
    }

    /// In a game with lies, opens the file again and reads it while reads return any earlier state
    /// of the storage; often makes a change first.
    fn play_under_lies(&mut self) -> Result<(), AdversaryWin> {
        let Some(liar) = &mut self.lie_rng else { return Ok(()) };
        if liar.chance(1, 2) {
            return Ok(());
        }
        let of_a_thousand = *liar.pick(&[30, 100, 300, 600]);
        let (changes, forges) = (liar.chance(1, 4), liar.chance(1, 2));
        let lies = Lies { per_mille: of_a_thousand, rng: Rng::new(liar.next_u64()), may_forge: forges };
        self.commit()?;
        self.harness.us.lie(Some(LyingReads { lies, past: self.past_storage.clone() }));
        let mut looked = Ok(());
        if changes {
            self.altered = true;
            looked = self.operate().and_then(|()| self.commit_or_lose());
        }
        let looked = looked.and_then(|()| self.check_reopened_file());
        self.harness.us.lie(None);
        looked
    }

    /// Commits. If that fails under lies, uncommitted data is lost.
    fn commit_or_lose(&mut self) -> Result<(), AdversaryWin> {
        match self.harness.commit() {
            Ok(()) => {
                self.save_storage();
                Ok(())
            }
            Err(e) if e.kind() == Kind::Corrupt => self.crash(),
            Err(e) => Err(e.to_string()),
        }
    }

    fn operate(&mut self) -> Result<(), AdversaryWin> {
        let size = self.harness.us.block_size;
        let blocks = self.known.latest.blocks;
        let (place, wide) = (self.random_block(), self.is_wide());
        let rng = &mut self.rng;
        let step = match rng.below(17) {
            0..9 => {
                let count = if rng.chance(1, 8) { 1 + rng.below(40) } else { 1 + rng.below(3) };
                FileStep::Update(place, super::fixture::content(rng, size, count as usize))
            }
            9 if wide => FileStep::Resize(if rng.chance(1, 4) {
                place
            } else {
                AREAS * STRIDE - rng.below(3 * STRIDE)
            }),
            9 => FileStep::Resize(rng.below(blocks + 20)),
            10 if wide => {
                FileStep::Punch(place, if rng.chance(1, 4) { rng.below(8 * STRIDE) } else { rng.below(10) })
            }
            10 => FileStep::Punch(rng.below(blocks + 1), rng.below(10)),
            11 => FileStep::Convert,
            12 if self.may_convert => FileStep::Choose(Choice::Fixed(Scheme::OFFERED[rng.below(3) as usize])),
            12..14 => FileStep::Commit,
            14..16 => FileStep::Reopen(rng.chance(1, 2)),
            _ => return self.crash(),
        };
        let result = self.harness.step(&step);
        let failed = match &result {
            Ok(()) => false,
            Err(e) if e.kind() == Kind::Corrupt && self.altered => true,
            Err(e) => return Err(format!("{step:.40?} failed: {e}")),
        };
        self.detected += u64::from(failed);
        self.update_known(&step, failed);
        if !failed && matches!(step, FileStep::Commit | FileStep::Reopen(_)) {
            self.save_storage();
        }
        let (found, expected) = (self.harness.file.blocks(), self.known.latest.blocks);
        if found != expected && !failed {
            return Err(format!("{found} blocks instead of {expected}"));
        }
        self.known.latest.resize(found);
        Ok(())
    }

    /// Updates the permitted content after an operation. If it failed, its blocks may have their
    /// earlier content.
    fn update_known(&mut self, step: &FileStep, failed: bool) {
        let size = self.harness.us.block_size;
        let latest = &mut self.known.latest;
        let range = match step {
            FileStep::Update(first, plain) => *first..*first + (plain.len() / size) as u64,
            FileStep::Punch(first, count) => *first..*first + *count,
            FileStep::Resize(blocks) => *blocks.min(&latest.blocks)..latest.blocks.max(*blocks),
            _ => return,
        };
        if !failed {
            self.known.alternatives.retain(|block, _| !range.contains(block));
        }
        let before: BTreeMap<_, _> = latest.data.range(range.clone()).map(|(b, p)| (*b, p.clone())).collect();
        match step {
            FileStep::Update(first, plain) => latest.update(*first, plain, size),
            FileStep::Punch(first, count) => latest.punch(*first, *count),
            FileStep::Resize(blocks) => latest.resize(*blocks),
            _ => {}
        }
        if failed {
            let after: Vec<u64> = latest.data.range(range).map(|(block, _)| *block).collect();
            for block in after.into_iter().chain(before.keys().copied()).collect::<BTreeSet<u64>>() {
                let old = before.get(&block).cloned().unwrap_or_else(|| vec![0; size]);
                self.known.alternatives.entry(block).or_default().push(old);
            }
        }
    }

    /// Checks some blocks of the open file.
    fn check_open_file(&mut self) -> Result<(), AdversaryWin> {
        let blocks = self.harness.file.blocks();
        for _ in 0..4 {
            let near = self.random_block();
            let first = if self.is_wide() { near.min(blocks) } else { self.rng.below(blocks + 1) };
            let count = self.rng.below((blocks - first).min(40) + 1);
            let noticed =
                Self::check(&self.known, &self.harness, &self.harness.file, first, count, self.altered)?;
            self.detected += u64::from(noticed);
        }
        Ok(())
    }

    /// Opens the file again, with empty caches, and checks all blocks; in a wide game, all areas.
    fn check_reopened_file(&mut self) -> Result<(), AdversaryWin> {
        let FileHarness { trusted, session, budget, .. } = &self.harness;
        let file =
            ProtectedFile::open(keys(1), trusted, Session(*session), *budget).map_err(|e| e.to_string())?;
        let mut first = 0;
        while first < file.blocks() {
            if self.is_wide() && first % STRIDE > 50 {
                first = first.next_multiple_of(STRIDE);
                continue;
            }
            let count = (1 + self.rng.below(12)).min(file.blocks() - first);
            let noticed = Self::check(&self.known, &self.harness, &file, first, count, true)?;
            self.detected += u64::from(noticed);
            first += count;
        }
        if !self.known.alternatives.is_empty() {
            return Ok(());
        }
        for data in [true, false] {
            let from = self.rng.below(file.blocks() + 1);
            if let Ok(found) = file.seek(&self.harness.us, from, data)
                && found != self.known.latest.seek(from, data)
            {
                return Err(format!(
                    "from {from}, the next block that is data ({data}) is reported as {found:?}"
                ));
            }
        }
        Ok(())
    }

    /// Whether the check failed; or the adversary's win.
    fn check(
        known: &PermittedContent,
        harness: &FileHarness,
        file: &ProtectedFile,
        first: u64,
        count: u64,
        may_fail: bool,
    ) -> Result<bool, AdversaryWin> {
        let size = harness.us.block_size;
        let mut plain = vec![0x55; count as usize * size];
        let result = file.check(&harness.us, first, &mut plain);
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
        let old = self.past_storage[rng.below(self.past_storage.len() as u64) as usize].clone();
        let mut guard = self.harness.us.stored.lock();
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
