//! The anchor in a local file: two slots that are written in turn and in place, so that an advance
//! is one write and one sync of 512 bytes.

use crate::anchor::{Anchor, AnchorState, check_advance};
use lacuna_contracts::{Error, Kind, LeReader, LeWriter, Result, Secret};
use lacuna_crypto::keyed_hash;
use lacuna_medium::forget_cached;
use parking_lot::Mutex;
use rustix::process::geteuid;
use std::fs::{DirBuilder, File, FileType, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MAGIC: &[u8; 8] = b"lacunaan";
/// Bytes of a slot: a power cut leaves it written whole or not at all.
const SLOT: usize = 512;
/// Bytes of a slot under the checksum, which follows them.
const CHECKSUMMED_LEN: usize = 96;
/// How often, and how far apart, taking a lock is retried: as for the lock of a vault's header.
const LOCK_TRIES: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The default path of a vault's anchor: in `$XDG_STATE_HOME/lacuna/anchors`, or
/// `.local/state/lacuna/anchors` in the home directory; for root in `/var/lib/lacuna/anchors`. The
/// file name is the vault's UUID. A `$XDG_STATE_HOME` of another user, which root has after `su`,
/// is ignored: its owner could roll the anchor back.
///
/// Errors: [`Kind::Usage`] if there is no home directory.
pub fn default_anchor_path(uuid: &[u8; 16]) -> Result<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let usual = || {
        if geteuid().is_root() {
            return Some(PathBuf::from("/var/lib"));
        }
        // If mount(8) starts a helper for a user, $HOME is not set, and the user database is asked.
        let home = std::env::home_dir().filter(|home| home.is_absolute());
        home.map(|home| home.join(".local/state"))
    };
    let state = match absolute("XDG_STATE_HOME") {
        Some(state) if !is_of_another_user(&state)? => Some(state),
        _ => usual(),
    };
    let state = state.ok_or_else(|| {
        Error::new(Kind::Usage, "cannot choose a path for the vault's anchor")
            .found("neither $XDG_STATE_HOME nor $HOME, and no home directory of this user")
            .expected("a directory for the state of this user's programs")
            .hint("set $HOME, or name a file for the anchor (in fstab `anchor=`)")
    })?;
    let digits = format!("{:032x}", u128::from_be_bytes(*uuid));
    let groups = [0..8, 8..12, 12..16, 16..20, 20..32].map(|group| &digits[group]);
    Ok(state.join("lacuna/anchors").join(groups.join("-")))
}

/// Whether the nearest existing directory on the way to `path` belongs neither to this user nor to
/// root. Errors: the owner is unknown.
fn is_of_another_user(path: &Path) -> Result<bool> {
    for dir in path.ancestors() {
        match std::fs::metadata(dir) {
            Ok(about) => return Ok(about.uid() != geteuid().as_raw() && about.uid() != 0),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io(format!("cannot find the owner of {}", path.display()), &e)),
        }
    }
    Ok(false)
}

/// An anchor in a file that only its owner may read. Holds a lock on the file until dropped, unless
/// it is read-only.
pub struct FileAnchor {
    path: PathBuf,
    uuid: [u8; 16],
    open: Mutex<OpenAnchorFile>,
}

struct OpenAnchorFile {
    /// `None`: the file does not exist yet.
    file: Option<File>,
    read_only: bool,
    state: Option<AnchorState>,
    /// The sequence number of the slot that was written last.
    sequence: u64,
}

impl FileAnchor {
    /// Opens the anchor of a vault. The first advance makes the file.
    ///
    /// Errors: [`Kind::Busy`] if another program has it open, [`Kind::Corrupt`] if neither slot can
    /// be read, [`Kind::Usage`] if it is the anchor of another vault, or no regular file: no link
    /// is followed.
    pub fn open(path: &Path, uuid: [u8; 16], read_only: bool) -> Result<FileAnchor> {
        let mut open = OpenAnchorFile { file: None, read_only, state: None, sequence: 0 };
        if let Some(file) = open_existing(path, read_only)? {
            if !read_only {
                lock(path, &file)?;
            }
            // After a failed sync the page cache may hold a state that is not durable.
            forget_cached(&file, path)?;
            (open.state, open.sequence) = read(path, &file)?;
            open.file = Some(file);
        }
        if let Some(other) = open.state.as_ref().filter(|state| state.uuid != uuid) {
            return Err(Error::new(
                Kind::Usage,
                format!("the anchor {} belongs to another vault", path.display()),
            )
            .found(format!("vault {:032x}", u128::from_be_bytes(other.uuid)))
            .expected(format!("vault {:032x}", u128::from_be_bytes(uuid))));
        }
        Ok(FileAnchor { path: path.to_owned(), uuid, open: Mutex::new(open) })
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the file with two empty slots, under a temporary name first.
    fn make(&self) -> Result<File> {
        let path = &self.path;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let above = parent_folders(folder);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|e| io_error("make the directory of", path, &e))?;
        let mut new = path.clone().into_os_string();
        new.push(".new");
        let made = || -> std::io::Result<File> {
            // A crash may have left a file with this name. In a folder that other users may write
            // it may be a link: remove it, and follow none.
            match std::fs::remove_file(&new) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&new)?;
            file.write_all_at(&[0; 2 * SLOT], 0)?;
            file.sync_all()?;
            std::fs::rename(&new, path)?;
            File::open(folder)?.sync_all()?;
            for (folder, was_there) in &above {
                let synced = File::open(folder).and_then(|folder| folder.sync_all());
                // A refusal for an existing directory says nothing about the anchor.
                if !*was_there {
                    synced?;
                }
            }
            Ok(file)
        };
        let file = made().map_err(|e| io_error("make", path, &e))?;
        lock(path, &file)?;
        Ok(file)
    }
}

impl Anchor for FileAnchor {
    fn load(&self) -> Result<Option<AnchorState>> {
        Ok(self.open.lock().state.clone())
    }

    fn advance(&self, expected: Option<&AnchorState>, next: &AnchorState) -> Result<()> {
        let mut open = self.open.lock();
        if open.read_only {
            return Err(Error::new(Kind::ReadOnly, "the anchor is open read-only"));
        }
        if next.uuid != self.uuid {
            return Err(Error::new(Kind::Usage, "the anchor belongs to another vault"));
        }
        check_advance(open.state.as_ref(), expected, next)?;
        if open.file.is_none() {
            open.file = Some(self.make()?);
        }
        let sequence = open.sequence + 1;
        let file = open.file.as_ref().expect("it was just made");
        // A refused write may have torn its slot: the other slot counts then, and the caller tries
        // again.
        file.write_all_at(&to_slot(sequence, next), sequence % 2 * SLOT as u64)
            .map_err(|e| io_error("write", &self.path, &e))?;
        file.sync_data().map_err(|e| io_error("sync", &self.path, &e).of_sync())?;
        open.sequence = sequence;
        open.state = Some(next.clone());
        Ok(())
    }
}

/// Opens the file of an anchor; `None` if there is none. In a directory that other users may write
/// to, there may be a link to any file of the user, a device, or a pipe on which an opening waits:
/// only a regular file is opened.
fn open_existing(path: &Path, read_only: bool) -> Result<Option<File>> {
    let unless_absent = |e: std::io::Error| match e.kind() {
        ErrorKind::NotFound => Ok(None),
        _ => Err(io_error("open", path, &e)),
    };
    match std::fs::symlink_metadata(path) {
        Ok(about) => check_kind(path, about.file_type())?,
        Err(e) => return unless_absent(e),
    }
    // It may be something else by now.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    match OpenOptions::new().read(true).write(!read_only).custom_flags(flags).open(path) {
        Ok(file) => {
            check_kind(path, file.metadata().map_err(|e| io_error("open", path, &e))?.file_type())?;
            Ok(Some(file))
        }
        Err(e) => unless_absent(e),
    }
}

/// Refuses everything except regular files.
fn check_kind(path: &Path, kind: FileType) -> Result<()> {
    if kind.is_file() {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, format!("cannot use {} as the anchor of a vault", path.display()))
        .found(if kind.is_symlink() {
            "a symbolic link"
        } else if kind.is_dir() {
            "a directory"
        } else {
            "a device, a pipe or a socket"
        })
        .expected("a regular file, or a path where nothing exists")
        .hint("name the file itself, in a directory that only you may write to"))
}

/// The directories above `folder`, from the bottom up, with whether a name in each existed already.
/// Existing ones are included: a process that made them may have been killed before they were
/// durable.
fn parent_folders(folder: &Path) -> Vec<(PathBuf, bool)> {
    let named = |path: &Path| if path.as_os_str().is_empty() { PathBuf::from(".") } else { path.to_owned() };
    let pairs = folder.ancestors().zip(folder.ancestors().skip(1));
    pairs.map(|(below, above)| (named(above), below.exists())).collect()
}

fn io_error(what: &str, path: &Path, e: &std::io::Error) -> Error {
    Error::io(format!("cannot {what} the vault's anchor {}", path.display()), e)
}

/// Takes the lock, with retries while another process holds it: a killed process holds it until it
/// is gone.
fn try_lock(file: &File) -> std::result::Result<(), TryLockError> {
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            done => return done,
        }
    }
    file.try_lock()
}

fn lock(path: &Path, file: &File) -> Result<()> {
    match try_lock(file) {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            Err(Error::new(Kind::Busy, format!("cannot open the vault's anchor {}", path.display()))
                .found("another program has this vault open")
                .hint("unmount the vault there first"))
        }
        Err(TryLockError::Error(e)) => Err(io_error("lock", path, &e)),
    }
}

/// A checksum, not a seal: the anchor's storage is trusted, and only torn writes must be detected.
fn checksum(bytes: &[u8]) -> [u8; 32] {
    keyed_hash(&Secret::copy_from(&[0; 32]), &[b"lacuna anchor", bytes])
}

fn to_slot(sequence: u64, state: &AnchorState) -> [u8; SLOT] {
    let mut slot = [0; SLOT];
    LeWriter(&mut slot)
        .put(0, MAGIC)
        .u64(8, sequence)
        .put(16, &state.uuid)
        .put(32, &state.machine)
        .u64(48, state.number)
        .put(56, &state.digest)
        .u64(88, state.time);
    let sum = checksum(&slot[..CHECKSUMMED_LEN]);
    LeWriter(&mut slot).put(CHECKSUMMED_LEN, &sum);
    slot
}

fn from_slot(slot: &[u8]) -> Option<(u64, AnchorState)> {
    let fields = LeReader(slot);
    if fields.array::<8>(0) != *MAGIC
        || fields.array::<32>(CHECKSUMMED_LEN) != checksum(&slot[..CHECKSUMMED_LEN])
    {
        return None;
    }
    let state = AnchorState {
        uuid: fields.array(16),
        machine: fields.array(32),
        number: fields.u64(48),
        digest: fields.array(56),
        time: fields.u64(88),
    };
    Some((fields.u64(8), state))
}

/// The newer slot, with its sequence number.
fn read(path: &Path, file: &File) -> Result<(Option<AnchorState>, u64)> {
    let mut slots = [0; 2 * SLOT];
    let mut filled = 0;
    while filled < slots.len() {
        match file.read_at(&mut slots[filled..], filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(io_error("read", path, &e)),
        }
    }
    let newest = slots.chunks_exact(SLOT).filter_map(from_slot).max_by_key(|(sequence, _)| *sequence);
    match newest {
        Some((sequence, state)) => Ok((Some(state), sequence)),
        // The power failed before the first advance. A longer file of zeros is of something else.
        None if slots.iter().all(|byte| *byte == 0) && len(path, file)? == slots.len() as u64 => {
            Ok((None, 0))
        }
        None => Err(Error::new(Kind::Corrupt, format!("the vault's anchor {} cannot be read", path.display()))
            .found("no slot with a valid checksum")
            .expected("this machine's last commit of the vault")
            .hint("restore the file from a backup, or remove it: the next opening accepts the vault's present state")),
    }
}

fn len(path: &Path, file: &File) -> Result<u64> {
    Ok(file.metadata().map_err(|e| io_error("read", path, &e))?.len())
}

#[cfg(test)]
#[path = "anchor_file_tests.rs"]
mod tests;
