//! The superblock: the state at the last checkpoint, in two files with the same content. One is
//! written after the other is durable, so one of them verifies at any power failure, and afterwards
//! the loss of either loses nothing. Between the two writes a checkpoint writes the further files
//! of doubled objects: meanwhile the new state is in the first superblock and in the journal, and
//! both lead to it.
//!
//! A third file holds the superblock as well. It is written before the third files of doubled
//! objects, the last ones with the state before: so the new state never depends on fewer than three
//! blocks. No opening uses it. A rescue of a damaged folder does, if one of the two files is lost.
//! The journal leads from it to the newest state as it does from the two.

use crate::commits::codec::{Commit, CommitState, MOST_NUMBER, Superblock, super_from_bytes, super_to_bytes};
use crate::keys::{NONCE, StoreKeys, TAG};
use lacuna_contracts::{Action, Error, Hint, Kind, LeReader, LeWriter, Result};
use lacuna_crypto::RandomSource;
use lacuna_medium::{Folder, FolderFile};
use std::sync::{Arc, OnceLock};

/// The names of the two files.
pub(crate) const NAMES: [&str; 2] = ["super.0", "super.1"];

/// The third file.
pub(crate) const THIRD: &str = "super.2";

/// Bytes of a file.
pub(crate) const SLOT: usize = 16384;

const MAGIC: &[u8; 8] = b"lacunasb";
/// Bytes before the sealed part; the seal binds all of them.
const HEAD: usize = 48;

/// The files of the superblock.
pub(crate) struct SuperblockFiles {
    folder: Arc<dyn Folder>,
    keys: Arc<StoreKeys>,
    random: Arc<dyn RandomSource>,
    files: [OnceLock<Arc<dyn FolderFile>>; 2],
    third: OnceLock<Arc<dyn FolderFile>>,
    /// The sequence number of the newest superblock.
    sequence: u64,
    /// The file that holds it and was written first: the other file may be older.
    newest_file: usize,
    /// Whether the other file holds it too.
    both: bool,
    /// Whether the third file is known to hold it.
    in_third: bool,
    /// The text of the newest superblock.
    text: Vec<u8>,
}

/// The superblock of an opening.
pub(crate) struct NewestSuperblock {
    pub(crate) found: Superblock,
    /// The superblock of the other file, if it is older: a checkpoint may not have reached the
    /// second files.
    pub(crate) older: Option<Superblock>,
    /// Why one of the files has no superblock: a crash while it was written, or damage.
    pub(crate) fault: Option<String>,
    /// Whether neither file has one, and this one is from the third file.
    pub(crate) is_by_third: bool,
}

/// How an opening uses the third file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThirdFile {
    /// It is not read.
    Unread,
    /// It is read, and rewritten if it does not hold the newest superblock.
    Maintained,
    /// Its superblock counts if one of the two files does not verify.
    Fallback,
}

/// A superblock that was read.
struct VerifiedSuperblock {
    sequence: u64,
    text: Vec<u8>,
    found: Superblock,
}

impl SuperblockFiles {
    /// New files without superblocks.
    pub(crate) fn create(
        folder: Arc<dyn Folder>,
        keys: Arc<StoreKeys>,
        random: Arc<dyn RandomSource>,
    ) -> Result<SuperblockFiles> {
        let files = [folder.create(NAMES[0])?, folder.create(NAMES[1])?];
        let third = folder.create(THIRD)?;
        files.iter().chain([&third]).try_for_each(|file| file.write_at(0, &[0; SLOT]))?;
        let (files, third) = (files.map(OnceLock::from), OnceLock::from(third));
        Ok(SuperblockFiles {
            folder,
            keys,
            random,
            files,
            third,
            sequence: 0,
            newest_file: 1,
            both: false,
            in_third: false,
            text: Vec::new(),
        })
    }

    /// The files, and the newest superblock in them. `synced` is for writable folders: then all
    /// that is read is durable.
    ///
    /// Errors: [`Kind::Corrupt`] if no superblock counts, or the error of reading one. A file that
    /// cannot be read does not prevent the use of the other.
    pub(crate) fn open(
        folder: Arc<dyn Folder>,
        keys: Arc<StoreKeys>,
        random: Arc<dyn RandomSource>,
        synced: bool,
        use_third: ThirdFile,
    ) -> Result<(SuperblockFiles, NewestSuperblock)> {
        let files = [OnceLock::new(), OnceLock::new()];
        let mut newest: Option<(usize, VerifiedSuperblock)> = None;
        let (mut older, mut both, mut fault, mut failed) = (None, false, None, None);
        for (nth, place) in files.iter().enumerate() {
            match read(&*folder, NAMES[nth], place, &keys, synced) {
                Ok(Some(read)) => match &newest {
                    Some((_, other)) if other.sequence >= read.sequence => {
                        both = other.sequence == read.sequence;
                        older = Some(read.found).filter(|_| !both);
                    }
                    _ => older = newest.replace((nth, read)).map(|(_, other)| other.found),
                },
                Ok(None) => fault = Some(format!("{} does not verify", NAMES[nth])),
                Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Io) => {
                    fault = Some(format!("{} cannot be read ({})", NAMES[nth], e.summary()));
                    failed = Some(e);
                }
                Err(e) => return Err(e),
            }
        }
        let third = OnceLock::new();
        let of_third = match use_third {
            ThirdFile::Unread => None,
            ThirdFile::Fallback if fault.is_none() => None,
            _ => match read(&*folder, THIRD, &third, &keys, synced) {
                Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Io) => None, // It is rewritten.
                read => read?,
            },
        };
        let held = of_third.as_ref().map(|read| (read.sequence, read.text.clone()));
        let is_by_third = newest.is_none();
        if use_third == ThirdFile::Fallback {
            if is_by_third {
                fault = Some(format!("neither {} nor {} verifies", NAMES[0], NAMES[1]));
            }
            // At most one of the two verifies, so there is no older one yet.
            let known = newest.as_ref().map(|(_, other)| other.sequence);
            if let Some(read) = of_third.filter(|read| known != Some(read.sequence)) {
                if known.is_some_and(|known| known > read.sequence) {
                    older = Some(read.found);
                } else {
                    older = newest.replace((0, read)).map(|(_, other)| other.found);
                }
            }
        }
        let (kept, VerifiedSuperblock { sequence, text, found }) =
            newest.ok_or_else(|| failed.unwrap_or_else(no_superblock))?;
        // In a partly synchronised folder a superblock of another state may have the same number.
        let in_third = held.is_some_and(|(number, held)| number == sequence && held == text);
        let files = SuperblockFiles {
            folder,
            keys,
            random,
            files,
            third,
            sequence,
            newest_file: kept,
            both,
            in_third,
            text,
        };
        Ok((files, NewestSuperblock { found, older, fault, is_by_third }))
    }

    /// Recreates lost files, without superblocks.
    pub(crate) fn recreate_lost(&self) -> Result<()> {
        let mut made = false;
        for (name, place) in NAMES.iter().chain([&THIRD]).zip(self.files.iter().chain([&self.third])) {
            if place.get().is_none() {
                let file = self.folder.create(name)?;
                place.get_or_init(|| file);
                made = true;
            }
        }
        if made { self.folder.sync_names("") } else { Ok(()) }
    }

    /// Whether both files hold the newest superblock, regardless of the third.
    pub(crate) fn is_in_both(&self) -> bool {
        self.both
    }

    /// Whether all three files hold it.
    pub(crate) fn is_in_all(&self) -> bool {
        self.both && self.in_third
    }

    /// Writes the next superblock and returns when it is durable in all files.
    pub(crate) fn write(
        &mut self,
        commit: &Commit,
        facts: &CommitState,
        root: Option<&[u8]>,
        area: u8,
    ) -> Result<()> {
        self.write_first(commit, facts, root, area)?;
        self.write_rest()
    }

    /// Writes the next superblock to the file that is not needed, and returns when it is durable
    /// there. Does nothing if the newest one is the same. Refuses one that could not be read again.
    pub(crate) fn write_first(
        &mut self,
        commit: &Commit,
        facts: &CommitState,
        root: Option<&[u8]>,
        area: u8,
    ) -> Result<()> {
        let text = super_to_bytes(commit, facts, root, area);
        super_from_bytes(&text)?;
        if self.text == text {
            return Ok(());
        }
        self.begin_text(&text)
    }

    /// Writes the newest superblock to the third file, if that does not hold it.
    pub(crate) fn complete_third(&mut self) -> Result<()> {
        if !self.in_third {
            put(&self.third, &self.seal(self.sequence, &self.text)?)?;
            self.in_third = true;
        }
        Ok(())
    }

    /// Writes the newest superblock to the other file and then to the third, if they do not hold
    /// it.
    pub(crate) fn write_rest(&mut self) -> Result<()> {
        if !self.both {
            put(&self.files[1 - self.newest_file], &self.seal(self.sequence, &self.text)?)?;
            self.both = true;
        }
        self.complete_third()
    }

    /// Writes a superblock with any text to all files.
    #[cfg(test)]
    pub(crate) fn write_text(&mut self, text: &[u8]) -> Result<()> {
        self.begin_text(text)?;
        self.write_rest()
    }

    fn begin_text(&mut self, text: &[u8]) -> Result<()> {
        let (nth, sequence) = (1 - self.newest_file, self.sequence + 1);
        let slot = self.seal(sequence, text)?;
        (self.both, self.in_third) = (false, false);
        put(&self.files[nth], &slot)?;
        // From here this one counts, even if the other file is never written.
        (self.newest_file, self.sequence, self.text) = (nth, sequence, text.to_vec());
        Ok(())
    }

    /// A superblock, ready to be written.
    fn seal(&self, sequence: u64, text: &[u8]) -> Result<Vec<u8>> {
        let mut drawn = [0; NONCE];
        self.random.fill(&mut drawn);
        let nonce = self.keys.nonce_of_superblock(drawn, sequence, text);
        let mut slot = vec![0; HEAD];
        LeWriter(&mut slot).put(0, MAGIC).u64(8, sequence).put(16, &nonce).u32(40, (text.len() + TAG) as u32);
        let sealed = self.keys.seal(&nonce, &slot, text)?;
        slot.extend(sealed);
        if slot.len() > SLOT || sequence > MOST_NUMBER {
            return Err(Error::new(Kind::Other, "cannot write the superblock of the vault")
                .found(format!("{} bytes, number {sequence}", slot.len()))
                .expected(format!("at most {SLOT} bytes, and at most {MOST_NUMBER}")));
        }
        Ok(slot)
    }
}

/// Writes a file and returns when it is durable.
fn put(place: &OnceLock<Arc<dyn FolderFile>>, slot: &[u8]) -> Result<()> {
    let file = place.get();
    let file = file.ok_or_else(|| Error::new(Kind::NotFound, "a superblock file of the vault is lost"))?;
    file.write_at(0, slot)?;
    file.sync().map_err(Error::of_sync)
}

/// Reads the superblock of a file and puts the file in `place`; `None` if no superblock verifies,
/// or there is no file.
fn read(
    folder: &dyn Folder,
    name: &str,
    place: &OnceLock<Arc<dyn FolderFile>>,
    keys: &StoreKeys,
    synced: bool,
) -> Result<Option<VerifiedSuperblock>> {
    let file = match folder.open(name) {
        Err(e) if e.kind() == Kind::NotFound => return Ok(None),
        other => other?,
    };
    let file = place.get_or_init(|| file);
    if synced {
        file.forget_cached()?;
    }
    let mut bytes = vec![0; SLOT];
    file.read_at(0, &mut bytes)?;
    parse(&bytes, keys)
}

/// The superblock in these bytes, if it verifies.
fn parse(bytes: &[u8], keys: &StoreKeys) -> Result<Option<VerifiedSuperblock>> {
    let head = LeReader(bytes);
    let (sequence, len) = (head.u64(8), head.u32(40) as usize);
    if head.array::<8>(0) != *MAGIC || len > SLOT - HEAD || sequence > MOST_NUMBER {
        return Ok(None);
    }
    let opened = keys.open(&head.array(16), &bytes[..HEAD], &bytes[HEAD..HEAD + len])?;
    opened.map(|text| Ok(VerifiedSuperblock { sequence, found: super_from_bytes(&text)?, text })).transpose()
}

fn no_superblock() -> Error {
    let [first, second] = NAMES;
    Error::new(Kind::Corrupt, "the vault has no superblock")
        .found(format!("neither `{first}` nor `{second}` of its directory verifies"))
        .expected("a superblock in at least one of these files")
        .hint(
            Hint::from("copy the remaining data out with ")
                .action(Action("vault::rescue"))
                .text(", or restore the directory from a backup, then ")
                .action(Action("vault::accept")),
        )
}

#[cfg(test)]
#[path = "superblock_tests.rs"]
mod tests;
