//! The methods to mount the file system on a disk, and which of them this process can use.

use crate::loop_device::LOOP_CONTROL;
use crate::mkfs::{self, is_ext};
use crate::{command, proc};
use lacuna_contracts::{Error, Hint, Kind, Result, Setting};
use rustix::thread::{CapabilitySet, capabilities};
use std::fs::File;
use std::path::Path;

/// A method to mount a file system from the file of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountMethod {
    /// A loop device with the kernel's own file system. Needs root.
    Loop,
    /// A program that serves the file system through FUSE. Needs no root.
    Program(Program),
}

/// A program that serves the file system on a disk through FUSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// fuse2fs, which supports ext2, ext3 and ext4.
    Fuse2fs,
    /// lklfuse, which supports the file systems of the Linux Kernel Library.
    Lklfuse,
}

impl Program {
    /// The name of the executable.
    pub const fn name(self) -> &'static str {
        match self {
            Program::Fuse2fs => "fuse2fs",
            Program::Lklfuse => "lklfuse",
        }
    }
}

/// The first part of errors about mounting with a program.
const WITH_PROGRAM: &str = "no program serves its file system";

impl MountMethod {
    /// All methods.
    pub const ALL: [MountMethod; 3] =
        [MountMethod::Loop, MountMethod::Program(Program::Fuse2fs), MountMethod::Program(Program::Lklfuse)];

    /// The name in options and records.
    pub const fn name(self) -> &'static str {
        match self {
            MountMethod::Loop => "loop",
            MountMethod::Program(program) => program.name(),
        }
    }

    /// Checks that the wanted method can be used, or that there is one that this process would
    /// choose before it knows the file system, and that the file system can be made. Does not
    /// access the disk, so it can run before a passphrase is asked for. `kind` is the type of the
    /// file system that will be made, if any.
    ///
    /// Errors: [`Kind::Permission`] if `wanted` is the loop device and it cannot be used,
    /// [`Kind::NotFound`] if a program is missing, [`Kind::Usage`] if the program does not support
    /// this type, or no program makes it.
    pub fn check(wanted: Option<MountMethod>, kind: Option<&str>) -> Result<()> {
        match MethodChoice::of(wanted) {
            MethodChoice::Loop => {
                if let Some(lacking) = wanted.and_then(|_| lacking_for_loop()) {
                    let what = "cannot mount a file system from a loop device";
                    return Err(offer_others(Error::new(Kind::Permission, what).found(lacking), kind));
                }
            }
            MethodChoice::Program(choice) => {
                choice.for_type(kind)?;
            }
        }
        kind.map_or(Ok(()), mkfs::check_program)
    }

    /// Whether the method is the loop device: it is wanted, or no method is wanted and it can be
    /// used.
    pub fn is_loop(wanted: Option<MountMethod>) -> bool {
        matches!(MethodChoice::of(wanted), MethodChoice::Loop)
    }
}

/// The decision before the file system on the disk is known.
pub(crate) enum MethodChoice {
    Loop,
    Program(ProgramChoice),
}

impl MethodChoice {
    /// The loop device if it is wanted, or if no method is wanted and it can be used; otherwise a
    /// program.
    pub(crate) fn of(wanted: Option<MountMethod>) -> MethodChoice {
        match wanted {
            Some(MountMethod::Loop) => MethodChoice::Loop,
            Some(MountMethod::Program(program)) => MethodChoice::Program(ProgramChoice::Wanted(program)),
            None => lacking_for_loop().map_or(MethodChoice::Loop, |without_loop| {
                MethodChoice::Program(ProgramChoice::ByType { without_loop })
            }),
        }
    }
}

/// How the program is chosen.
pub(crate) enum ProgramChoice {
    /// The user chose this program.
    Wanted(Program),
    /// The type of the file system decides. The loop device cannot be used for the reason
    /// `without_loop`.
    ByType { without_loop: String },
}

impl ProgramChoice {
    /// The program for a file system of this type; `None` stands for an unknown type.
    ///
    /// Errors: [`Kind::NotFound`] if it is not installed, [`Kind::Usage`] if the wanted program
    /// does not support this type.
    pub(crate) fn for_type(&self, kind: Option<&str>) -> Result<Program> {
        let (preferred, other) = match (self, kind) {
            (ProgramChoice::Wanted(Program::Fuse2fs), Some(kind)) if !is_ext(kind) => {
                let refused = Error::new(Kind::Usage, WITH_PROGRAM);
                let refused = refused.found(format!("the type {kind}, which fuse2fs does not know"));
                return Err(offer_loop(refused.expected("ext2, ext3 or ext4"), "use ext4"));
            }
            (ProgramChoice::Wanted(program), _) => (*program, *program),
            (ProgramChoice::ByType { .. }, kind) if kind.is_none_or(is_ext) => {
                (Program::Fuse2fs, Program::Lklfuse)
            }
            (ProgramChoice::ByType { .. }, _) => (Program::Lklfuse, Program::Lklfuse),
        };
        let is_installed = |program: &Program| command::is_installed(program.name());
        [preferred, other].into_iter().find(is_installed).ok_or_else(|| self.missing(preferred, kind))
    }

    /// The error if `program`, the preferred one for this type, and any alternative are not
    /// installed.
    fn missing(&self, program: Program, kind: Option<&str>) -> Error {
        let alone = kind.filter(|kind| !is_ext(kind));
        let alone = alone.map_or_else(String::new, |kind| format!(", which alone mounts {kind}"));
        let (expected, first) = match program {
            Program::Fuse2fs => ("the package fuse2fs", "install it"),
            Program::Lklfuse => {
                ("it on the search path (the Linux Kernel Library has it; Debian has no package)", "use ext4")
            }
        };
        let no_loop = match self {
            ProgramChoice::Wanted(_) => String::new(),
            ProgramChoice::ByType { without_loop } => format!(", and no loop device: {without_loop}"),
        };
        let found = format!("no program {}{alone}{no_loop}", program.name());
        offer_loop(Error::new(Kind::NotFound, WITH_PROGRAM).found(found).expected(expected), first)
    }
}

/// The reason why this process cannot mount from a loop device; `None` if it may try. The root of a
/// user namespace cannot: it has no loop devices, and the kernel refuses to mount a file system
/// from a block device for it.
fn lacking_for_loop() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("a user other than root".to_owned());
    }
    if in_user_namespace() {
        return Some("the root of a user namespace, which has no loop devices".to_owned());
    }
    if !has_mount_capability() {
        return Some("root without the capability to mount (CAP_SYS_ADMIN), as in a container".to_owned());
    }
    let control = File::options().read(true).write(true).open(LOOP_CONTROL);
    control.err().map(|e| format!("{LOOP_CONTROL}: {e}"))
}

/// Whether this process runs in a user namespace other than the initial one.
fn in_user_namespace() -> bool {
    let map = proc::user_map().ok().flatten();
    map.is_some_and(|map| !map.is_empty() && map.split_whitespace().ne(["0", "0", "4294967295"]))
}

/// Whether the process has the capability to mount. True if that is unknown, so that the mount is
/// tried.
fn has_mount_capability() -> bool {
    capabilities(None).map_or(true, |sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Adds methods that need fewer privileges to a permission error. `kind` is the type of the file
/// system, if it is known.
pub(crate) fn offer_others(error: Error, kind: Option<&str>) -> Error {
    if error.kind() != Kind::Permission {
        return error;
    }
    let mut advice = Hint::from("run as root where loop devices are allowed, ");
    if kind.is_none_or(is_ext) {
        advice = advice.text("open it with ").setting(Setting("via")).text(" fuse2fs, ");
    }
    let advice = advice.text("serve the disk to NBD clients, or open it with ").setting(Setting("raw"));
    error.hint(advice.text(", which gives it as a file"))
}

/// Adds the methods that do not need the missing program.
fn offer_loop(error: Error, first: &str) -> Error {
    let advice =
        Hint::from(format!("{first}; or run as root where loop devices are allowed; or open the disk with "));
    error.hint(advice.setting(Setting("raw")).text(", which gives it as a file"))
}

/// The missing requirement of FUSE; `None` if a mount may be tried.
pub fn lacking_for_fuse() -> Option<Error> {
    let what = "cannot mount with FUSE";
    if !Path::new("/dev/fuse").exists() {
        let remedy = "load it with `modprobe fuse`; give a container the device with `--device /dev/fuse`";
        return Some(Error::new(Kind::NotFound, what).found("no device /dev/fuse").hint(remedy));
    }
    let mounts_itself = rustix::process::geteuid().is_root() && has_mount_capability();
    (!mounts_itself && !command::is_installed("fusermount3")).then(|| {
        Error::new(Kind::NotFound, what)
            .found("no program fusermount3, which mounts for users other than root")
            .hint("install the package fuse3; or in a container run as root of a user namespace: `unshare --user --map-root-user --mount`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuse2fs_accepts_only_ext_file_systems() {
        let refused = ProgramChoice::Wanted(Program::Fuse2fs).for_type(Some("btrfs")).unwrap_err();
        assert_eq!(refused.kind(), Kind::Usage);
        assert!(refused.to_string().contains("ext4") && refused.to_string().contains("btrfs"), "{refused}");
        for kind in [None, Some("ext2"), Some("ext3"), Some("ext4")] {
            let chosen = ProgramChoice::Wanted(Program::Fuse2fs).for_type(kind);
            assert!(
                chosen.is_ok_and(|program| program == Program::Fuse2fs) || !command::is_installed("fuse2fs")
            );
        }
    }

    #[test]
    fn fuse2fs_is_offered_for_its_family_alone() {
        let offered = |kind: Option<&str>| {
            let refused = offer_others(Error::new(Kind::Permission, "cannot mount"), kind).to_string();
            assert!(refused.contains("NBD clients") && refused.contains("`raw`"), "{refused}");
            refused.contains("`via` fuse2fs")
        };
        assert!(offered(None) && offered(Some("ext3")) && !offered(Some("btrfs")));
        let other = offer_others(Error::new(Kind::Other, "cannot mount"), None);
        assert!(other.get_hint().is_none());
    }

    #[test]
    fn the_error_for_a_missing_program_gives_the_reason_against_a_loop_device() {
        let by_type = ProgramChoice::ByType { without_loop: "/dev/loop-control: no such file".to_owned() };
        let said = by_type.missing(Program::Fuse2fs, Some("ext4")).to_string();
        assert!(
            said.contains("no program fuse2fs, and no loop device: /dev/loop-control: no such"),
            "{said}"
        );
        let said = by_type.missing(Program::Lklfuse, Some("xfs")).to_string();
        assert!(said.contains("lklfuse, which alone mounts xfs, and no loop device: /dev/loop-"), "{said}");
        let said =
            ProgramChoice::Wanted(Program::Lklfuse).missing(Program::Lklfuse, Some("ext4")).to_string();
        assert!(said.contains("found: no program lklfuse; expected: "), "{said}");
    }
}
