//! The checkpoint: names a stripe that was durable a short while ago, so that the end of the log is
//! found at once. Two blocks at a fixed place, written in turn when the schedule of the log syncs;
//! without a key both are always random bytes.

use crate::keys::{LevelKeys, Salt, domain, stripe_key};
use crate::log::medium_reader::MediumReader;
use crate::params::{CHECKPOINTS, Params};
use crate::place::StripeSeq;
use lacuna_contracts::{BLOCK_SIZE, Kind, LeReader, Result, Secret};
use lacuna_levels::{SALT_LEN, TAG_LEN};
use lacuna_medium::Medium;

const BODY_AT: usize = SALT_LEN + TAG_LEN;

/// A stripe that is durable, with all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub(crate) seq: StripeSeq,
    /// Whether the disk was closed after that stripe, which then holds nothing new.
    pub(crate) closed: bool,
}

impl Checkpoint {
    /// Writes the checkpoint to the place of its turn. It is durable after the next sync.
    pub(crate) fn write(
        self,
        medium: &dyn Medium,
        params: &Params,
        keys: &LevelKeys,
        drawn: &Salt,
    ) -> Result<()> {
        let turn = self.seq.0 / params.half_gap() % 2;
        self.write_to(turn, medium, keys, drawn)
    }

    /// Writes the checkpoint to place 0 or 1.
    pub(crate) fn write_to(
        self,
        turn: u64,
        medium: &dyn Medium,
        keys: &LevelKeys,
        drawn: &Salt,
    ) -> Result<()> {
        let mut block = [0; BLOCK_SIZE];
        let mut plain = [0; BLOCK_SIZE - BODY_AT];
        plain[..8].copy_from_slice(&self.seq.0.to_le_bytes());
        plain[8] = u8::from(self.closed);
        let salt = keys.salts().hedge(*drawn, &turn.to_le_bytes(), &plain);
        block[..SALT_LEN].copy_from_slice(&salt);
        let key = stripe_key(keys.level(0), &salt)?;
        let tag = key.seal(domain::CHECKPOINT, turn as u8, &[], &plain, &mut block[BODY_AT..]);
        block[SALT_LEN..BODY_AT].copy_from_slice(&tag);
        medium.write_at(CHECKPOINTS + turn * BLOCK_SIZE as u64, &block)
    }

    /// The later of the two checkpoints, if any is valid.
    pub(crate) fn read(medium: &MediumReader, level0: &Secret<32>) -> Result<Option<Checkpoint>> {
        let mut latest: Option<Checkpoint> = None;
        for turn in 0..2 {
            let mut block = [0; BLOCK_SIZE];
            // Skip one that cannot be read: the other, or the log itself, gives the end.
            match medium.read(0, CHECKPOINTS + turn * BLOCK_SIZE as u64, &mut block) {
                Err(e) if e.kind() == Kind::Io => continue,
                read => read?,
            }
            if let Some(found) = Self::parse(&block, turn as u8, level0)? {
                latest = Some(latest.filter(|before| before.seq > found.seq).unwrap_or(found));
            }
        }
        Ok(latest)
    }

    fn parse(block: &[u8; BLOCK_SIZE], turn: u8, level0: &Secret<32>) -> Result<Option<Checkpoint>> {
        let record = LeReader(block);
        let key = stripe_key(level0, &record.array(0))?;
        let mut body: [u8; BLOCK_SIZE - BODY_AT] = record.array(BODY_AT);
        let opened = key.open(domain::CHECKPOINT, turn, &[], &mut body, &record.array(SALT_LEN));
        let seq = StripeSeq::checked(LeReader(&body).u64(0)).filter(|_| opened.is_ok());
        Ok(seq.map(|seq| Checkpoint { seq, closed: body[8] == 1 }))
    }
}
