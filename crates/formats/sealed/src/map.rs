//! The map: the slot of each segment, in memory and on the medium, and the free slots.
//!
//! Invariants: no two segments share a slot. A slot is taken for a copy-on-write segment of a
//! mapped segment only while every segment without a slot could still get one, so the first write
//! to a segment never fails for lack of a slot.

use crate::address::{SegmentNo, SlotNo};
use crate::geometry::{Geometry, MAP_ENTRY, Params};
use crate::segments::header_too_old::{GrowthCheck, max_slots};
use lacuna_contracts::{Error, Kind, LeReader, LeWriter, Result, Secret};
use lacuna_crypto::keyed_hash;
use lacuna_medium::{Medium, WriteExtent};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

const NO_SLOT: u32 = 0;
const CORRUPT: u32 = u32::MAX;
type MapEntry = [u8; MAP_ENTRY as usize];

/// An entry that does not verify. It marks a segment with lost contents.
const LOST_ENTRY: MapEntry = [0xff; MAP_ENTRY as usize];

pub(crate) struct SegmentMap {
    /// 0 for no slot, `u32::MAX` for an entry that does not verify, otherwise the slot's number
    /// plus 1.
    slots: Vec<AtomicU32>,
    free: Mutex<FreeSlots>,
    key: Secret<32>,
    geometry: Geometry,
}

struct FreeSlots {
    free: Vec<SlotNo>,
    /// The number of segments with neither a slot nor a copy-on-write segment. Each may claim a
    /// free slot at any time.
    unassigned: u32,
}

impl SegmentMap {
    /// Reads the map from the medium. Entries that do not verify make their segments unreadable;
    /// they are not an error here. No slot counts as free until [`SegmentMap::count_free`], after
    /// the journal was replayed.
    ///
    /// Errors: [`Kind::RolledBack`] if the disk was larger when the map was written
    /// ([`GrowthCheck::check`]).
    pub(crate) fn load(
        medium: &dyn Medium,
        params: &Params,
        key: Secret<32>,
        read_only: bool,
    ) -> Result<Self> {
        let geometry = params.geometry();
        let segments = u64::from(geometry.segments);
        let mut slots = Vec::with_capacity(geometry.segments as usize);
        let mut outgrown = GrowthCheck::new(params);
        let parse = |segment, entry: &MapEntry| parse_entry(&key, segment, entry, max_slots(params));
        each_entry(medium, &geometry, 0..segments, |segment, entry| {
            let slot = parse(segment, entry);
            if !matches!(slot, NO_SLOT | CORRUPT) {
                outgrown.note(segment, slot);
            }
            let known = slot == CORRUPT || slot <= geometry.slots;
            slots.push(AtomicU32::new(if known { slot } else { CORRUPT }));
        })?;
        // The present length of the medium does not tell how large the disk was: the medium may
        // have been cut short since.
        let beyond =
            each_entry(medium, &geometry, segments..u64::from(params.map_capacity), |segment, entry| {
                let slot = parse(segment, entry);
                if !matches!(slot, NO_SLOT | CORRUPT) {
                    outgrown.note(segment, slot);
                }
            });
        // A read-only disk loses nothing if these entries cannot be read.
        beyond.or_else(|e| if read_only { Ok(()) } else { Err(e) })?;
        outgrown.check()?;
        Ok(SegmentMap { slots, free: Mutex::new(FreeSlots { free: vec![], unassigned: 0 }), key, geometry })
    }

    /// Recomputes the free slots. Two segments that claim the same slot both become unreadable,
    /// since the medium was altered.
    pub(crate) fn count_free(&self) {
        let mut owner = vec![0; self.geometry.slots as usize];
        for (segment, slot) in self.slots.iter().enumerate() {
            let value = slot.load(Ordering::Relaxed);
            if value != NO_SLOT && value != CORRUPT {
                let other = std::mem::replace(&mut owner[value as usize - 1], segment + 1);
                if other != 0 {
                    slot.store(CORRUPT, Ordering::Relaxed);
                    self.slots[other - 1].store(CORRUPT, Ordering::Relaxed);
                }
            }
        }
        let mut free = self.free.lock();
        // Descending, so that the lowest slot is taken first and the medium fills from its start.
        let slots = SlotNo::all(self.geometry.slots).rev();
        free.free = slots.filter(|slot| owner[slot.get() as usize] == 0).collect();
        free.unassigned = self.slots.iter().filter(|s| s.load(Ordering::Relaxed) == NO_SLOT).count() as u32;
    }

    /// The slot of a segment; none if it was never written and reads as zeros.
    ///
    /// Errors: [`Kind::Corrupt`] if its entry does not verify.
    pub(crate) fn get(&self, segment: SegmentNo) -> Result<Option<SlotNo>> {
        match self.slots[segment.get() as usize].load(Ordering::Acquire) {
            NO_SLOT => Ok(None),
            CORRUPT => {
                Err(Error::new(Kind::Corrupt, format!("segment {} has no readable slot", segment.get()))
                    .found("a map entry that does not verify")
                    .expected("one that this disk wrote")
                    .hint("restore the disk from a backup; a check lists the blocks that are lost"))
            }
            slot => Ok(SlotNo::checked(u64::from(slot) - 1, self.geometry.slots)),
        }
    }

    /// Sets the slot of a segment in memory; the journal must hold the change.
    pub(crate) fn set(&self, segment: SegmentNo, slot: Option<SlotNo>) {
        let value = slot.map_or(NO_SLOT, |slot| slot.get() + 1);
        self.slots[segment.get() as usize].store(value, Ordering::Release);
    }

    /// Writes the entries of `segments` as they are in memory to the medium. Not synced.
    pub(crate) fn write(&self, medium: &dyn Medium, segments: impl Iterator<Item = SegmentNo>) -> Result<()> {
        let place = |segment: SegmentNo| self.geometry.map + u64::from(segment.get()) * MAP_ENTRY;
        let entries: Vec<(u64, MapEntry)> = segments
            .map(|segment| {
                // The journal entry with its slot is about to be retired: the older map entry must
                // not become valid again.
                let entry = self.get(segment).map_or(LOST_ENTRY, |slot| self.entry(segment, slot));
                (place(segment), entry)
            })
            .collect();
        let extents: Vec<WriteExtent<'_>> =
            entries.iter().map(|(offset, entry)| WriteExtent { offset: *offset, data: entry }).collect();
        medium.write(&extents)
    }

    /// Takes a slot for a segment without one.
    pub(crate) fn take_first(&self) -> Result<SlotNo> {
        let mut free = self.free.lock();
        free.unassigned = free.unassigned.saturating_sub(1);
        free.free.pop().ok_or_else(|| {
            Error::new(Kind::Corrupt, "no slot is left for a segment")
                .found("more segments with slots than the map can hold")
                .hint("check the disk: parts of the map may have been altered")
        })
    }

    /// Takes a second slot for a segment that has one, if there is one to spare.
    pub(crate) fn take_spare(&self) -> Option<SlotNo> {
        let mut free = self.free.lock();
        if free.free.len() > free.unassigned as usize { free.free.pop() } else { None }
    }

    /// Takes this slot, if it is free. `unassigned`: whether it is for a segment without a slot.
    pub(crate) fn take_free(&self, slot: SlotNo, unassigned: bool) -> bool {
        let mut free = self.free.lock();
        let Some(at) = free.free.iter().position(|other| *other == slot) else { return false };
        // The order stays: the lowest slot is taken first.
        free.free.remove(at);
        free.unassigned = free.unassigned.saturating_sub(u32::from(unassigned));
        true
    }

    /// Slots that copy-on-write segments could still take.
    pub(crate) fn spare(&self) -> usize {
        let free = self.free.lock();
        free.free.len().saturating_sub(free.unassigned as usize)
    }

    /// Frees a slot. `unassigned`: whether its segment has no slot now.
    pub(crate) fn release(&self, slot: SlotNo, unassigned: bool) {
        let mut free = self.free.lock();
        free.free.push(slot);
        free.unassigned += u32::from(unassigned);
    }

    /// All free slots.
    pub(crate) fn free_slots(&self) -> Vec<SlotNo> {
        self.free.lock().free.clone()
    }

    /// The number of segments with a slot.
    pub(crate) fn mapped(&self) -> u64 {
        let mapped = |slot: &&AtomicU32| !matches!(slot.load(Ordering::Relaxed), NO_SLOT | CORRUPT);
        self.slots.iter().filter(mapped).count() as u64
    }

    fn entry(&self, segment: SegmentNo, slot: Option<SlotNo>) -> MapEntry {
        let mut entry = [0; MAP_ENTRY as usize];
        if let Some(slot) = slot {
            let value = u64::from(slot.get()) + 1;
            LeWriter(&mut entry).u64(0, value).put(8, &tag(&self.key, u64::from(segment.get()), value));
        }
        entry
    }
}

/// Reads the entries of these segments from the medium, in order.
fn each_entry(
    medium: &dyn Medium,
    geometry: &Geometry,
    segments: Range<u64>,
    mut take: impl FnMut(u64, &MapEntry),
) -> Result<()> {
    let mut buf = vec![0; (1 << 20).min((segments.end - segments.start) * MAP_ENTRY) as usize];
    let mut read = segments.start;
    while read < segments.end {
        let count = (segments.end - read).min(buf.len() as u64 / MAP_ENTRY);
        let bytes = &mut buf[..(count * MAP_ENTRY) as usize];
        medium.read_at(geometry.map + read * MAP_ENTRY, bytes)?;
        (read..)
            .zip(bytes.as_chunks::<{ MAP_ENTRY as usize }>().0)
            .for_each(|(segment, entry)| take(segment, entry));
        read += count;
    }
    Ok(())
}

fn tag(key: &Secret<32>, segment: u64, value: u64) -> [u8; 8] {
    let hash = keyed_hash(key, &[&segment.to_le_bytes(), &value.to_le_bytes()]);
    hash[..8].try_into().expect("8 bytes")
}

/// The value of an entry, on a disk with `slots` slots at its largest possible size.
fn parse_entry(key: &Secret<32>, segment: u64, entry: &MapEntry, slots: u32) -> u32 {
    if *entry == [0; MAP_ENTRY as usize] {
        return NO_SLOT;
    }
    let value = LeReader(entry).u64(0);
    if value == 0 || value > u64::from(slots) || entry[8..] != tag(key, segment, value) {
        return CORRUPT;
    }
    value as u32
}
