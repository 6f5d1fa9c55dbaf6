//! The nodes of a vault (files, directories and so on): kinds, attributes, changes of attributes,
//! and time stamps.

use rustix::time::{ClockId, clock_gettime};
use std::time::{SystemTime, UNIX_EPOCH};

/// The number of the root directory.
pub const ROOT: u64 = 1;
/// Bytes of a block, the unit of encryption and verification.
pub const BLOCK: usize = 4096;
/// Longest name of an entry, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes.
pub const SYMLINK_MAX: usize = 4095;
/// Longest value of an extended attribute, in bytes.
pub const XATTR_MAX: usize = 64 << 10;
/// Most names of one node.
pub const LINK_MAX: u32 = 65_000;
/// Longest file, in bytes: ext4's limit at blocks of 4096 bytes.
pub const FILE_MAX: u64 = (1 << 44) - 4096;

/// A moment: seconds since 1970 and nanoseconds within the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Whole seconds since 1970-01-01 00:00 UTC, negative before.
    pub secs: i64,
    /// Nanoseconds after that second, below 1,000,000,000.
    pub nanos: u32,
}

/// The wall clock for time stamps. It may jump, both ways.
pub trait WallClock: Send + Sync {
    /// The current time.
    fn now(&self) -> Time;
}

/// The system's real-time clock at its last tick. The kernel stamps the files that it writes back
/// with the same clock; the exact one would be ahead of it by up to a tick, and times of one
/// program would be out of order.
pub struct SystemWallClock;

impl WallClock for SystemWallClock {
    fn now(&self) -> Time {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        Time { secs: now.tv_sec, nanos: now.tv_nsec as u32 }
    }
}

impl From<SystemTime> for Time {
    fn from(at: SystemTime) -> Time {
        match at.duration_since(UNIX_EPOCH) {
            Ok(since) => Time { secs: since.as_secs() as i64, nanos: since.subsec_nanos() },
            Err(before) => {
                let before = before.duration();
                let part = u32::from(before.subsec_nanos() != 0);
                let nanos = part * 1_000_000_000 - before.subsec_nanos();
                Time { secs: -(before.as_secs() as i64) - i64::from(part), nanos }
            }
        }
    }
}

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// A regular file.
    File = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A named pipe.
    Fifo = 4,
    /// A socket.
    Socket = 5,
    /// A character device.
    CharDevice = 6,
    /// A block device.
    BlockDevice = 7,
}

impl FileKind {
    /// The kind with this code in the database.
    pub(crate) fn from_byte(byte: u8) -> Option<FileKind> {
        Some(match byte {
            1 => FileKind::File,
            2 => FileKind::Directory,
            3 => FileKind::Symlink,
            4 => FileKind::Fifo,
            5 => FileKind::Socket,
            6 => FileKind::CharDevice,
            7 => FileKind::BlockDevice,
            _ => return None,
        })
    }
}

/// The attributes of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The number of the node, never reused.
    pub ino: u64,
    /// Length in bytes.
    pub size: u64,
    /// Units of 512 bytes of its content; holes take none.
    pub blocks512: u64,
    /// The time of the last read of content (as with ext4's `relatime`).
    pub atime: Time,
    /// The time of the last change of content.
    pub mtime: Time,
    /// The time of the last change of attributes or content.
    pub ctime: Time,
    /// The time of creation.
    pub crtime: Time,
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits with set-user-ID, set-group-ID and sticky: the lower 12 bits.
    pub mode: u16,
    /// The number of names; for a directory two, and one for each directory in it.
    pub nlink: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its device number, for device nodes.
    pub rdev: u32,
}

/// Changes of a node's attributes; `None` leaves one unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttrChanges {
    /// Permission bits; an access control list follows them.
    pub mode: Option<u16>,
    /// Owner. A change of owner or group clears set-user-ID and set-group-ID as Linux does.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes; added bytes read as zeros.
    pub size: Option<u64>,
    /// Time of last access.
    pub atime: Option<Time>,
    /// Time of last change of content.
    pub mtime: Option<Time>,
    /// Time of last change; `None` for now.
    pub ctime: Option<Time>,
}

/// The node to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewNode<'a> {
    /// An empty regular file.
    File,
    /// An empty directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(&'a [u8]),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device of this number.
    CharDevice(u32),
    /// A block device of this number.
    BlockDevice(u32),
}

impl NewNode<'_> {
    /// The kind of the node to be made.
    pub fn kind(&self) -> FileKind {
        match self {
            NewNode::File => FileKind::File,
            NewNode::Directory => FileKind::Directory,
            NewNode::Symlink(_) => FileKind::Symlink,
            NewNode::Fifo => FileKind::Fifo,
            NewNode::Socket => FileKind::Socket,
            NewNode::CharDevice(_) => FileKind::CharDevice,
            NewNode::BlockDevice(_) => FileKind::BlockDevice,
        }
    }
}

/// The treatment of an existing entry of the new name in a rename, and of the old name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// It is replaced.
    Replace,
    /// It is an error: EEXIST.
    NoReplace,
    /// The two entries are exchanged; both must exist.
    Exchange,
    /// A whiteout of this owner takes the old name: a character device with the number 0 and
    /// without permissions. An overlay file system hides a name of a lower layer with it.
    Whiteout {
        /// Whether an existing entry of the new name is replaced; otherwise it is an error: EEXIST.
        replaces: bool,
        /// The whiteout's user.
        uid: u32,
        /// The whiteout's group, if the directory does not decide it.
        gid: u32,
    },
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The position in the directory's order: reading continues after it. Never 0.
    pub cookie: u64,
    /// Its name.
    pub name: &'a [u8],
    /// The node that it names.
    pub ino: u64,
    /// The kind of that node.
    pub kind: FileKind,
}

/// The operation of `allocate` on a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Makes the range a hole; the length stays.
    Punch,
    /// The range reads as zeros and the length grows to its end.
    ZeroRange,
    /// The range reads as zeros; the length stays.
    ZeroKeep,
}

/// The target of `seek`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// The next byte that is not in a hole.
    Data,
    /// The next byte in a hole; the end of the file counts as one.
    Hole,
}

/// The way to set an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattrMode {
    /// Creates or replaces it.
    Any,
    /// Creates it; EEXIST if it exists.
    Create,
    /// Replaces it; ENODATA if it does not exist.
    Replace,
}
