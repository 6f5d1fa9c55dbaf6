//! The log: consecutive groups in logical erase blocks, each naming the next block, and reads from
//! it.
//!
//! Invariants:
//! 1. Groups have ascending sequence numbers without gaps, so that replay knows where the log ends.
//!    A torn group is the last.
//! 2. A block that replay needs is not written again before a checkpoint that makes it superfluous.
//! 3. Readers are optimistic: a block may be erased while it is read. So a reader verifies the
//!    node, and looks the index up again on failure.

pub(crate) mod collector;
pub(crate) mod group;
pub(crate) mod leb_table;
pub(crate) mod log_writer;
pub(crate) mod stale_groups;
pub(crate) mod unerasable;

use crate::ids::{NodePlace, NodeTarget, Unit};
use crate::key_storage::node_key::Ciphers;
use crate::log::group::{GroupContent, GroupHeader, NodeEntry};
use crate::log::leb_table::{LebTable, LebUse};
use crate::params::Layout;
use lacuna_contracts::{BLOCK_SIZE, BoundedCache, Budget, Error, Kind, Result, Secret};
use lacuna_crypto::{HedgedNonce, RandomSource, XaesKey, derive};
use lacuna_nand::{Flash, Leb};
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;
use std::sync::Arc;

/// Bytes of a cached header: 64 entries of 56 bytes, and its place in the cache.
const HEADER_COST: u64 = 4096;

/// The place of the next group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AppendPosition {
    /// The block, by its number within the log.
    pub(crate) leb: u32,
    /// The next unit in it.
    pub(crate) unit: u32,
    /// The block of the log after this one.
    pub(crate) next: u32,
    /// The sequence number of the next group.
    pub(crate) sequence: u64,
}

struct LogState {
    table: LebTable,
    at: Option<AppendPosition>,
}

/// The log of an open disk.
pub(crate) struct Log {
    flash: Arc<dyn Flash>,
    layout: Layout,
    key: XaesKey,
    nonces: HedgedNonce,
    index_key: Ciphers,
    random: Arc<dyn RandomSource>,
    state: Mutex<LogState>,
    /// Buffer for the next group. It holds nothing but ciphertext of earlier groups.
    buffer: Mutex<Vec<u8>>,
    /// Headers of groups that were read or written lately.
    headers: Mutex<BoundedCache<u32, Arc<GroupHeader>, FxBuildHasher>>,
}

impl Log {
    /// A log that is not started yet and has no live nodes.
    pub(crate) fn new(
        flash: Arc<dyn Flash>,
        layout: Layout,
        master: &Secret<32>,
        random: Arc<dyn RandomSource>,
        budget: Budget,
    ) -> Log {
        let headers = Mutex::new(BoundedCache::new((budget.get() / HEADER_COST).max(16) as usize));
        let state = LogState { table: LebTable::new(layout.log.1), at: None };
        let key = XaesKey::new(&derive(master, "flash log", b""));
        let nonces = HedgedNonce::derive(master, "flash log nonce", b"");
        let index_key = Ciphers::derive(master, "flash index", "flash index tags");
        Log {
            flash,
            layout,
            key,
            nonces,
            index_key,
            random,
            state: Mutex::new(state),
            buffer: Mutex::default(),
            headers,
        }
    }

    // --- writing, by one thread at a time ---

    /// Starts writing in a new block. `sequence` must be above all numbers that were ever used.
    pub(crate) fn start(&self, sequence: u64) -> Result<()> {
        let mut state = self.state.lock();
        let (Some(leb), Some(next)) = (state.table.take(), state.table.take()) else {
            return Err(log_full());
        };
        self.flash.unmap(self.leb(leb))?;
        state.at = Some(AppendPosition { leb, unit: 0, next, sequence });
        Ok(())
    }

    /// The place of the next group, if the log is started.
    pub(crate) fn position(&self) -> Option<AppendPosition> {
        self.state.lock().at
    }

    /// Nodes that fit the next group, at most those of a whole group and at least one. Goes on to
    /// the next block if the current one has no room.
    pub(crate) fn room_for_nodes(&self) -> Result<usize> {
        let mut state = self.state.lock();
        let nodes = |left: u32| {
            let units = (left / self.layout.page_units() * self.layout.page_units()).saturating_sub(1);
            (units / self.layout.node_units()).min(crate::log::group::max_nodes(self.layout.unit)) as usize
        };
        let at = state.at.ok_or_else(not_started)?;
        match nodes(self.layout.units - at.unit) {
            0 => {
                self.advance_to_next_block(&mut state)?;
                Ok(nodes(self.layout.units))
            }
            room => Ok(room),
        }
    }

    /// A buffer for a group of `nodes` nodes, and the length of the header in front of them.
    pub(crate) fn group_buffer(&self, nodes: usize) -> (Vec<u8>, usize) {
        let header = self.layout.unit as usize;
        let len = (header + nodes * BLOCK_SIZE).next_multiple_of(self.layout.page as usize);
        let mut bytes = std::mem::take(&mut *self.buffer.lock());
        bytes.resize(len, 0);
        bytes[header + nodes * BLOCK_SIZE..].fill(0xff);
        (bytes, header)
    }

    /// Appends a group. It is durable when this returns. `bytes` comes from [`Log::group_buffer`],
    /// with one node for each entry of `content`; there must be room for them.
    pub(crate) fn append(&self, content: GroupContent, mut bytes: Vec<u8>) -> Result<Unit> {
        let mut state = self.state.lock();
        let padded = bytes.len() as u32 / self.layout.unit;
        if state.at.ok_or_else(not_started)?.unit + padded > self.layout.units {
            self.advance_to_next_block(&mut state)?;
        }
        let at = state.at.ok_or_else(not_started)?;
        let place = self.unit(at.leb, at.unit);
        let next_leb = at.next;
        let mut header = GroupHeader { sequence: at.sequence, next_leb, checksum: 0, content };
        let (front, nodes) = bytes.split_at_mut(self.layout.unit as usize);
        header.checksum = crc32fast::hash(&nodes[..header.nodes().len() * BLOCK_SIZE]);
        front.copy_from_slice(&header.seal(
            self.layout.unit,
            place,
            &self.key,
            &self.nonces,
            &*self.random,
        )?);
        let programmed = self.flash.program(self.leb(at.leb), at.unit * self.layout.unit, &bytes);
        programmed.map_err(|e| self.write_error(e, place))?;
        let live = state.table.live(at.leb) + header.nodes().len() as u32;
        state.table.set_live(at.leb, live);
        state.table.note_written(at.leb, at.sequence);
        state.at = Some(AppendPosition { unit: at.unit + padded, sequence: at.sequence + 1, ..at });
        self.headers.lock().insert(place.0, Arc::new(header));
        *self.buffer.lock() = bytes;
        Ok(place)
    }

    /// The error of a group that the flash did not program. It counts as a refusal only if no part
    /// of the group is on the flash: replay would find that part rather than the next group with
    /// the same sequence number.
    fn write_error(&self, e: Error, place: Unit) -> Error {
        let mut front = vec![0; self.layout.unit as usize];
        let mut is_erased = || self.read(place, &mut front).is_ok() && front.iter().all(|byte| *byte == 0xff);
        if !e.kind().is_refusal() || is_erased() { e } else { e.of_sync() }
    }

    /// Goes on in the next block.
    pub(crate) fn skip_to_next_block(&self) -> Result<()> {
        self.advance_to_next_block(&mut self.state.lock())
    }

    /// Unmaps a block if it is the next one of the log. Nothing was written to it yet.
    pub(crate) fn clear_if_next(&self, leb: u32) -> Result<()> {
        let state = self.state.lock();
        if state.at.is_some_and(|at| at.next == leb) { self.flash.unmap(self.leb(leb)) } else { Ok(()) }
    }

    fn advance_to_next_block(&self, state: &mut LogState) -> Result<()> {
        let at = state.at.ok_or_else(not_started)?;
        // A power cut may have brought old content back.
        self.flash.unmap(self.leb(at.next))?;
        let next = state.table.take().ok_or_else(log_full)?;
        state.at = Some(AppendPosition { leb: at.next, unit: 0, next, sequence: at.sequence });
        Ok(())
    }

    // --- live nodes ---

    /// Notes that a node is no longer live.
    pub(crate) fn release_node(&self, place: NodePlace) {
        self.release_nodes(std::iter::once(place));
    }

    /// Notes that nodes are no longer live.
    pub(crate) fn release_nodes(&self, places: impl Iterator<Item = NodePlace>) {
        let mut state = self.state.lock();
        for place in places {
            let leb = self.leb_of(place.group);
            let live = state.table.live(leb).saturating_sub(1);
            state.table.set_live(leb, live);
        }
    }

    /// Passes the table of blocks to `f`.
    pub(crate) fn with_table<R>(&self, f: impl FnOnce(&mut LebTable) -> R) -> R {
        f(&mut self.state.lock().table)
    }

    /// The blocks that pay most to collect, the best one last.
    pub(crate) fn victims(&self) -> Vec<u32> {
        let state = self.state.lock();
        state.at.map_or(vec![], |at| state.table.victims(self.layout.leb_nodes(), at.sequence))
    }

    /// Frees a block without live nodes.
    pub(crate) fn release(&self, leb: u32) -> Result<()> {
        self.flash.unmap(self.leb(leb))?;
        let mut state = self.state.lock();
        state.table.set_live(leb, 0);
        state.table.set_usage(leb, LebUse::Free);
        let first = self.unit(leb, 0).0;
        let mut headers = self.headers.lock();
        (first..first + self.layout.units).for_each(|unit| drop(headers.remove(unit)));
        Ok(())
    }

    /// Notes that a checkpoint is complete: replay now begins after the groups written so far.
    pub(crate) fn note_checkpoint(&self) {
        let mut state = self.state.lock();
        if let Some(at) = state.at {
            state.table.close_recent([at.leb, at.next]);
        }
    }

    // --- reading ---

    /// The header of a group; `None` if there is none at this place.
    pub(crate) fn header(&self, place: Unit) -> Result<Option<Arc<GroupHeader>>> {
        if let Some(header) = self.headers.lock().get(place.0) {
            return Ok(Some(header.clone()));
        }
        let Some(header) = self.read_header(place)? else { return Ok(None) };
        let header = Arc::new(header);
        self.headers.lock().insert(place.0, header.clone());
        Ok(Some(header))
    }

    /// [`Log::header`] without the cache.
    pub(crate) fn read_header(&self, place: Unit) -> Result<Option<GroupHeader>> {
        let mut bytes = vec![0; self.layout.unit as usize];
        self.read(place, &mut bytes)?;
        GroupHeader::open(&bytes, place, &self.key)
    }

    /// [`Log::header`] of a unit with these bytes.
    pub(crate) fn header_in(&self, leb: u32, unit: u32, bytes: &[u8]) -> Result<Option<GroupHeader>> {
        GroupHeader::open(bytes, self.unit(leb, unit), &self.key)
    }

    /// Reads consecutive nodes of a group, still encrypted.
    pub(crate) fn read_nodes(&self, group: Unit, ordinal: u8, out: &mut [u8]) -> Result<()> {
        self.read(Unit(group.0 + 1 + u32::from(ordinal) * self.layout.node_units()), out)
    }

    /// Drops a cached header that no longer matches the index.
    pub(crate) fn forget_header(&self, place: Unit) {
        self.headers.lock().remove(place.0);
    }

    fn read(&self, at: Unit, out: &mut [u8]) -> Result<()> {
        let (leb, unit) = (at.0 / self.layout.units, at.0 % self.layout.units);
        let end = u64::from(unit) * u64::from(self.layout.unit) + out.len() as u64;
        if end > u64::from(self.layout.leb_len) {
            return Err(damaged(format!("unit {}", at.0)));
        }
        self.flash.read(Leb(leb), unit * self.layout.unit, out).map_err(Error::of_read)
    }

    /// The groups at the start of a block, with the units of their headers, up to the first place
    /// without a group or with an older one.
    pub(crate) fn groups_of(&self, leb: u32) -> Result<Vec<(Unit, Arc<GroupHeader>)>> {
        let mut groups: Vec<(Unit, Arc<GroupHeader>)> = vec![];
        let mut unit = 0;
        while unit < self.layout.units {
            let place = self.unit(leb, unit);
            let Some(header) = self.read_header(place)? else { break };
            if groups.last().is_some_and(|(_, last)| last.sequence >= header.sequence) {
                break;
            }
            unit += self.units_of(&header);
            groups.push((place, Arc::new(header)));
        }
        Ok(groups)
    }

    /// Units of a group.
    pub(crate) fn units_of(&self, header: &GroupHeader) -> u32 {
        let units = 1 + header.nodes().len() as u32 * self.layout.node_units();
        units.next_multiple_of(self.layout.page_units())
    }

    /// Whether all nodes of a group are on the flash.
    pub(crate) fn is_whole(&self, place: Unit, header: &GroupHeader) -> Result<bool> {
        if header.nodes().is_empty() {
            return Ok(true);
        }
        let mut nodes = vec![0; header.nodes().len() * BLOCK_SIZE];
        self.read(Unit(place.0 + 1), &mut nodes)?;
        Ok(crc32fast::hash(&nodes) == header.checksum)
    }

    // --- nodes ---

    /// Encrypts a page of the index.
    pub(crate) fn seal_index(&self, page: u32, sequence: u64, plain: &[u8], out: &mut [u8]) -> NodeEntry {
        let mut random = [0; 4];
        self.random.fill(&mut random);
        let (target, key) = (NodeTarget::Index(page), u32::from_le_bytes(random));
        let tag = self.index_key.seal(key, target, sequence, plain, out);
        NodeEntry { target, key, sequence, tag, replaced: None }
    }

    /// Reads a page of the index.
    pub(crate) fn read_index(&self, page: u32, place: NodePlace) -> Result<Vec<u8>> {
        let mut bytes = vec![0; BLOCK_SIZE];
        self.read_nodes(place.group, place.ordinal, &mut bytes)?;
        let header = self.header(place.group)?;
        let entry = header.as_ref().and_then(|header| header.nodes().get(usize::from(place.ordinal)));
        let opened = entry
            .filter(|entry| entry.target == NodeTarget::Index(page))
            .is_some_and(|entry| self.index_key.open(entry.key, entry, &mut bytes));
        if opened { Ok(bytes) } else { Err(damaged(format!("page {page} of the index"))) }
    }

    // --- numbers ---

    fn leb(&self, leb: u32) -> Leb {
        debug_assert!(leb < self.layout.log.1);
        Leb(self.layout.log.0 + leb)
    }

    /// The unit with this number in a block of the log.
    pub(crate) fn unit(&self, leb: u32, unit: u32) -> Unit {
        Unit((self.layout.log.0 + leb) * self.layout.units + unit)
    }

    /// The block of the log that holds a unit.
    pub(crate) fn leb_of(&self, unit: Unit) -> u32 {
        (unit.0 / self.layout.units).saturating_sub(self.layout.log.0).min(self.layout.log.1 - 1)
    }
}

fn not_started() -> Error {
    Error::new(Kind::ReadOnly, "the log is not open for writing")
}

/// The error of a log without a free block.
pub(crate) fn log_full() -> Error {
    Error::new(Kind::NoSpace, "the log has no free erase block left")
        .expected("a free block: the disk is shorter than its log")
        .hint("close the disk and check it")
}

/// The error of data that does not verify.
pub(crate) fn damaged(what: impl std::fmt::Display) -> Error {
    Error::new(Kind::Corrupt, format!("{what} does not verify"))
        .found("other data than this disk wrote there")
        .hint("restore it from a backup; a check lists the lost blocks")
}
