//! The superblock: the state at the last checkpoint, in two files with the same content. One is
//! written after the other is durable, so one of them verifies at any power failure, and afterwards
//! the loss of either loses nothing. Between the two writes a checkpoint writes the further files
//! of doubled objects: meanwhile the new state is in the first superblock and in the journal, and
//! both lead to it.
//!
//! A third file holds the superblock as well, written last. No opening uses it, but the rescue of a
//! damaged folder starts there if the two are lost. The journal leads from the third file to the
//! newest state as it does from the two.

use crate::content::{Commit, Facts, MOST_NUMBER, Super, super_from_bytes, super_to_bytes};
use crate::keys::{NONCE, StoreKeys, TAG};
use lacuna_contracts::{Action, Advice, Error, Kind, Record, RecordMut, Result};
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
pub(crate) struct SuperFiles {
    files: [OnceLock<Arc<dyn FolderFile>>; 2],
    third: OnceLock<Arc<dyn FolderFile>>,
    /// The sequence number of the newest superblock.
    sequence: u64,
    /// The file that holds it and was written first: the other file may be older.
    kept: usize,
    /// Whether the other file holds it too.
    both: bool,
    /// Whether the third file is known to hold it.
    in_third: bool,
    /// The text of the newest superblock.
    text: Vec<u8>,
}

/// The superblock of an opening.
pub(crate) struct Newest {
    pub(crate) found: Super,
    /// The superblock of the other file, if it is older: a checkpoint may not have reached the
    /// second files.
    pub(crate) older: Option<Super>,
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
    Kept,
    /// Its superblock counts if neither of the two files verifies.
    Counts,
}

/// A superblock that was read.
struct Verified {
    sequence: u64,
    text: Vec<u8>,
    found: Super,
}

impl SuperFiles {
    /// New files without superblocks.
    pub(crate) fn create(folder: &dyn Folder) -> Result<SuperFiles> {
        let files = [folder.create(NAMES[0])?, folder.create(NAMES[1])?];
        let third = folder.create(THIRD)?;
        files.iter().chain([&third]).try_for_each(|file| file.write_at(0, &[0; SLOT]))?;
        let (files, third) = (files.map(OnceLock::from), OnceLock::from(third));
        Ok(SuperFiles { files, third, sequence: 0, kept: 1, both: false, in_third: false, text: Vec::new() })
    }

    /// The files, and the newest superblock in them. `synced` is for writable folders: then all
    /// that is read is durable.
    ///
    /// Errors: [`Kind::Corrupt`] if no superblock counts, or the error of reading one. A file that
    /// cannot be read does not prevent the use of the other.
    pub(crate) fn open(
        folder: &dyn Folder,
        keys: &StoreKeys,
        synced: bool,
        use_third: ThirdFile,
    ) -> Result<(SuperFiles, Newest)> {
        let files = [OnceLock::new(), OnceLock::new()];
        let (mut newest, mut both, mut fault, mut failed) = (None::<(usize, Verified)>, false, None, None);
        let mut older = None;
        for (nth, place) in files.iter().enumerate() {
            match read(folder, NAMES[nth], place, keys, synced) {
                Ok(Some(read)) => match &newest {
                    Some((_, other)) if other.sequence >= read.sequence => {
                        both = other.sequence == read.sequence;
                        older = Some(read.found).filter(|_| !both);
                    }
                    _ => older = newest.replace((nth, read)).map(|(_, other)| other.found),
                },
                Ok(None) => fault = Some(format!("{} does not verify", NAMES[nth])),
                Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Io) => {
                    fault = Some(format!("{} cannot be read ({})", NAMES[nth], e.finding()));
                    failed = Some(e);
                }
                Err(e) => return Err(e),
            }
        }
        let third = OnceLock::new();
        let of_third = match use_third {
            ThirdFile::Unread => None,
            ThirdFile::Counts if newest.is_some() => None,
            _ => match read(folder, THIRD, &third, keys, synced) {
                // The file is rewritten.
                Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Io) => None,
                read => read?,
            },
        };
        let held = of_third.as_ref().map(|read| (read.sequence, read.text.clone()));
        let is_by_third = newest.is_none();
        if is_by_third && use_third == ThirdFile::Counts {
            fault = Some(format!("neither {} nor {} verifies", NAMES[0], NAMES[1]));
            newest = of_third.map(|read| (0, read));
        }
        let (kept, Verified { sequence, text, found }) = newest.ok_or_else(|| failed.unwrap_or_else(lost))?;
        // In a partly synchronised folder a superblock of another state may have the same number.
        let in_third = held.is_some_and(|(number, held)| number == sequence && held == text);
        let files = SuperFiles { files, third, sequence, kept, both, in_third, text };
        Ok((files, Newest { found, older, fault, is_by_third }))
    }

    /// Recreates lost files, without superblocks.
    pub(crate) fn make_lost(&self, folder: &dyn Folder) -> Result<()> {
        let mut made = false;
        for (name, place) in NAMES.iter().chain([&THIRD]).zip(self.files.iter().chain([&self.third])) {
            if place.get().is_none() {
                let file = folder.create(name)?;
                place.get_or_init(|| file);
                made = true;
            }
        }
        if made { folder.sync_names("") } else { Ok(()) }
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
        keys: &StoreKeys,
        random: &dyn RandomSource,
        commit: &Commit,
        facts: &Facts,
        root: Option<&[u8]>,
        area: u8,
    ) -> Result<()> {
        self.begin(keys, random, commit, facts, root, area)?;
        self.complete(keys, random)
    }

    /// Writes the next superblock to the file that is not needed, and returns when it is durable
    /// there. Does nothing if the newest one is the same. Refuses one that could not be read again.
    pub(crate) fn begin(
        &mut self,
        keys: &StoreKeys,
        random: &dyn RandomSource,
        commit: &Commit,
        facts: &Facts,
        root: Option<&[u8]>,
        area: u8,
    ) -> Result<()> {
        let text = super_to_bytes(commit, facts, root, area);
        super_from_bytes(&text)?;
        if self.text == text {
            return Ok(());
        }
        self.begin_text(keys, random, &text)
    }

    /// Writes the newest superblock to the other file and then to the third, if they do not hold
    /// it.
    pub(crate) fn complete(&mut self, keys: &StoreKeys, random: &dyn RandomSource) -> Result<()> {
        if !self.both {
            let slot = seal(keys, random, self.sequence, &self.text)?;
            put(&self.files[1 - self.kept], &slot)?;
            self.both = true;
        }
        if !self.in_third {
            put(&self.third, &seal(keys, random, self.sequence, &self.text)?)?;
            self.in_third = true;
        }
        Ok(())
    }

    /// Writes a superblock with any text to all files.
    #[cfg(test)]
    pub(crate) fn write_text(
        &mut self,
        keys: &StoreKeys,
        random: &dyn RandomSource,
        text: &[u8],
    ) -> Result<()> {
        self.begin_text(keys, random, text)?;
        self.complete(keys, random)
    }

    fn begin_text(&mut self, keys: &StoreKeys, random: &dyn RandomSource, text: &[u8]) -> Result<()> {
        let (nth, sequence) = (1 - self.kept, self.sequence + 1);
        let slot = seal(keys, random, sequence, text)?;
        (self.both, self.in_third) = (false, false);
        put(&self.files[nth], &slot)?;
        // From here this one counts, even if the other file is never written.
        (self.kept, self.sequence, self.text) = (nth, sequence, text.to_vec());
        Ok(())
    }
}

/// Writes a file and returns when it is durable.
fn put(place: &OnceLock<Arc<dyn FolderFile>>, slot: &[u8]) -> Result<()> {
    let file = place.get();
    let file = file.ok_or_else(|| Error::new(Kind::NotFound, "a superblock file of the vault is lost"))?;
    file.write_at(0, slot)?;
    file.sync().map_err(Error::of_sync)
}

/// A superblock, ready to be written.
fn seal(keys: &StoreKeys, random: &dyn RandomSource, sequence: u64, text: &[u8]) -> Result<Vec<u8>> {
    let mut drawn = [0; NONCE];
    random.fill(&mut drawn);
    let nonce = keys.nonce_of_superblock(drawn, sequence, text);
    let mut slot = vec![0; HEAD];
    RecordMut(&mut slot).put(0, MAGIC).u64(8, sequence).put(16, &nonce).u32(40, (text.len() + TAG) as u32);
    let sealed = keys.seal(&nonce, &slot, text)?;
    slot.extend(sealed);
    if slot.len() > SLOT || sequence > MOST_NUMBER {
        return Err(Error::new(Kind::Other, "cannot write the superblock of the vault")
            .found(format!("{} bytes, number {sequence}", slot.len()))
            .expected(format!("at most {SLOT} bytes, and at most {MOST_NUMBER}")));
    }
    Ok(slot)
}

/// Reads the superblock of a file and puts the file in `place`; `None` if no superblock verifies,
/// or there is no file.
fn read(
    folder: &dyn Folder,
    name: &str,
    place: &OnceLock<Arc<dyn FolderFile>>,
    keys: &StoreKeys,
    synced: bool,
) -> Result<Option<Verified>> {
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
fn parse(bytes: &[u8], keys: &StoreKeys) -> Result<Option<Verified>> {
    let head = Record(bytes);
    let (sequence, len) = (head.u64(8), head.u32(40) as usize);
    if head.array::<8>(0) != *MAGIC || len > SLOT - HEAD || sequence > MOST_NUMBER {
        return Ok(None);
    }
    let opened = keys.open(&head.array(16), &bytes[..HEAD], &bytes[HEAD..HEAD + len])?;
    opened.map(|text| Ok(Verified { sequence, found: super_from_bytes(&text)?, text })).transpose()
}

fn lost() -> Error {
    let [first, second] = NAMES;
    Error::new(Kind::Corrupt, "the vault has no superblock")
        .found(format!("neither `{first}` nor `{second}` of its directory verifies"))
        .expected("a superblock in at least one of these files")
        .remedy(
            Advice::from("bring out what there is with ")
                .action(Action("vault::rescue"))
                .text(", or restore the directory from a backup, then ")
                .action(Action("vault::accept")),
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_contracts::Secret;
    use lacuna_crypto::SeededRandom;
    use lacuna_sim::CrashFolder;

    const ROOT: Option<&[u8]> = Some(b"root");

    fn keys() -> StoreKeys {
        StoreKeys::derive(&Secret::copy_from(&[1; 32]), &[2; 16])
    }

    fn state() -> (Commit, Facts) {
        let commit = Commit { machine: [3; 16], number: 4, digest: [5; 32], before: [6; 32] };
        let facts = Facts { machine: [3; 16], next_object: 9, object_limit: 9, ..Facts::default() };
        (commit, facts)
    }

    fn opened(folder: &CrashFolder, keys: &StoreKeys) -> Result<(SuperFiles, Newest)> {
        SuperFiles::open(folder, keys, true, ThirdFile::Kept)
    }

    #[test]
    fn what_could_not_be_read_is_not_written_and_hides_no_other() {
        let (keys, folder, random) = (keys(), CrashFolder::new(), SeededRandom::new(1));
        let (commit, facts) = state();
        let beyond = Facts { appendable: vec![(4, u64::MAX)], ..facts.clone() };
        let mut files = SuperFiles::create(&folder).unwrap();
        files.write(&keys, &random, &commit, &facts, ROOT, 1).unwrap();
        let refused = files.write(&keys, &random, &commit, &beyond, None, 0).unwrap_err();
        assert_eq!(refused.kind(), Kind::Corrupt);
        let (mut files, newest) = opened(&folder, &keys).unwrap();
        assert!(newest.fault.is_none() && files.is_in_both());
        // Another program wrote it all the same, to one file.
        let kept = folder.snapshot().files[NAMES[1]].clone();
        files.write_text(&keys, &random, &super_to_bytes(&commit, &beyond, None, 0)).unwrap();
        folder.put(NAMES[1], Some(&kept));
        let (mut files, newest) = opened(&folder, &keys).unwrap();
        assert_eq!((newest.found.root.as_deref(), newest.fault.is_some()), (ROOT, true));
        files.write_text(&keys, &random, b"nonsense").unwrap();
        assert_eq!(opened(&folder, &keys).err().map(|e| e.kind()), Some(Kind::Corrupt));
    }

    /// The write of either file is refused: the durable state stays the newest, and the write may
    /// be tried again.
    #[test]
    fn a_refusal_leaves_what_is_durable_and_may_be_tried_again() {
        for after in [0, 1] {
            let (keys, folder, random) = (keys(), CrashFolder::new(), SeededRandom::new(1));
            let (commit, facts) = state();
            let mut files = SuperFiles::create(&folder).unwrap();
            files.write(&keys, &random, &commit, &facts, ROOT, 1).unwrap();
            let next = Commit { number: 5, ..commit.clone() };
            folder.fail(lacuna_sim::FolderOp::Write, after, Kind::NoSpace, false);
            let refused = files.write(&keys, &random, &next, &facts, ROOT, 0).unwrap_err();
            assert!(refused.kind().is_refusal() && !files.is_in_both(), "{refused}");
            let newest = || opened(&folder, &keys).unwrap().1;
            assert_eq!(newest().found.commit.number, 4 + after);
            files.complete(&keys, &random).unwrap();
            assert_eq!((newest().found.commit.number, newest().fault), (4 + after, None));
            files.write(&keys, &random, &next, &facts, ROOT, 0).unwrap();
            assert_eq!((newest().found.commit.number, newest().fault), (5, None));
        }
    }

    #[test]
    fn between_the_two_files_the_older_superblock_is_given_as_well() {
        let (keys, folder, random) = (keys(), CrashFolder::new(), SeededRandom::new(1));
        let (commit, facts) = state();
        let next = Commit { number: 5, ..commit.clone() };
        let mut files = SuperFiles::create(&folder).unwrap();
        files.write(&keys, &random, &commit, &facts, ROOT, 1).unwrap();
        files.begin(&keys, &random, &next, &facts, ROOT, 0).unwrap();
        drop(files);
        let (mut files, newest) = opened(&folder, &keys).unwrap();
        let older = newest.older.map(|older| older.commit.number);
        assert_eq!((newest.found.commit.number, older, files.is_in_both()), (5, Some(4), false));
        // It is not rewritten in place, because the other file still has the previous state.
        folder.fail(lacuna_sim::FolderOp::Write, 0, Kind::Io, false);
        files.begin(&keys, &random, &next, &facts, ROOT, 0).unwrap();
        folder.heal();
        files.complete(&keys, &random).unwrap();
        let (files, newest) = opened(&folder, &keys).unwrap();
        assert!(files.is_in_both() && newest.older.is_none() && newest.fault.is_none());
    }

    /// If a power cut tears the file being written, the other one verifies; afterwards either file
    /// alone is enough.
    #[test]
    fn one_of_the_files_is_enough_and_is_never_written_while_it_is_the_only_one() {
        for lost in NAMES {
            for torn in [None, Some(0), Some(1)] {
                let (keys, folder, random) = (keys(), CrashFolder::new(), SeededRandom::new(1));
                let (commit, facts) = state();
                let mut files = SuperFiles::create(&folder).unwrap();
                files.write(&keys, &random, &commit, &facts, ROOT, 1).unwrap();
                drop(files);
                folder.put(lost, torn.map(|_| lacuna_sim::Image::new(SLOT as u64)).as_ref());
                let (mut files, newest) = opened(&folder, &keys).unwrap();
                assert!(newest.fault.unwrap().starts_with(lost) && !files.is_in_both());
                assert_eq!(newest.found.root.as_deref(), ROOT);
                files.make_lost(&folder).unwrap();
                // The lost file is written first: the write fails, and the other file is unchanged.
                folder.fail(lacuna_sim::FolderOp::Sync, 0, Kind::Io, false);
                let next = Commit { number: 5, ..commit.clone() };
                files.write(&keys, &random, &next, &facts, ROOT, 0).unwrap_err();
                let kept = folder.snapshot().files[NAMES[usize::from(lost == NAMES[0])]].clone();
                let alone = CrashFolder::new();
                alone.put(NAMES[usize::from(lost == NAMES[0])], Some(&kept));
                let (_, newest) = opened(&alone, &keys).unwrap();
                assert_eq!(newest.found.commit.number, 4);
                folder.heal();
                files.write(&keys, &random, &next, &facts, ROOT, 0).unwrap();
                let (files, newest) = opened(&folder, &keys).unwrap();
                assert!(newest.fault.is_none() && files.is_in_both() && newest.found.commit.number == 5);
            }
        }
    }

    /// A normal opening fails without the first two files; reading a damaged store starts at the
    /// third, if it verifies.
    #[test]
    fn the_third_file_counts_for_a_look_at_damage_alone() {
        let (keys, folder, random) = (keys(), CrashFolder::new(), SeededRandom::new(1));
        let (commit, facts) = state();
        let mut files = SuperFiles::create(&folder).unwrap();
        files.write(&keys, &random, &commit, &facts, ROOT, 1).unwrap();
        // It was lost before and recreated.
        folder.put(THIRD, None);
        let (mut files, _) = opened(&folder, &keys).unwrap();
        files.make_lost(&folder).unwrap();
        files.complete(&keys, &random).unwrap();
        let nothing = lacuna_sim::Image::new(SLOT as u64);
        NAMES.iter().for_each(|name| folder.put(name, Some(&nothing)));
        let look = |third| SuperFiles::open(&folder, &keys, false, third).map(|(_, newest)| newest);
        for third in [ThirdFile::Unread, ThirdFile::Kept] {
            assert_eq!(look(third).err().map(|e| e.kind()), Some(Kind::Corrupt));
        }
        let newest = look(ThirdFile::Counts).unwrap();
        assert_eq!((newest.found.commit, newest.is_by_third), (commit, true));
        folder.put(THIRD, Some(&nothing));
        assert_eq!(look(ThirdFile::Counts).err().map(|e| e.kind()), Some(Kind::Corrupt));
    }
}
