//! The record of an inode in the namespace: attributes, the backing object of its content, and the
//! trusted storage of its integrity.
//!
//! Layout, little-endian: version u8, kind u8, mode u16, nlink u32, uid u32, gid u32, rdev u32,
//! size u64, data blocks u64, parent u64, object u64, four times (atime, mtime, ctime, crtime: i64
//! and u32 each), choice u8, flags u8, length of TS u16, TS; the target of a symbolic link takes
//! the rest.

use crate::{Attr, BLOCK, FileKind, FsError, FsResult, Time};

use lacuna_contracts::{Error, Kind, Result};
use lacuna_integrity::{Choice, Scheme};

const VERSION: u8 = 1;
/// Bytes before the times.
const HEAD: usize = 52;
/// Bytes of a time.
const TIME: usize = 12;
/// Bytes before the trusted storage.
const FIXED: usize = HEAD + 4 * TIME + 4;
/// Flags: the namespace holds pages of the file's untrusted storage; extended attributes.
const HAS_US: u8 = 1;
const HAS_XATTRS: u8 = 2;
/// The permission bit that gives new nodes in a directory its group.
const SET_GROUP_ID: u16 = 0o2000;
/// The size that a directory shows, as on ext4 for a small one.
const DIRECTORY_SIZE: u64 = 4096;
/// `relatime`: a read renews a time of access that is older than this, in seconds.
const ATIME_AGE: i64 = 24 * 3600;

/// The record of one inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InodeRecord {
    pub(crate) kind: FileKind,
    pub(crate) mode: u16,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    /// Length of a file in bytes.
    pub(crate) size: u64,
    /// Blocks of a file that are not holes.
    pub(crate) data_blocks: u64,
    /// The directory of its latest name.
    pub(crate) parent: u64,
    /// The backing object of a file; 0 before its first write.
    pub(crate) object: u64,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) crtime: Time,
    /// The chosen scheme: for a file's blocks, or for new files and directories in a directory.
    pub(crate) choice: Option<Choice>,
    /// Whether the namespace may hold pages of its untrusted storage.
    pub(crate) has_us: bool,
    /// Whether the namespace may hold extended attributes of it.
    pub(crate) has_xattrs: bool,
    /// TS of a file; empty before its first write.
    pub(crate) trusted: Vec<u8>,
    /// Target of a symbolic link.
    pub(crate) target: Vec<u8>,
}

impl InodeRecord {
    pub(crate) fn new(kind: FileKind, now: Time) -> InodeRecord {
        InodeRecord {
            kind,
            mode: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            data_blocks: 0,
            parent: 0,
            object: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            choice: None,
            has_us: false,
            has_xattrs: false,
            trusted: vec![],
            target: vec![],
        }
    }

    pub(crate) fn attr(&self, ino: u64) -> Attr {
        let size = match self.kind {
            FileKind::Directory => DIRECTORY_SIZE,
            FileKind::Symlink => self.target.len() as u64,
            _ => self.size,
        };
        Attr {
            ino,
            size,
            blocks512: self.data_blocks.saturating_mul(BLOCK as u64 / 512),
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            crtime: self.crtime,
            kind: self.kind,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
        }
    }

    /// Gives a new node the group of its directory if that has set-group-ID, and a new directory
    /// that bit too.
    pub(crate) fn take_group_of(&mut self, directory: &InodeRecord) {
        if directory.mode & SET_GROUP_ID == 0 {
            return;
        }
        self.gid = directory.gid;
        if self.kind == FileKind::Directory {
            self.mode |= SET_GROUP_ID;
        }
    }

    /// Clears set-user-ID, and set-group-ID if the group may execute or the writer is no member of
    /// it, as Linux does when content or owner change.
    pub(crate) fn clear_set_ids(&mut self, is_member: bool) -> bool {
        let before = self.mode;
        self.mode &= !0o4000;
        if self.mode & 0o010 != 0 || !is_member {
            self.mode &= !0o2000;
        }
        before != self.mode
    }

    /// Marks it as being removed: it has no name, and its blocks are gone; pages of its untrusted
    /// storage may be left.
    pub(crate) fn mark_being_removed(&mut self) {
        (self.object, self.size, self.data_blocks) = (0, 0, 0);
        self.trusted = vec![];
    }

    /// Checks that the node has content. EISDIR, EINVAL.
    pub(crate) fn check_is_file(&self) -> FsResult<()> {
        match self.kind {
            FileKind::File => Ok(()),
            FileKind::Directory => Err(FsError::Errno(libc::EISDIR)),
            _ => Err(FsError::Errno(libc::EINVAL)),
        }
    }

    /// Whether a read leaves the time of access unchanged, as with Linux's `relatime`.
    pub(crate) fn is_atime_fresh(&self, now: Time) -> bool {
        let old = now.secs.saturating_sub(self.atime.secs) >= ATIME_AGE;
        self.atime > self.mtime && self.atime > self.ctime && !old
    }

    /// Whether it is marked by [`InodeRecord::mark_being_removed`].
    pub(crate) fn is_being_removed(&self) -> bool {
        self.kind == FileKind::File && self.nlink == 0 && self.object == 0 && self.has_us
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FIXED + self.trusted.len() + self.target.len());
        out.extend([VERSION, self.kind as u8]);
        out.extend(self.mode.to_le_bytes());
        for word in [self.nlink, self.uid, self.gid, self.rdev] {
            out.extend(word.to_le_bytes());
        }
        for word in [self.size, self.data_blocks, self.parent, self.object] {
            out.extend(word.to_le_bytes());
        }
        for time in [self.atime, self.mtime, self.ctime, self.crtime] {
            out.extend(time.secs.to_le_bytes());
            out.extend(time.nanos.to_le_bytes());
        }
        out.push(self.choice.map_or(0, choice_code));
        out.push((u8::from(self.has_us) * HAS_US) | (u8::from(self.has_xattrs) * HAS_XATTRS));
        out.extend((self.trusted.len() as u16).to_le_bytes());
        out.extend(&self.trusted);
        out.extend(&self.target);
        out
    }

    /// Parses a record. Errors: [`Kind::Corrupt`] for malformed bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Result<InodeRecord> {
        parse(bytes).ok_or_else(|| {
            Error::new(Kind::Corrupt, "cannot read an inode of the namespace")
                .found(format!("{} bytes of version {}", bytes.len(), bytes.first().unwrap_or(&0)))
                .expected(format!("an inode of version {VERSION}"))
        })
    }
}

fn parse(bytes: &[u8]) -> Option<InodeRecord> {
    if bytes.len() < FIXED || bytes[0] != VERSION {
        return None;
    }
    let half = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().expect("2 bytes"));
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let time = |n: usize| Time { secs: long(HEAD + n * TIME) as i64, nanos: word(HEAD + n * TIME + 8) };
    let target = FIXED + usize::from(half(FIXED - 2));
    Some(InodeRecord {
        kind: FileKind::from_byte(bytes[1])?,
        mode: half(2),
        nlink: word(4),
        uid: word(8),
        gid: word(12),
        rdev: word(16),
        size: long(20),
        data_blocks: long(28),
        parent: long(36),
        object: long(44),
        atime: time(0),
        mtime: time(1),
        ctime: time(2),
        crtime: time(3),
        choice: match bytes[FIXED - 4] {
            0 => None,
            code => Some(choice_from_code(code)?),
        },
        has_us: bytes[FIXED - 3] & HAS_US != 0,
        has_xattrs: bytes[FIXED - 3] & HAS_XATTRS != 0,
        trusted: bytes.get(FIXED..target)?.to_vec(),
        target: bytes[target..].to_vec(),
    })
}

/// The code of a choice in the database.
pub(crate) fn choice_code(choice: Choice) -> u8 {
    match choice {
        Choice::Auto => 1,
        Choice::Fixed(Scheme::Mt) => 2,
        Choice::Fixed(Scheme::Rand) => 3,
        Choice::Fixed(Scheme::Comp) => 4,
        Choice::Fixed(Scheme::None) => 5,
    }
}

/// The choice with a code.
pub(crate) fn choice_from_code(code: u8) -> Option<Choice> {
    let fixed = [Scheme::Mt, Scheme::Rand, Scheme::Comp, Scheme::None].map(Choice::Fixed);
    fixed.into_iter().chain([Choice::Auto]).find(|choice| choice_code(*choice) == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip() {
        let mut record = InodeRecord::new(FileKind::Symlink, Time { secs: -5, nanos: 999_999_999 });
        (record.mode, record.nlink, record.uid, record.gid, record.rdev) = (0o7755, 3, 4, 5, 6);
        (record.size, record.data_blocks, record.parent, record.object) = (1 << 40, 9, 10, 11);
        (record.has_us, record.has_xattrs) = (false, true);
        record.choice = Some(Choice::Fixed(Scheme::Comp));
        (record.trusted, record.target) = (vec![1; 200], b"../target".to_vec());
        let bytes = record.encode();
        assert_eq!(InodeRecord::parse(&bytes).unwrap(), record);
        record.data_blocks = u64::MAX;
        assert_eq!(InodeRecord::parse(&record.encode()).unwrap().attr(1).blocks512, u64::MAX);
        for cut in 0..FIXED + 200 {
            assert!(InodeRecord::parse(&bytes[..cut]).is_err());
        }
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0xff;
            let _ = InodeRecord::parse(&bad);
        }
    }
}
