//! Reading the log: summaries, the heads that are kept of them, and slots, from the medium or from stripes that are
//! still on their way to it.

use crate::keys::{open_slot, stripe_key};
use crate::params::{CHECKPOINTS, Params, Version};
use crate::place::Place;
use crate::summary::{Listed, Summary};
use lacuna_core::{BLOCK_SIZE, Kind, Result, Secret};
use lacuna_crypto::{RandomSource, random_secret};
use lacuna_levels::{Entry, SALT_LEN, TAG_LEN, WriteKey, again, corrupt};
use lacuna_medium::Medium;
use rustc_hash::FxHashMap;
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

/// What is kept of a summary for one level: what it takes to read the level's slots.
pub(crate) struct Head {
    key: WriteKey,
    /// Of all slots of the kind; those of another level are empty.
    pub(crate) entries: Vec<Listed>,
}

impl Head {
    fn public(summary: Summary) -> Head {
        Head { key: summary.key, entries: summary.public.entries }
    }

    /// What is listed for neighbouring slots, which must hold `entries`.
    fn listed(&self, slot: usize, entries: &[Entry]) -> Result<&[Listed]> {
        let found = self.entries.get(slot..slot + entries.len()).unwrap_or_default();
        let differs = |at: usize, entry: &Entry| found.get(at).is_none_or(|found| found.0 != *entry);
        match entries.iter().enumerate().find(|(at, entry)| differs(*at, entry)) {
            Some((_, entry)) => Err(corrupt(format!("cannot read {entry}"))),
            None => Ok(found),
        }
    }

    /// Decrypts neighbouring slots of stripe `seq`, which must hold `entries`, where they were read to.
    fn open(&self, seq: u64, slot: usize, entries: &[Entry], out: &mut [u8]) -> Result<()> {
        let listed = self.listed(slot, entries)?;
        for (at, (block, (entry, tag))) in out.chunks_exact_mut(BLOCK_SIZE).zip(listed).enumerate() {
            let opened = open_slot(&self.key, seq, slot + at, entry.pack(), tag, block);
            opened.map_err(|_| corrupt(format!("cannot read {entry}")))?;
        }
        Ok(())
    }
}

/// Bytes that are reckoned for a head that lists `slots` slots.
fn bytes_of_head(slots: u64) -> u64 {
    1024 + slots * size_of::<Listed>() as u64
}

/// Landed stripes whose memory is kept: as many as are ever read ahead and on their way.
const MOST_SPARE: usize = 32;

/// Pauses between the tries to read what would be lost, and how many places are remembered that failed all of them.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(75),
    Duration::from_millis(200),
    Duration::from_millis(400),
];
const MOST_GIVEN_UP: usize = 4096;

/// Heads that reads have used, by level and stripe; the first that came goes first.
struct HeadCache {
    heads: FxHashMap<(u8, u64), Arc<Head>>,
    order: VecDeque<(u8, u64)>,
    most: usize,
}

impl HeadCache {
    fn get(&self, level: u8, seq: u64) -> Option<Arc<Head>> {
        self.heads.get(&(level, seq)).cloned()
    }

    fn put(&mut self, at: (u8, u64), head: Arc<Head>) {
        if self.heads.insert(at, head).is_none() {
            self.order.push_back(at);
        }
        while self.order.len() > self.most {
            let Some(oldest) = self.order.pop_front() else { return };
            self.heads.remove(&oldest);
        }
    }
}

/// The plaintext of slots that a level's map already points at.
pub(crate) struct Plain {
    /// Level and entry of each slot.
    pub(crate) entries: Vec<(u8, Entry)>,
    /// The slots one after another.
    pub(crate) blocks: Vec<u8>,
}

impl Plain {
    /// As many empty slots.
    pub(crate) fn new(slots: usize) -> Plain {
        Plain { entries: vec![(0, Entry::Empty); slots], blocks: vec![0; slots * BLOCK_SIZE] }
    }

    /// The same slots, emptied, in memory that is there already.
    fn emptied(mut self) -> Plain {
        self.entries.fill((0, Entry::Empty));
        self
    }

    /// Makes the blocks of empty slots zeros, before they are encrypted like any other: until then they hold anything.
    pub(crate) fn zero_empty(&mut self) {
        for (block, (_, entry)) in self.blocks.chunks_exact_mut(BLOCK_SIZE).zip(&self.entries) {
            if *entry == Entry::Empty {
                block.fill(0);
            }
        }
    }

    /// The bytes of a slot, to be filled, after `entry` of `level` was noted for it.
    pub(crate) fn put(&mut self, level: u8, slot: usize, entry: Entry) -> &mut [u8] {
        self.entries[slot] = (level, entry);
        &mut self.blocks[slot * BLOCK_SIZE..(slot + 1) * BLOCK_SIZE]
    }

    /// Empties a slot.
    pub(crate) fn clear(&mut self, slot: usize) {
        self.entries[slot] = (0, Entry::Empty);
    }

    /// The slot that holds this, if there is one.
    pub(crate) fn slot_of(&self, level: u8, entry: Entry) -> Option<usize> {
        self.entries.iter().position(|held| *held == (level, entry))
    }

    /// The block in a slot, if the slot is this level's and holds this.
    pub(crate) fn slot(&self, level: u8, slot: usize, entry: Entry) -> Option<&[u8]> {
        let found = self.entries.get(slot) == Some(&(level, entry));
        found.then(|| &self.blocks[slot * BLOCK_SIZE..(slot + 1) * BLOCK_SIZE])
    }
}

/// A stripe that is closed and not yet on the medium.
pub(crate) struct InFlight {
    pub(crate) seq: u64,
    pub(crate) public: Plain,
    pub(crate) hidden: OnceLock<Plain>,
}

/// The log, to be read.
pub(crate) struct Log {
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) params: Params,
    /// The keys of the open levels, from 0 up, then throwaway keys for the other levels that there can be, and at the end for
    /// the slots that belong to none.
    pub(crate) keys: Vec<Secret<32>>,
    levels: usize,
    /// Pauses are made between tries. Without the threads of a disk they are not.
    patient: bool,
    given_up: Mutex<BTreeSet<u64>>,
    /// The last stripe that is on the medium.
    written: AtomicU64,
    in_flight: RwLock<VecDeque<Arc<InFlight>>>,
    /// Memory of stripes that are complete, for those to come: of public slots, and of hidden ones.
    spare: [Mutex<Vec<Plain>>; 2],
    heads: Mutex<HeadCache>,
}

impl Log {
    /// `keys` are those of the open levels, from 0 up; throwaway keys come from `filler`.
    pub(crate) fn new(
        medium: Arc<dyn Medium>,
        params: Params,
        mut keys: Vec<Secret<32>>,
        filler: &dyn RandomSource,
        memory: u64,
        patient: bool,
    ) -> Log {
        let levels = keys.len();
        let possible = match params.version {
            Version::Shared { .. } => levels,
            Version::Dealt => 1 + usize::from(params.hidden_levels()),
        };
        // As many are drawn whatever is open.
        let throwaway: Vec<Secret<32>> = (0..=possible).map(|_| random_secret(filler)).collect();
        keys.extend(throwaway.into_iter().skip(levels));
        let slots = params.public_slots().max(params.hidden_slots()) as u64;
        let most = (memory / bytes_of_head(slots)).max(8) as usize;
        Log {
            medium,
            params,
            keys,
            levels,
            patient,
            given_up: Mutex::default(),
            written: AtomicU64::new(0),
            in_flight: RwLock::default(),
            spare: Default::default(),
            heads: Mutex::new(HeadCache { heads: FxHashMap::default(), order: VecDeque::new(), most }),
        }
    }

    /// How many levels are open.
    pub(crate) fn levels(&self) -> usize {
        self.levels
    }

    /// The keys of all levels, open or not, for the stripe with this salt, and at the end a throwaway one.
    pub(crate) fn stripe_keys(&self, salt: &[u8; SALT_LEN]) -> Result<Vec<WriteKey>> {
        self.keys.iter().map(|key| stripe_key(key, salt)).collect()
    }

    /// The level that owns a hidden slot, or the number of the throwaway key for a slot that belongs to no single level.
    pub(crate) fn owner(&self, slot: usize) -> u8 {
        let throwaway = self.keys.len() as u8 - 1;
        match self.params.version {
            Version::Shared { .. } => throwaway,
            Version::Dealt => {
                (1..throwaway).find(|level| self.params.slots(*level).contains(&slot)).unwrap_or(throwaway)
            }
        }
    }

    /// The last stripe that is on the medium.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// A stripe sets off for the medium: until it is there it is read from memory.
    pub(crate) fn submit(&self, stripe: Arc<InFlight>) {
        self.in_flight.write().unwrap_or_else(PoisonError::into_inner).push_back(stripe);
    }

    /// Everything up to stripe `seq` is on the medium.
    pub(crate) fn complete(&self, seq: u64) {
        self.written.store(seq, Ordering::Release);
        let mut in_flight = self.in_flight.write().unwrap_or_else(PoisonError::into_inner);
        while in_flight.front().is_some_and(|stripe| stripe.seq <= seq) {
            // Unless a reader still looks at it.
            if let Some(InFlight { public, hidden, .. }) = in_flight.pop_front().and_then(Arc::into_inner) {
                self.recycle(0, public);
                hidden.into_inner().into_iter().for_each(|plain| self.recycle(1, plain));
            }
        }
    }

    fn recycle(&self, of: usize, plain: Plain) {
        let mut spare = self.spare[of].lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < MOST_SPARE {
            spare.push(plain);
        }
    }

    /// Empty slots for a stripe: public ones, or those of the hidden levels.
    pub(crate) fn empty_slots(&self, hidden: bool) -> Plain {
        let spare = self.spare[usize::from(hidden)].lock().unwrap_or_else(PoisonError::into_inner).pop();
        let slots = if hidden { self.params.hidden_slots() } else { self.params.public_slots() };
        spare.map_or_else(|| Plain::new(slots), Plain::emptied)
    }

    fn in_flight(&self, seq: u64) -> Option<Arc<InFlight>> {
        let in_flight = self.in_flight.read().unwrap_or_else(PoisonError::into_inner);
        let first = in_flight.front()?.seq;
        in_flight.get(usize::try_from(seq.checked_sub(first)?).ok()?).cloned()
    }

    /// Reads from the medium, more than once if it fails: some errors pass.
    pub(crate) fn read_medium(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        again(|| self.medium.read_at(offset, buf))
    }

    /// Reads what is lost for good if it cannot be read: with pauses between further tries, so that a hiccup of the medium
    /// costs nothing. A place that failed all of them once is not waited for again.
    pub(crate) fn read_or_lose(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut read = self.read_medium(offset, buf);
        // A medium that reads nothing at all has not lost this place: the disk fails, and nothing is given up.
        if read.is_ok() || !self.patient || self.given_up().contains(&offset) || !self.reads_at_all() {
            return read;
        }
        for pause in PAUSES {
            std::thread::sleep(pause);
            read = self.medium.read_at(offset, buf);
            if read.is_ok() {
                return read;
            }
        }
        let mut given_up = self.given_up();
        if given_up.len() < MOST_GIVEN_UP {
            given_up.insert(offset);
        }
        read
    }

    fn given_up(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the medium reads at all: if not, what it does not give is not lost.
    pub(crate) fn reads_at_all(&self) -> bool {
        let mut block = [0; BLOCK_SIZE];
        (0..2).any(|turn| self.read_medium(CHECKPOINTS + turn * BLOCK_SIZE as u64, &mut block).is_ok())
    }

    /// The summary that lies where stripe `seq` belongs, if it is one of this disk and of that number.
    pub(crate) fn summary(&self, seq: u64) -> Result<Option<Summary>> {
        let mut block = [0; BLOCK_SIZE];
        self.read_medium(self.params.offset(seq), &mut block)?;
        Ok(Summary::open(&self.params, &self.keys[0], &block)?.filter(|found| found.public.seq == seq))
    }

    /// What stripe `seq` holds of a level. Errors: [`Kind::Corrupt`] if its summary does not verify.
    pub(crate) fn head(&self, level: u8, seq: u64) -> Result<Arc<Head>> {
        if let Some(head) = self.heads().get(level, seq) {
            return Ok(head);
        }
        let summary = self.sound_summary(seq)?;
        let head = Arc::new(if level == 0 { Head::public(summary) } else { self.hidden(level, &summary)? });
        self.heads().put((level, seq), Arc::clone(&head));
        Ok(head)
    }

    fn heads(&self) -> MutexGuard<'_, HeadCache> {
        self.heads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the heads in memory, of which none goes but for another, and of as many as there may be.
    pub(crate) fn bytes_of_heads(&self) -> [u64; 2] {
        let slots = self.params.public_slots().max(self.params.hidden_slots()) as u64;
        let heads = self.heads();
        [heads.heads.len(), heads.most].map(|count| count as u64 * bytes_of_head(slots))
    }

    /// The same, where a summary that the medium does not give, after retries, is no summary.
    pub(crate) fn summary_if_read(&self, seq: u64) -> Result<Option<Summary>> {
        match self.summary(seq) {
            Err(e) if e.kind() == Kind::Io => Ok(None),
            read => read,
        }
    }

    fn sound_summary(&self, seq: u64) -> Result<Summary> {
        self.summary(seq)?.ok_or_else(|| corrupt(format!("cannot read stripe {seq}")))
    }

    fn hidden(&self, level: u8, summary: &Summary) -> Result<Head> {
        let key = stripe_key(&self.keys[usize::from(level)], &summary.salt)?;
        let slots = self.params.slots(level);
        let mut entries = vec![(Entry::Empty, [0; TAG_LEN]); self.params.hidden_slots()];
        entries[slots.clone()].copy_from_slice(&summary.hidden_entries(&key, slots));
        Ok(Head { key, entries })
    }

    /// Byte offset of a level's slot in a stripe.
    pub(crate) fn slot_offset(&self, level: u8, seq: u64, slot: usize) -> u64 {
        let before = if level == 0 { 1 } else { 1 + self.params.public_slots() };
        self.params.offset(seq) + ((before + slot) * BLOCK_SIZE) as u64
    }

    /// Reads neighbouring slots of stripe `seq`, which must hold `entries`, into `out`.
    fn read_slots(&self, level: u8, seq: u64, slot: usize, entries: &[Entry], out: &mut [u8]) -> Result<()> {
        let head = self.head(level, seq).map_err(|e| e.context(entries[0]))?;
        // What does not belong there is not read, for it may not even lie within the medium.
        head.listed(slot, entries)?;
        self.read_medium(self.slot_offset(level, seq, slot), out)?;
        head.open(seq, slot, entries, out)
    }

    /// Reads one slot of a stripe as the summary of that stripe describes it.
    pub(crate) fn read_listed(
        &self,
        level: u8,
        seq: u64,
        slot: usize,
        entry: Entry,
        out: &mut [u8],
    ) -> Result<()> {
        self.read_slots(level, seq, slot, &[entry], out)
    }

    /// Reads what was taken in at `place` and the slots after it. Every block must be in a closed stripe.
    pub(crate) fn fetch(&self, level: u8, place: Place, entries: &[Entry], out: &mut [u8]) -> Result<()> {
        let slot = usize::from(place.slot);
        loop {
            let written = self.written();
            if place.seq > written {
                let Some(stripe) = self.in_flight(place.seq) else {
                    if self.written() > written {
                        continue;
                    }
                    return Err(corrupt(format!("cannot find stripe {}", place.seq)));
                };
                // The map may point at a stripe whose other levels are still being filled.
                let plain = if level == 0 { &stripe.public } else { stripe.hidden.wait() };
                for (at, (entry, out)) in entries.iter().zip(out.chunks_exact_mut(BLOCK_SIZE)).enumerate() {
                    let found = plain.slot(level, slot + at, *entry);
                    out.copy_from_slice(found.ok_or_else(|| corrupt(format!("cannot read {entry}")))?);
                }
                return Ok(());
            }
            let seq = self.params.latest(place.seq, written);
            match self.read_slots(level, seq, slot, entries, out) {
                // Unless it was carried on meanwhile and overwritten here.
                Err(_) if self.params.latest(place.seq, self.written()) != seq => {}
                done => return done,
            }
        }
    }
}
