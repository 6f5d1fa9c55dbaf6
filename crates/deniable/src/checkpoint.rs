//! The checkpoint: which stripe was durable a short while ago, so that the head of the log is found at once. Two
//! blocks at a fixed place, written in turn whenever the schedule of the log syncs; without a key both are
//! random bytes, always.

use crate::keys::{domain, stripe_key};
use crate::params::{CHECKPOINTS, Params};
use crate::summary::MOST_SEQ;
use lacuna_core::{BLOCK_SIZE, Record, Result, Secret};
use lacuna_levels::{SALT_LEN, TAG_LEN, again};
use lacuna_medium::Medium;

const BODY_AT: usize = SALT_LEN + TAG_LEN;

/// A stripe that is durable, with all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub(crate) seq: u64,
    /// Whether the disk was closed after that stripe, which then holds nothing that is new.
    pub(crate) closed: bool,
}

impl Checkpoint {
    /// Writes it to the one of the two places that is its turn. Durable after the next sync.
    pub(crate) fn write(
        self,
        medium: &dyn Medium,
        params: &Params,
        level0: &Secret<32>,
        salt: &[u8; SALT_LEN],
    ) -> Result<()> {
        let turn = self.seq / params.half_gap() % 2;
        self.write_to(turn, medium, level0, salt)
    }

    /// Writes it to place 0 or 1.
    pub(crate) fn write_to(
        self,
        turn: u64,
        medium: &dyn Medium,
        level0: &Secret<32>,
        salt: &[u8; SALT_LEN],
    ) -> Result<()> {
        let mut block = [0; BLOCK_SIZE];
        block[..SALT_LEN].copy_from_slice(salt);
        let mut plain = [0; BLOCK_SIZE - BODY_AT];
        plain[..8].copy_from_slice(&self.seq.to_le_bytes());
        plain[8] = u8::from(self.closed);
        let key = stripe_key(level0, salt)?;
        let tag = key.seal(domain::CHECKPOINT, turn as u8, &[], &plain, &mut block[BODY_AT..]);
        block[SALT_LEN..BODY_AT].copy_from_slice(&tag);
        medium.write_at(CHECKPOINTS + turn * BLOCK_SIZE as u64, &block)
    }

    /// The later of the two, if any is sound.
    pub(crate) fn read(medium: &dyn Medium, level0: &Secret<32>) -> Result<Option<Checkpoint>> {
        let mut latest: Option<Checkpoint> = None;
        for turn in 0..2 {
            let mut block = [0; BLOCK_SIZE];
            // One that cannot be read is none: the other, or the log itself, says where it ends.
            if again(|| medium.read_at(CHECKPOINTS + turn * BLOCK_SIZE as u64, &mut block)).is_err() {
                continue;
            }
            if let Some(found) = Self::parse(&block, turn as u8, level0)? {
                latest = Some(latest.filter(|before| before.seq > found.seq).unwrap_or(found));
            }
        }
        Ok(latest)
    }

    fn parse(block: &[u8; BLOCK_SIZE], turn: u8, level0: &Secret<32>) -> Result<Option<Checkpoint>> {
        let key = stripe_key(level0, block[..SALT_LEN].try_into().expect("the salt"))?;
        let tag = block[SALT_LEN..BODY_AT].try_into().expect("the tag");
        let mut body = *block;
        let opened = key.open(domain::CHECKPOINT, turn, &[], &mut body[BODY_AT..], &tag);
        let seq = Record(&body).u64(BODY_AT);
        let sane = opened.is_ok() && seq <= MOST_SEQ;
        Ok(sane.then_some(Checkpoint { seq, closed: body[BODY_AT + 8] == 1 }))
    }
}
