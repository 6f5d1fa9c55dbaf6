//! Detects the content of a disk, and makes a file system on a blank one.

use crate::command;
use lacuna_contracts::{BLOCK_SIZE, ByteDisk, Error, Hint, Kind, Result, Setting};
use std::ffi::OsStr;
use std::fmt;
use std::path::Path;

/// Range of one query for written extents, which bounds the answer to 1 MiB.
const WINDOW: u64 = 256 << 20;
/// The bytes of one read.
const PIECE: usize = 1 << 20;

/// Checks the name of a file system type before it becomes part of a program's name.
pub fn check_type(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if !name.is_empty() && name.len() <= 16 && name.chars().all(plain) {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, "cannot make a file system")
        .found(format!("type {name:?}"))
        .expected("a type such as ext4, xfs or btrfs"))
}

/// What is found on a disk without a file system.
pub const NO_FILE_SYSTEM: &str = "no file system that is known here";

/// Checks that there is a program that makes this type. Errors: [`Kind::NotFound`] if it is not
/// installed, [`Kind::Usage`] if no such program is known.
pub(crate) fn check_program(kind: &str) -> Result<()> {
    let program = format!("mkfs.{kind}");
    if command::is_installed(&program) {
        return Ok(());
    }
    let missing = |as_kind| Error::new(as_kind, format!("cannot make {kind}"));
    Err(match command::package(&program) {
        Some(package) => missing(Kind::NotFound)
            .found(format!("no program {program}"))
            .hint(format!("install the package {package}")),
        None => missing(Kind::Usage)
            .found(format!("a type that is not known, and no program {program}"))
            .expected("ext4, xfs, btrfs, f2fs, vfat or another type with such a program"),
    })
}

/// Whether it is one of the types that e2fsprogs makes and repairs.
pub(crate) fn is_ext(kind: &str) -> bool {
    matches!(kind, "ext2" | "ext3" | "ext4")
}

/// A user and a group.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    user: u32,
    group: u32,
}

impl Owner {
    /// Root.
    pub(crate) const ROOT: Owner = Owner { user: 0, group: 0 };

    /// The effective user and group of this process.
    pub(crate) fn of_this_process() -> Owner {
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        Owner { user: user.as_raw(), group: group.as_raw() }
    }
}

/// Whether and how to make a file system.
#[derive(Clone, Copy)]
pub(crate) struct MkfsRequest<'m> {
    /// Its type; `None` to make none.
    pub fs_type: Option<&'m str>,
    /// Whether to make it over unrecognized data.
    pub overwrite: bool,
    /// The owner of the directories that it begins with, if mkfs for this type has an option for
    /// it.
    pub owner: Owner,
}

/// The file system on a disk after [`prepare`].
pub(crate) struct PreparedFs {
    /// Its type.
    pub kind: String,
    /// Whether it was made now.
    pub made: bool,
}

/// Makes sure that `device`, which is `disk` and has the content `found`, holds a file system.
/// Makes one if the disk is blank and one is wanted; refuses to overwrite existing content. `what`
/// begins the errors.
pub(crate) fn prepare(
    what: &str,
    device: &Path,
    disk: &ByteDisk,
    found: Option<DiskContent>,
    making: MkfsRequest<'_>,
) -> Result<PreparedFs> {
    match (found, making.fs_type) {
        (Some(DiskContent::FileSystem(kind)), None) => Ok(PreparedFs { kind, made: false }),
        (Some(DiskContent::Other(words)), None) => {
            Err(Error::new(Kind::Usage, what).found(words).expected("a file system on the whole disk").hint(
                Hint::from("serve it to NBD clients, or open it with ")
                    .setting(Setting("raw"))
                    .text(", and use its content from there"),
            ))
        }
        (Some(found), Some(wanted)) => {
            let len = disk.len();
            let punch = format!("fallocate --punch-hole --offset 0 --length {len} MOUNTPOINT/disk");
            let advice = Hint::from("open it without ").setting(Setting("mkfs"));
            let advice = advice.text("; or, to lose its content, open it with ").setting(Setting("raw"));
            Err(not_blank_error(what, wanted, format!("{found} already on the disk"))
                .hint(advice.text(format!(", run `{punch}`, and close it"))))
        }
        (None, None) => Err(Error::new(Kind::NotFound, what)
            .found(NO_FILE_SYSTEM)
            .hint(Hint::from("on a new disk give ").setting(Setting("mkfs")).text(" ext4 to make one"))),
        (None, Some(wanted)) => {
            if !making.overwrite
                && let Some(at) = first_data(disk).map_err(|e| e.context(what))?
            {
                let found = format!("data of no known kind from byte {at}, as an interrupted mkfs leaves it");
                let advice = Hint::from("open it without ").setting(Setting("mkfs"));
                let advice = advice.text(" if it is a file system; to lose its content, give ");
                let advice = advice.setting(Setting("overwrite")).text(" with ").setting(Setting("mkfs"));
                return Err(not_blank_error(what, wanted, found).hint(advice));
            }
            make(device, wanted, making.owner).map_err(|e| e.context(what))?;
            Ok(PreparedFs { kind: wanted.to_owned(), made: true })
        }
    }
}

fn not_blank_error(what: &str, wanted: &str, found: String) -> Error {
    Error::new(Kind::Usage, format!("{what}: refused to make {wanted}")).found(found).expected("a blank disk")
}

/// The offset of the first byte that is not zero.
///
/// Skips extents that were never written. Written extents may still be zeros, because not every
/// format records single blocks.
fn first_data(disk: &ByteDisk) -> Result<Option<u64>> {
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while at < disk.len() {
        let end = disk.len().min(at + WINDOW);
        for extent in disk.extents(at, end - at)? {
            let until = end.min(at.saturating_add(extent.blocks.saturating_mul(BLOCK_SIZE as u64)));
            while extent.written && at < until {
                let part = &mut piece[..(until - at).min(PIECE as u64) as usize];
                disk.read_at(at, part)?;
                if let Some(offset) = part.iter().position(|byte| *byte != 0) {
                    return Ok(Some(at + offset as u64));
                }
                at += part.len() as u64;
            }
            at = until;
        }
        at = end;
    }
    Ok(None)
}

/// Recognized content of a disk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DiskContent {
    /// A file system, with its type as named by blkid(8).
    FileSystem(String),
    /// Other content, as text: a partition table, a part of a volume group, encrypted data, a swap
    /// area.
    Other(String),
}

impl DiskContent {
    /// The type of the file system, if it is one.
    pub(crate) fn file_system(&self) -> Option<&str> {
        match self {
            DiskContent::FileSystem(kind) => Some(kind),
            DiskContent::Other(_) => None,
        }
    }

    /// The option of `mount` that skips the replay of its journal, if there is one.
    pub(crate) fn skip_journal_option(&self) -> Option<&'static str> {
        match self.file_system()? {
            "ext3" | "ext4" => Some("noload"),
            "xfs" => Some("norecovery"),
            "btrfs" => Some("rescue=nologreplay"),
            _ => None,
        }
    }
}

impl fmt::Display for DiskContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (DiskContent::FileSystem(words) | DiskContent::Other(words)) = self;
        f.write_str(words)
    }
}

/// The content of `device`; `None` if blkid recognizes nothing.
pub(crate) fn probe_content(device: &Path) -> Result<Option<DiskContent>> {
    let what = "cannot look for a file system on the disk";
    let args = [OsStr::new("-p"), OsStr::new("-o"), OsStr::new("export"), device.as_os_str()];
    let probe = command::run("blkid", &args).map_err(|e| e.context(what))?;
    match probe.code {
        Some(0) => Ok(Some(parse_blkid(&probe.stdout))),
        Some(2) if probe.stderr.is_empty() => Ok(None),
        Some(8) => Ok(Some(DiskContent::Other("signatures of more than one file system".to_owned()))),
        _ => Err(Error::new(Kind::Io, what).found(probe.words_of("blkid"))),
    }
}

/// Parses the output of `blkid -p -o export` (blkid(8)). USAGE distinguishes file systems from
/// content that has a TYPE but cannot be mounted: `raid`, `crypto`, and `other` for swap areas and
/// journals.
fn parse_blkid(export: &str) -> DiskContent {
    let value = |key: &str| export.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    match (value("TYPE"), value("USAGE"), value("PTTYPE")) {
        (Some(kind), Some("filesystem"), _) => DiskContent::FileSystem(kind.to_owned()),
        (Some(kind), _, _) => DiskContent::Other(format!("data of the type {kind}")),
        (None, _, Some(table)) => DiskContent::Other(format!("a partition table ({table})")),
        (None, _, None) => DiskContent::Other("data of a known kind".to_owned()),
    }
}

/// Makes a file system. Sets the block size to 4096 bytes if the type has an option for it, because
/// the tools choose 1024 bytes on small disks.
fn make(device: &Path, wanted: &str, owner: Owner) -> Result<()> {
    let root_owner = format!("root_owner={}:{}", owner.user, owner.group);
    let mut args: Vec<&OsStr> = match wanted {
        ext if is_ext(ext) => vec!["-q", "-b", "4096", "-E", &root_owner],
        "xfs" => vec!["-q", "-s", "size=4096"],
        _ => vec![],
    }
    .into_iter()
    .map(OsStr::new)
    .collect();
    args.push(device.as_os_str());
    command::run_checked(&format!("cannot make {wanted}"), &format!("mkfs.{wanted}"), &args)?;
    // Some distributions have debugfs in a package of its own. Without it the directory is root's.
    if is_ext(wanted) && owner.user != Owner::ROOT.user && command::is_installed("debugfs") {
        give_lost_and_found(device, owner)?;
    }
    Ok(())
}

/// Gives the directory `lost+found` of a new ext2, ext3 or ext4 to the owner of its root directory.
/// mke2fs makes it for root, and has no option for it.
fn give_lost_and_found(device: &Path, owner: Owner) -> Result<()> {
    for (field, number) in [("uid", owner.user), ("gid", owner.group)] {
        let request = format!("set_inode_field /lost+found {field} {number}");
        let args = [OsStr::new("-w"), OsStr::new("-R"), OsStr::new(&request), device.as_os_str()];
        command::run_checked("cannot give lost+found to its user", "debugfs", &args)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_type_names_are_accepted() {
        for good in ["ext4", "xfs", "btrfs", "f2fs"] {
            check_type(good).unwrap();
        }
        for bad in ["", "../sh", "ext4 -F", "EXT4", "a.b", "abcdefghijklmnopq"] {
            assert_eq!(check_type(bad).unwrap_err().kind(), Kind::Usage);
        }
    }

    #[test]
    fn a_missing_program_is_named_with_its_package_or_the_known_types() {
        let refused = check_program("ext9").unwrap_err();
        assert_eq!(refused.kind(), Kind::Usage);
        assert!(refused.to_string().contains("no program mkfs.ext9; expected: ext4, xfs,"), "{refused}");
        for (kind, package) in [("ext4", "e2fsprogs"), ("ntfs", "ntfs-3g"), ("exfat", "exfatprogs")] {
            // A type is accepted if its program is installed.
            let Err(refused) = check_program(kind) else { continue };
            assert_eq!(refused.kind(), Kind::NotFound);
            assert!(refused.to_string().ends_with(&format!("install the package {package}")), "{refused}");
        }
    }

    #[test]
    fn a_user_owns_every_directory_of_a_new_file_system() {
        if !["mkfs.ext4", "debugfs"].iter().all(|program| command::is_installed(program)) {
            return eprintln!("skipped: there is no mkfs.ext4 or no debugfs");
        }
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().join("disk");
        std::fs::File::create(&disk).unwrap().set_len(16 << 20).unwrap();
        make(&disk, "ext4", Owner { user: 70_000, group: 70_001 }).unwrap();
        for directory in ["/", "/lost+found"] {
            let request = format!("stat {directory}");
            let args = [OsStr::new("-R"), OsStr::new(&request), disk.as_os_str()];
            let said = command::run("debugfs", &args).unwrap().stdout;
            let words: Vec<&str> = said.split_whitespace().collect();
            let owned = |field: &str, number: &str| words.windows(2).any(|pair| pair == [field, number]);
            assert!(owned("User:", "70000") && owned("Group:", "70001"), "{directory}: {said}");
        }
        let checked = command::run("e2fsck", &[OsStr::new("-fn"), disk.as_os_str()]).unwrap();
        assert!(checked.success(), "{}", checked.stdout);
    }

    #[test]
    fn blkid_output_is_classified() {
        let ext4 = parse_blkid("DEVNAME=/run/x/disk\nUUID=7\nTYPE=ext4\nUSAGE=filesystem\n");
        assert_eq!((ext4.file_system(), ext4.skip_journal_option()), (Some("ext4"), Some("noload")));
        for (kind, usage) in [("swap", "other"), ("crypto_LUKS", "crypto"), ("LVM2_member", "raid")] {
            let other = parse_blkid(&format!("DEVNAME=/run/x/disk\nTYPE={kind}\nUSAGE={usage}\n"));
            assert_eq!((other.file_system(), other.skip_journal_option()), (None, None), "{kind}");
            assert!(other.to_string().contains(kind), "{other}");
        }
        let table = DiskContent::Other("a partition table (gpt)".to_owned());
        assert_eq!(parse_blkid("DEVNAME=/run/x/disk\nPTUUID=7\nPTTYPE=gpt\n"), table);
    }
}
