//! The public parameters of a disk, the layout of the medium that follows from them, and the
//! arithmetic of the ring. The byte-exact page is `docs/format/deniable.md`; a test compares the
//! two.

use crate::geometry::{HIDDEN_LEVELS, StripeGeometry};
use crate::place::StripeSeq;
use lacuna_contracts::{BLOCK_SIZE, Error, Hint, Kind, LeWriter, ParamsReader, Result, Secret, Setting};
use lacuna_crypto::derive;
use lacuna_levels::{ClosingCover, DISCARD_SLOTS, MAX_LEVEL_BLOCKS, largest_level};
use std::ops::Range;

/// The version of the format.
pub const VERSION: u16 = 1;
/// Bytes of the medium that belong to the volume header.
pub(crate) const HEADER_AREA: u64 = 1 << 20;
/// Offset of the two checkpoints, one block each.
pub(crate) const CHECKPOINTS: u64 = HEADER_AREA;
/// Offset of the log. It aligns stripes of the default geometry, 256 KiB, to their length.
pub(crate) const LOG_START: u64 = HEADER_AREA + (256 << 10);
/// Length of the encoded parameters.
pub(crate) const PARAMS_LEN: usize = 48;
/// The fewest stripes of a log.
pub(crate) const MIN_STRIPES: u64 = 64;
/// Bytes of the log in the gap of a large disk: the most that may be written and not durable. One
/// sync releases half of it. The disk takes in a burst of this length at the speed of the page
/// cache.
const GAP_BYTES: u64 = 512 << 20;
/// The longest cycle. Opening reads the summaries of up to one and a half cycles; a longer cycle
/// would save little.
const MAX_CYCLE: u64 = 4096;
/// A hidden level is shorter than the largest that fits by up to this fraction: a sixteenth.
const LENGTH_SPREAD: u64 = 16;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// The public parameters of a deniable disk, kept in the volume header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// How a stripe is divided.
    pub geometry: StripeGeometry,
    /// The spare factor ρ of the paper, in thousandths of the live slots.
    pub spare_permille: u16,
    /// Stripes ahead of the head that no longer hold the only copy of a block.
    pub gap: u32,
    /// Stripes within which a map is written out once.
    pub cycle: u32,
    /// Stripes of the log.
    pub stripes: u64,
    /// Length of level 0 in blocks.
    pub blocks: u64,
    /// Milliseconds between two refresh stripes, 0 for none.
    pub cover_millis: u32,
}

impl Params {
    /// Plans the largest disk for a medium of `room` bytes. `spare_permille` is ρ in thousandths
    /// (50 to 900), `cover_millis` the time between two refresh stripes.
    ///
    /// Errors: [`Kind::Usage`] for numbers outside the limits or a medium too small for the
    /// geometry.
    pub fn plan(
        room: u64,
        geometry: StripeGeometry,
        spare_permille: u16,
        cover_millis: u32,
    ) -> Result<Params> {
        let refused = || Error::new(Kind::Usage, "cannot lay out a deniable disk");
        if !geometry.fits() {
            return Err(refused()
                .found(format!("{} public and {} hidden slots in a stripe", geometry.public, geometry.hidden))
                .expected("at least one of each, and no more than one summary block can list")
                .hint("choose for example 32 and 31"));
        }
        if !(50..=900).contains(&spare_permille) {
            return Err(refused()
                .found(format!("a spare factor of {}", f64::from(spare_permille) / 1000.0))
                .expected("0.05 to 0.9"));
        }
        let stripe = geometry.blocks() * BLOCK;
        let stripes = (room.saturating_sub(LOG_START) / stripe).min(MAX_LEVEL_BLOCKS);
        let gap = (GAP_BYTES / stripe).min(stripes / 16).max(4) / 2 * 2;
        let mut params =
            Params { geometry, spare_permille, gap: gap as u32, cycle: 0, stripes, blocks: 0, cover_millis };
        if stripes >= MIN_STRIPES {
            params.cycle = (params.stride() / 4).clamp(4, MAX_CYCLE) as u32;
            params.blocks = largest_level(params.usable(params.public_slots()));
        }
        if params.blocks == 0 || params.max_blocks(1) == 0 {
            let least = LOG_START + stripe * MIN_STRIPES.max(2 * DISCARD_SLOTS);
            return Err(refused()
                .found(format!("a medium of {room} bytes"))
                .expected(format!("at least {least} bytes for stripes of {} blocks", geometry.blocks()))
                .hint(
                    Hint::from("use a larger medium, or fewer slots in a stripe: ")
                        .setting(Setting("geometry")),
                ));
        }
        Ok(params)
    }

    /// The parameters as the header stores them.
    pub fn encode(&self) -> [u8; PARAMS_LEN] {
        let mut out = [0; PARAMS_LEN];
        let mut record = LeWriter(&mut out);
        record.u16(0, VERSION).put(2, &[self.geometry.public, self.geometry.hidden]);
        record.u16(4, self.spare_permille).u32(8, self.gap).u32(12, self.cycle);
        record.u64(16, self.stripes).u64(24, self.blocks).u32(40, self.cover_millis);
        out
    }

    /// Parses the output of [`Params::encode`]. Errors: [`Kind::Corrupt`] for bytes that this
    /// version could not have written.
    pub fn parse(bytes: &[u8]) -> Result<Params> {
        let record = ParamsReader::new("deniable", bytes, PARAMS_LEN)?;
        let version = record.u16(0);
        if version != VERSION {
            return Err(record.invalid(format!("version {version}"), format!("version {VERSION}")));
        }
        let params = Params {
            geometry: StripeGeometry { public: bytes[2], hidden: bytes[3] },
            spare_permille: record.u16(4),
            gap: record.u32(8),
            cycle: record.u32(12),
            stripes: record.u64(16),
            blocks: record.u64(24),
            cover_millis: record.u32(40),
        };
        let zero = record.is_zero(6..8) && record.is_zero(32..40) && record.is_zero(44..);
        if zero && params.is_valid() {
            Ok(params)
        } else {
            Err(record.invalid(format!("{params:?}"), "values within the format's limits"))
        }
    }

    fn is_valid(&self) -> bool {
        self.geometry.fits()
            && (50..=900).contains(&self.spare_permille)
            && (MIN_STRIPES..=MAX_LEVEL_BLOCKS).contains(&self.stripes)
            && self.gap >= 4
            && self.gap.is_multiple_of(2)
            && u64::from(self.gap) <= self.stripes / 8
            && self.cycle >= 4
            && u64::from(self.cycle) <= self.stride() / 2
            && (1..=largest_level(self.usable(self.public_slots()))).contains(&self.blocks)
            && self.max_blocks(1) > 0
    }

    /// The number of hidden levels that a disk with these parameters can have, whether or not any
    /// exists.
    pub fn hidden_levels(&self) -> u8 {
        (1..=HIDDEN_LEVELS as u8).take_while(|level| self.max_blocks(*level) > 0).count() as u8
    }

    /// The most blocks that a hidden level can have, by the public parameters: a level is up to a
    /// sixteenth shorter. 0 for a level without slots.
    pub fn max_blocks(&self, level: u8) -> u64 {
        largest_level(self.usable(self.slots(level).len()))
    }

    /// Length of a hidden level in blocks. It is derived from the level's key, so that no public
    /// number implies it. `level_key` is the key of the level on this disk.
    pub(crate) fn hidden_blocks(&self, level: u8, level_key: &Secret<32>) -> u64 {
        let most = self.max_blocks(level);
        let drawn: Secret<8> = derive(level_key, "deniable length", &[]);
        most - u64::from_le_bytes(*drawn.expose()) % (most / LENGTH_SPREAD + 1)
    }

    /// The hidden slots of a stripe that belong to a hidden level. Each level has three quarters of
    /// the slots that the levels below it left, rounded down, and level 1 has at least one. The
    /// remaining slots belong to no level.
    pub fn slots(&self, level: u8) -> Range<usize> {
        let all = self.hidden_slots();
        let share = |level: u8, left: usize| (left * 3 / 4).max(usize::from(level == 1 && left > 0));
        let first = (1..level).fold(0, |first, below| first + share(below, all - first));
        first..first + share(level, all - first)
    }

    /// The end of the disk on its medium: the offset of the first byte after it.
    pub fn end(&self) -> u64 {
        LOG_START + self.stripes * self.stripe_len() as u64
    }

    /// The stripes of cover that closing writes before the last stripe: at most an eighth of the
    /// log.
    pub fn closing_cover(&self) -> ClosingCover {
        ClosingCover::new(self.stripe_len() as u64, self.stripes / 8)
    }

    /// Bytes in a stripe.
    pub(crate) fn stripe_len(&self) -> usize {
        self.geometry.blocks() as usize * BLOCK_SIZE
    }

    pub(crate) fn public_slots(&self) -> usize {
        usize::from(self.geometry.public)
    }

    pub(crate) fn hidden_slots(&self) -> usize {
        usize::from(self.geometry.hidden)
    }

    /// Stripes between a stripe that holds a block and the stripe that carries it: stripe *q*
    /// carries the valid blocks of stripe *q* − stride. The stride is the length of the ring less
    /// the gap.
    pub(crate) fn stride(&self) -> u64 {
        self.stripes - u64::from(self.gap)
    }

    /// Slots that live data and maps may fill if a stripe has `slots` of them: a share of ρ stays
    /// spare.
    fn usable(&self, slots: usize) -> u64 {
        let live = self.stride() * slots as u64;
        live - live.saturating_mul(u64::from(self.spare_permille)) / 1000
    }

    /// Public slots of a stripe that first writes of blocks may fill. Half of the spare stays
    /// spread over all stripes, so that a log full of data that never changes still has room
    /// everywhere.
    pub(crate) fn public_first_writes(&self) -> usize {
        let slots = self.public_slots();
        (slots - slots * usize::from(self.spare_permille) / 2000).max(1)
    }

    /// The same for the slots of a hidden level. All of the spare is spread, so that a hidden flush
    /// seldom waits for a lap, except in a level with a spare of less than one slot. At least 1.
    pub(crate) fn hidden_first_writes(&self, level: u8) -> usize {
        let slots = self.slots(level).len();
        (slots - slots * usize::from(self.spare_permille) / 1000).max(1)
    }

    /// Slots of a hidden level that overwrites may fill. A third of the spare stays free: otherwise
    /// a stream of overwrites would fill stripe after stripe to the last slot, and a lap later none
    /// of them would have room for a new block.
    pub(crate) fn hidden_overwrites(&self, level: u8) -> usize {
        let slots = self.slots(level).len();
        slots - slots * usize::from(self.spare_permille) / 3000
    }

    /// Byte offset of stripe `seq`.
    pub(crate) fn offset(&self, seq: StripeSeq) -> u64 {
        LOG_START + seq.0 % self.stripes * self.stripe_len() as u64
    }

    /// The stripe that `seq` carries, if there is one.
    pub(crate) fn carried_stripe(&self, seq: StripeSeq) -> Option<StripeSeq> {
        seq.back(self.stride())
    }

    /// The stripe that holds, when `head` is the last stripe, the block that stripe `origin` took
    /// in: every `stride` stripes a block is carried to the same slot.
    pub(crate) fn current_stripe(&self, origin: StripeSeq, head: StripeSeq) -> StripeSeq {
        debug_assert!(origin <= head, "a block is looked for in a stripe that was written");
        StripeSeq(head.0 - (head.0 - origin.0) % self.stride())
    }

    /// Stripes between two syncs of the schedule.
    pub(crate) fn half_gap(&self) -> u64 {
        u64::from(self.gap) / 2
    }

    /// The last stripe that the schedule alone makes durable before `seq` is written. A sync begins
    /// every half gap, and has the next half gap to finish.
    pub(crate) fn synced_before(&self, seq: StripeSeq) -> StripeSeq {
        let half = self.half_gap();
        StripeSeq(((seq.0 - 1) / half * half).saturating_sub(half))
    }

    /// Whether the schedule syncs after stripe `seq`.
    pub(crate) fn is_sync_due(&self, seq: StripeSeq) -> bool {
        seq.0.is_multiple_of(self.half_gap())
    }

    /// Whether a checkpoint is written before stripe `seq`. It calls stripe `synced_before(seq)`
    /// durable; `seq` is the first stripe that relies on that.
    pub(crate) fn is_checkpoint_due(&self, seq: StripeSeq) -> bool {
        self.is_sync_due(StripeSeq(seq.0 - 1)) && self.synced_before(seq) > StripeSeq::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_round_trip_and_garbage_is_rejected() {
        for geometry in
            [StripeGeometry::DEFAULT, StripeGeometry::PAPER, StripeGeometry { public: 8, hidden: 4 }]
        {
            for room in [24 << 20, 1 << 30, 1 << 40] {
                let p = Params::plan(room, geometry, 200, 1000).unwrap();
                assert!(p.end() <= room);
                assert_eq!(Params::parse(&p.encode()).unwrap(), p);
                assert!(p.max_blocks(1) > 0 && p.hidden_levels() >= 1);
                for at in [0, 2, 5, 6, 11, 15, 23, 31, 39, 45] {
                    let mut bytes = p.encode();
                    bytes[at] ^= 0x81;
                    assert_eq!(Params::parse(&bytes).unwrap_err().kind(), Kind::Corrupt, "byte {at}");
                }
            }
        }
        assert!(Params::parse(b"short").is_err());
        assert_eq!(Params::plan(2 << 20, StripeGeometry::DEFAULT, 200, 0).unwrap_err().kind(), Kind::Usage);
        assert!(Params::plan(1 << 30, StripeGeometry { public: 0, hidden: 1 }, 200, 0).is_err());
        assert!(Params::plan(1 << 30, StripeGeometry::DEFAULT, 20, 0).is_err());
    }

    #[test]
    fn each_hidden_level_gets_three_quarters_of_the_remaining_slots() {
        let plan = |hidden| Params::plan(1 << 30, StripeGeometry { public: 8, hidden }, 200, 0).unwrap();
        let slots = |p: &Params| {
            let ranges = (1..=p.hidden_levels()).map(|level| p.slots(level));
            ranges.map(|range| (range.start, range.end)).collect::<Vec<_>>()
        };
        assert_eq!(slots(&plan(31)), [(0, 23), (23, 29), (29, 30)]);
        assert_eq!([1, 4].map(|hidden| slots(&plan(hidden))), [[(0, 1)], [(0, 3)]]);
        assert_eq!(slots(&plan(5)), [(0, 3), (3, 4)]);
        let p = plan(31);
        let lengths = (0..100u8).map(|key| p.hidden_blocks(2, &Secret::copy_from(&[key; 32])));
        let (least, most) = lengths.fold((u64::MAX, 0), |(least, most), l| (least.min(l), most.max(l)));
        assert!(most <= p.max_blocks(2) && most > p.max_blocks(2) * 99 / 100);
        assert!(least >= p.max_blocks(2) * 15 / 16 - 1 && least < p.max_blocks(2) * 96 / 100);
    }

    #[test]
    fn a_block_is_carried_before_it_is_overwritten_and_synced_between() {
        for geometry in [StripeGeometry::DEFAULT, StripeGeometry::PAPER] {
            let p = Params::plan(64 << 20, geometry, 200, 0).unwrap();
            for seq in StripeSeq(1).up_to(StripeSeq(3 * p.stripes)) {
                let Some(carried) = p.carried_stripe(seq) else { continue };
                // Stripe `overwrites` takes the place of `carried` a gap later, after a sync.
                let overwrites = carried + p.stripes;
                assert_eq!(overwrites, seq + u64::from(p.gap));
                assert!(p.synced_before(overwrites) >= seq);
                assert_eq!(p.current_stripe(carried, seq), seq);
                assert_eq!(p.current_stripe(carried, StripeSeq(seq.0 - 1)), carried);
            }
        }
    }
}
