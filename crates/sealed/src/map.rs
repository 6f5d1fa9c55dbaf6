//! The map: which slot each segment lives in, in memory and on the medium, and which slots are free.
//!
//! Invariants: no two segments share a slot; a slot is taken for a copy-on-write segment of a mapped segment only while every
//! segment without a slot could still get one, so the first write to a segment never fails for want of a slot.

use crate::geometry::{Geometry, MAP_ENTRY};
use lacuna_core::{Error, Kind, Record, Result, Secret};
use lacuna_crypto::keyed_hash;
use lacuna_medium::{Medium, WriteExtent};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where a segment lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Nowhere: it was never written and reads as zeros.
    Nowhere,
    /// At this number.
    At(u32),
}

const NOWHERE: u32 = 0;
const CORRUPT: u32 = u32::MAX;

pub(crate) struct SegmentMap {
    /// 0 for none, `u32::MAX` for an entry that does not verify, else the slot's number plus 1.
    slots: Vec<AtomicU32>,
    free: Mutex<FreeSlots>,
    key: Secret<32>,
    geometry: Geometry,
}

struct FreeSlots {
    free: Vec<u32>,
    /// Segments that have neither a slot nor a copy-on-write segment and may claim a free slot at any time.
    unassigned: u32,
}

impl SegmentMap {
    /// Reads the map from the medium. Entries that do not verify make their segments unreadable; they are
    /// not an error here. No slot counts as free until [`SegmentMap::count_free`], which waits for what the
    /// journal has to say.
    pub(crate) fn load(medium: &dyn Medium, geometry: Geometry, key: Secret<32>) -> Result<Self> {
        let mut slots = Vec::with_capacity(geometry.segments as usize);
        let mut buf = vec![0; 1 << 20];
        while slots.len() < geometry.segments as usize {
            let count = (geometry.segments as usize - slots.len()).min(buf.len() / MAP_ENTRY as usize);
            let bytes = &mut buf[..count * MAP_ENTRY as usize];
            medium.read_at(geometry.map + slots.len() as u64 * MAP_ENTRY, bytes)?;
            for entry in bytes.as_chunks::<{ MAP_ENTRY as usize }>().0 {
                let slot = parse_entry(&key, slots.len() as u64, entry, geometry.slots);
                slots.push(AtomicU32::new(slot));
            }
        }
        Ok(SegmentMap { slots, free: Mutex::new(FreeSlots { free: vec![], unassigned: 0 }), key, geometry })
    }

    /// Finds the free slots anew. Two segments that claim one slot (only tampering does that) both become
    /// unreadable.
    pub(crate) fn count_free(&self) {
        let mut owner = vec![NOWHERE; self.geometry.slots as usize];
        for (segment, slot) in self.slots.iter().enumerate() {
            let value = slot.load(Ordering::Relaxed);
            if value != NOWHERE && value != CORRUPT {
                let other = std::mem::replace(&mut owner[value as usize - 1], segment as u32 + 1);
                if other != NOWHERE {
                    slot.store(CORRUPT, Ordering::Relaxed);
                    self.slots[other as usize - 1].store(CORRUPT, Ordering::Relaxed);
                }
            }
        }
        let mut free = self.free();
        // Descending, so that the lowest is taken first and the medium fills from its start.
        free.free = (0..self.geometry.slots).rev().filter(|&h| owner[h as usize] == NOWHERE).collect();
        free.unassigned = self.slots.iter().filter(|h| h.load(Ordering::Relaxed) == NOWHERE).count() as u32;
    }

    pub(crate) fn get(&self, segment: u64) -> Result<Slot> {
        match self.slots[segment as usize].load(Ordering::Acquire) {
            NOWHERE => Ok(Slot::Nowhere),
            CORRUPT => Err(Error::new(Kind::Corrupt, format!("segment {segment} has no readable slot"))
                .found("a map entry that does not verify")
                .expected("one that this disk wrote")
                .remedy("restore the disk from a backup; `lacuna check` lists the blocks that are lost")),
            slot => Ok(Slot::At(slot - 1)),
        }
    }

    /// Sets a slot in memory; the journal must hold the change.
    pub(crate) fn set(&self, segment: u64, slot: Slot) {
        let value = match slot {
            Slot::Nowhere => NOWHERE,
            Slot::At(slot) => slot + 1,
        };
        self.slots[segment as usize].store(value, Ordering::Release);
    }

    /// Writes the entries of `segments` to the medium as they stand in memory. Not synced.
    pub(crate) fn write(&self, medium: &dyn Medium, segments: &[u64]) -> Result<()> {
        let entries: Vec<(u64, [u8; MAP_ENTRY as usize])> = segments
            .iter()
            .filter_map(|&segment| Some((segment, self.entry(segment, self.get(segment).ok()?))))
            .collect();
        let extents: Vec<WriteExtent<'_>> = entries
            .iter()
            .map(|(segment, entry)| WriteExtent {
                offset: self.geometry.map + segment * MAP_ENTRY,
                data: entry,
            })
            .collect();
        medium.write(&extents)
    }

    /// A slot for a segment that has none.
    pub(crate) fn take_first(&self) -> Result<u32> {
        let mut free = self.free();
        free.unassigned = free.unassigned.saturating_sub(1);
        free.free.pop().ok_or_else(|| {
            Error::new(Kind::Corrupt, "no slot is left for a segment")
                .found("more segments with slots than the map can hold")
                .remedy("run `lacuna check`; parts of the map may have been altered")
        })
    }

    /// A second slot for a segment that has one, if there is one to spare.
    pub(crate) fn take_spare(&self) -> Option<u32> {
        let mut free = self.free();
        if free.free.len() > free.unassigned as usize { free.free.pop() } else { None }
    }

    /// Slots that copy-on-write segments could still take.
    pub(crate) fn spare(&self) -> usize {
        let free = self.free();
        free.free.len().saturating_sub(free.unassigned as usize)
    }

    /// Frees a slot. `unassigned` says that its segment is now without one.
    pub(crate) fn release(&self, slot: u32, unassigned: bool) {
        let mut free = self.free();
        free.free.push(slot);
        free.unassigned += u32::from(unassigned);
    }

    /// All free slots, for giving their space back.
    pub(crate) fn free_slots(&self) -> Vec<u32> {
        self.free().free.clone()
    }

    /// How many segments have a slot.
    pub(crate) fn mapped(&self) -> u64 {
        self.slots.iter().filter(|h| !matches!(h.load(Ordering::Relaxed), NOWHERE | CORRUPT)).count() as u64
    }

    fn free(&self) -> MutexGuard<'_, FreeSlots> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, segment: u64, slot: Slot) -> [u8; MAP_ENTRY as usize] {
        let mut entry = [0; MAP_ENTRY as usize];
        if let Slot::At(slot) = slot {
            let value = u64::from(slot) + 1;
            entry[..8].copy_from_slice(&value.to_le_bytes());
            entry[8..].copy_from_slice(&tag(&self.key, segment, value));
        }
        entry
    }
}

fn tag(key: &Secret<32>, segment: u64, value: u64) -> [u8; 8] {
    let hash = keyed_hash(key, &[&segment.to_le_bytes(), &value.to_le_bytes()]);
    hash[..8].try_into().expect("8 bytes")
}

fn parse_entry(key: &Secret<32>, segment: u64, entry: &[u8; MAP_ENTRY as usize], slots: u32) -> u32 {
    if *entry == [0; MAP_ENTRY as usize] {
        return NOWHERE;
    }
    let value = Record(entry).u64(0);
    if value == 0 || value > u64::from(slots) || entry[8..] != tag(key, segment, value) {
        return CORRUPT;
    }
    value as u32
}
