//! The superblock: the state at the last checkpoint, in two slots that are written in turn.

use super::content::{Commit, Facts, MOST_NUMBER, Super, super_from_bytes, super_to_bytes};
use super::keys::{NONCE, StoreKeys, TAG};
use lacuna_core::{Error, Kind, Record, RecordMut, Result};
use lacuna_crypto::RandomSource;
use lacuna_medium::{Folder, FolderFile};
use std::sync::Arc;

/// The file.
pub(super) const NAME: &str = "super";

/// Bytes of a slot.
pub(super) const SLOT: usize = 16384;

const MAGIC: &[u8; 8] = b"lacunasb";
/// Bytes before the sealed part, all of which the seal binds.
const HEAD: usize = 48;

/// The file of superblocks.
pub(super) struct SuperFile {
    file: Arc<dyn FolderFile>,
    /// Of the newest slot.
    sequence: u64,
}

impl SuperFile {
    /// A new file without superblocks.
    pub(super) fn create(folder: &dyn Folder) -> Result<SuperFile> {
        let file = folder.create(NAME)?;
        file.write_at(0, &[0; 2 * SLOT])?;
        Ok(SuperFile { file, sequence: 0 })
    }

    /// The file and the newest superblock in it. `synced` is for folders that may be written: what is read is durable then.
    pub(super) fn open(folder: &dyn Folder, keys: &StoreKeys, synced: bool) -> Result<(SuperFile, Super)> {
        let file = folder.open(NAME).map_err(|e| match e.kind() {
            Kind::NotFound => lost("no file of this name"),
            _ => e,
        })?;
        if synced {
            file.forget_cached()?;
        }
        let mut newest: Option<(u64, Super)> = None;
        for slot in 0..2 {
            let mut bytes = vec![0; SLOT];
            file.read_at(slot * SLOT as u64, &mut bytes)?;
            if let Some((sequence, found)) = parse(&bytes, slot, keys)?
                && newest.as_ref().is_none_or(|(best, _)| sequence > *best)
            {
                newest = Some((sequence, found));
            }
        }
        let (sequence, found) = newest.ok_or_else(|| lost("no slot that verifies"))?;
        Ok((SuperFile { file, sequence }, found))
    }

    /// Writes the next superblock and returns when it is durable.
    pub(super) fn write(
        &mut self,
        keys: &StoreKeys,
        random: &dyn RandomSource,
        (commit, facts): (&Commit, &Facts),
        root: Option<&[u8]>,
        area: u8,
    ) -> Result<()> {
        let plain = super_to_bytes(commit, facts, root, area);
        let sequence = self.sequence + 1;
        let mut nonce = [0; NONCE];
        random.fill(&mut nonce);
        let mut slot = vec![0; HEAD];
        RecordMut(&mut slot)
            .put(0, MAGIC)
            .u64(8, sequence)
            .put(16, &nonce)
            .u32(40, (plain.len() + TAG) as u32);
        let sealed = keys.seal(&nonce, &slot, &plain)?;
        slot.extend(sealed);
        if slot.len() > SLOT || sequence > MOST_NUMBER {
            return Err(Error::new(Kind::Other, "cannot write the superblock of the vault")
                .found(format!("{} bytes, number {sequence}", slot.len()))
                .expected(format!("at most {SLOT} bytes, and at most {MOST_NUMBER}")));
        }
        self.file.write_at(sequence % 2 * SLOT as u64, &slot)?;
        self.file.sync()?;
        self.sequence = sequence;
        Ok(())
    }
}

/// The superblock in a slot, if one verifies.
fn parse(bytes: &[u8], slot: u64, keys: &StoreKeys) -> Result<Option<(u64, Super)>> {
    let head = Record(bytes);
    let (sequence, len) = (head.u64(8), head.u32(40) as usize);
    if head.array::<8>(0) != *MAGIC || len > SLOT - HEAD || sequence % 2 != slot || sequence > MOST_NUMBER {
        return Ok(None);
    }
    let opened = keys.open(&head.array(16), &bytes[..HEAD], &bytes[HEAD..HEAD + len])?;
    opened.map(|plain| Ok((sequence, super_from_bytes(&plain)?))).transpose()
}

fn lost(found: &str) -> Error {
    Error::new(Kind::Corrupt, "the vault has no superblock")
        .found(format!("{found} in the file `{NAME}` of its directory"))
        .expected("at least one of its two superblocks")
        .remedy("restore the directory from a backup, then `lacuna vault accept`")
}
