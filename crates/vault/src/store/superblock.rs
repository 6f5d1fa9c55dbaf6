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
    /// The text that was written last, if one was since the opening.
    last: Option<Vec<u8>>,
}

/// The superblock that counts.
pub(super) struct Newest {
    pub(super) found: Super,
    /// Whether the other slot holds something that is no superblock: a crash while it was written leaves that, or damage.
    pub(super) is_bad: bool,
}

impl SuperFile {
    /// A new file without superblocks.
    pub(super) fn create(folder: &dyn Folder) -> Result<SuperFile> {
        let file = folder.create(NAME)?;
        file.write_at(0, &[0; 2 * SLOT])?;
        Ok(SuperFile { file, sequence: 0, last: None })
    }

    /// The file, and what is in it. `synced` is for folders that may be written: what is read is durable then.
    pub(super) fn open(folder: &dyn Folder, keys: &StoreKeys, synced: bool) -> Result<(SuperFile, Newest)> {
        let file = folder.open(NAME).map_err(|e| match e.kind() {
            Kind::NotFound => lost("no file of this name"),
            _ => e,
        })?;
        if synced {
            file.forget_cached()?;
        }
        let (mut newest, mut is_bad, mut unreadable) = (None::<(u64, Super)>, false, None);
        for slot in 0..2 {
            let mut bytes = vec![0; SLOT];
            file.read_at(slot * SLOT as u64, &mut bytes)?;
            match parse(&bytes, slot, keys) {
                Ok(Some((sequence, found))) => {
                    if newest.as_ref().is_none_or(|(best, _)| sequence > *best) {
                        newest = Some((sequence, found));
                    }
                }
                // The second superblock of a vault comes with its first checkpoint.
                Ok(None) => is_bad |= bytes.iter().any(|byte| *byte != 0),
                Err(e) if e.kind() == Kind::Corrupt => (is_bad, unreadable) = (true, Some(e)),
                Err(e) => return Err(e),
            }
        }
        let (sequence, found) =
            newest.ok_or_else(|| unreadable.unwrap_or_else(|| lost("no slot that verifies")))?;
        Ok((SuperFile { file, sequence, last: None }, Newest { found, is_bad }))
    }

    /// Writes the next superblock and returns when it is durable. Refuses one that could not be read again.
    pub(super) fn write(
        &mut self,
        keys: &StoreKeys,
        random: &dyn RandomSource,
        (commit, facts): (&Commit, &Facts),
        root: Option<&[u8]>,
        area: u8,
    ) -> Result<()> {
        let plain = super_to_bytes(commit, facts, root, area);
        super_from_bytes(&plain)?;
        self.write_text(keys, random, &plain)
    }

    /// Writes the last one once more, over the one before it: then nothing needs what that one says. Whether one was written since
    /// the opening.
    pub(super) fn write_again(&mut self, keys: &StoreKeys, random: &dyn RandomSource) -> Result<bool> {
        let Some(plain) = self.last.clone() else { return Ok(false) };
        self.write_text(keys, random, &plain).map(|()| true)
    }

    /// Writes the next superblock with any text.
    pub(super) fn write_text(
        &mut self,
        keys: &StoreKeys,
        random: &dyn RandomSource,
        plain: &[u8],
    ) -> Result<()> {
        let sequence = self.sequence + 1;
        let mut nonce = [0; NONCE];
        random.fill(&mut nonce);
        let mut slot = vec![0; HEAD];
        RecordMut(&mut slot)
            .put(0, MAGIC)
            .u64(8, sequence)
            .put(16, &nonce)
            .u32(40, (plain.len() + TAG) as u32);
        let sealed = keys.seal(&nonce, &slot, plain)?;
        slot.extend(sealed);
        if slot.len() > SLOT || sequence > MOST_NUMBER {
            return Err(Error::new(Kind::Other, "cannot write the superblock of the vault")
                .found(format!("{} bytes, number {sequence}", slot.len()))
                .expected(format!("at most {SLOT} bytes, and at most {MOST_NUMBER}")));
        }
        self.file.write_at(sequence % 2 * SLOT as u64, &slot)?;
        self.file.sync()?;
        self.sequence = sequence;
        self.last = Some(plain.to_vec());
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
        .remedy("restore the directory from a backup, then `lacuna vault accept DIR`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_core::Secret;
    use lacuna_crypto::SeededRandom;
    use lacuna_sim::CrashFolder;

    #[test]
    fn what_could_not_be_read_is_not_written_and_hides_no_other() {
        let keys = StoreKeys::derive(&Secret::copy_from(&[1; 32]), &[2; 16]);
        let (folder, random) = (CrashFolder::new(), SeededRandom::new(1));
        let commit = Commit { machine: [3; 16], number: 4, digest: [5; 32], before: [6; 32] };
        let facts = Facts { machine: [3; 16], next_object: 9, object_limit: 9, ..Facts::default() };
        let beyond = Facts { appendable: vec![(4, u64::MAX)], ..facts.clone() };
        let mut file = SuperFile::create(&folder).unwrap();
        file.write(&keys, &random, (&commit, &facts), Some(b"root"), 1).unwrap();
        let refused = file.write(&keys, &random, (&commit, &beyond), None, 0).unwrap_err();
        assert_eq!(refused.kind(), Kind::Corrupt);
        let (_, newest) = SuperFile::open(&folder, &keys, true).unwrap();
        assert!(!newest.is_bad);
        // Somebody wrote it all the same.
        file.write_text(&keys, &random, &super_to_bytes(&commit, &beyond, None, 0)).unwrap();
        let (_, newest) = SuperFile::open(&folder, &keys, true).unwrap();
        assert_eq!((newest.found.root.as_deref(), newest.is_bad), (Some(&b"root"[..]), true));
        file.write_text(&keys, &random, b"nonsense").unwrap();
        assert_eq!(SuperFile::open(&folder, &keys, true).err().map(|e| e.kind()), Some(Kind::Corrupt));
    }
}
