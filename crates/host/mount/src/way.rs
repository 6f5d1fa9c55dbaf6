//! The ways to mount the file system on a disk, and which of them this machine and this process have.

use crate::loop_device::LOOP_CONTROL;
use crate::{proc, tool};
use lacuna_contracts::{Advice, Error, Kind, Result, Setting};
use rustix::thread::{CapabilitySet, capabilities};
use std::fs::File;
use std::path::Path;

/// How a file system is mounted from the file of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A loop device, and the kernel's own file system on it. Needs root.
    Loop,
    /// The program fuse2fs, which serves ext2, ext3 and ext4 through FUSE.
    Fuse2fs,
    /// The program lklfuse, which serves what the Linux Kernel Library knows through FUSE.
    Lklfuse,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 3] = [Way::Loop, Way::Fuse2fs, Way::Lklfuse];
    /// Those that do without root, the preferred one first.
    const PROGRAMS: [Way; 2] = [Way::Fuse2fs, Way::Lklfuse];

    /// What it is called in options and records. Of the ways without root it is the name of the program.
    pub const fn name(self) -> &'static str {
        match self {
            Way::Loop => "loop",
            Way::Fuse2fs => "fuse2fs",
            Way::Lklfuse => "lklfuse",
        }
    }

    /// The way that this process takes unless the file system on the disk decides. Nothing on the disk is looked at, so this can
    /// be asked before there is a passphrase. `kind` is the type of the file system that will be made, if one will.
    ///
    /// Errors: [`Kind::Permission`] if `wanted` is the loop device and it cannot be had, [`Kind::NotFound`] if a program is
    /// missing, [`Kind::Usage`] if the program does not know this type.
    pub fn check(wanted: Option<Way>, kind: Option<&str>) -> Result<()> {
        match wanted {
            Some(Way::Loop) => may_use_loop().map_err(offer_others),
            None if may_use_loop().is_ok() => Ok(()),
            _ => Self::program(wanted, kind).map(drop),
        }
    }

    /// Whether the loop device is the way: because it is wanted, or because nothing is and it can be had.
    pub fn is_loop(wanted: Option<Way>) -> bool {
        wanted.map_or_else(|| may_use_loop().is_ok(), |way| way == Way::Loop)
    }

    /// The way through a program for a file system of this type, or of any.
    pub(crate) fn program(wanted: Option<Way>, kind: Option<&str>) -> Result<Way> {
        let candidates: Vec<Way> = match wanted {
            Some(way) => vec![way],
            None => Self::PROGRAMS.to_vec(),
        };
        let able = || candidates.iter().filter(|way| kind.is_none_or(|kind| way.mounts(kind)));
        if let Some(way) = able().find(|way| tool::is_installed(way.name())) {
            return Ok(*way);
        }
        let what = "cannot mount a file system without root";
        match able().next() {
            Some(Way::Fuse2fs) => Err(offer_loop(
                Error::new(Kind::NotFound, what).found("no program fuse2fs").expected("the package fuse2fs"),
                "install it",
            )),
            Some(way) => {
                let kind = kind.map(|kind| format!(", which alone mounts {kind}")).unwrap_or_default();
                let expected =
                    "it on the search path (the Linux Kernel Library has it; Debian has no package)";
                let missing =
                    Error::new(Kind::NotFound, what).found(format!("no program {}{kind}", way.name()));
                Err(offer_loop(missing.expected(expected), "use ext4"))
            }
            None => Err(offer_loop(
                Error::new(Kind::Usage, what)
                    .found(format!("the type {} with the way {}", kind.unwrap_or("?"), wanted_name(wanted)))
                    .expected("ext2, ext3 or ext4"),
                "use ext4",
            )),
        }
    }

    fn mounts(self, kind: &str) -> bool {
        self != Way::Fuse2fs || is_ext(kind)
    }
}

fn wanted_name(wanted: Option<Way>) -> &'static str {
    wanted.map_or("fuse2fs", Way::name)
}

/// Whether a file system of this type is one of the family that fuse2fs and e2fsck know.
pub(crate) fn is_ext(kind: &str) -> bool {
    matches!(kind, "ext2" | "ext3" | "ext4")
}

/// Whether this process may mount a file system from a loop device. The root of a user namespace may not: there are no loop
/// devices for it, and the kernel mounts no file system from a device for it.
fn may_use_loop() -> Result<()> {
    let refused = |found: &str| {
        Error::new(Kind::Permission, "cannot mount a file system from a loop device").found(found)
    };
    if !rustix::process::geteuid().is_root() {
        return Err(refused("a user other than root"));
    }
    if in_user_namespace() {
        return Err(refused("the root of a user namespace, which has no loop devices"));
    }
    if !may_mount() {
        return Err(refused("root without the capability to mount (CAP_SYS_ADMIN), as in a container"));
    }
    match File::options().read(true).write(true).open(LOOP_CONTROL) {
        Ok(_) => Ok(()),
        Err(e) => Err(refused(&format!("{LOOP_CONTROL}: {e}"))),
    }
}

/// Whether this process lives in a user namespace that somebody made.
fn in_user_namespace() -> bool {
    let map = proc::user_map().ok().flatten();
    map.is_some_and(|map| !map.is_empty() && map.split_whitespace().ne(["0", "0", "4294967295"]))
}

/// Whether the process has the capability to mount. Where that cannot be told, what needs it is tried.
fn may_mount() -> bool {
    capabilities(None).map_or(true, |sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Adds the ways that need fewer privileges, if privileges are what was lacking.
pub(crate) fn offer_others(error: Error) -> Error {
    if error.kind() != Kind::Permission {
        return error;
    }
    let advice =
        Advice::from("run as root where loop devices are allowed, open it with ").setting(Setting("via"));
    let advice =
        advice.text(" fuse2fs, serve the disk to NBD clients, or open it with ").setting(Setting("raw"));
    error.remedy(advice.text(", which gives it as a file"))
}

/// Adds the ways without the program that is missing.
fn offer_loop(error: Error, first: &str) -> Error {
    let advice = Advice::from(format!(
        "{first}; or run as root where loop devices are allowed; or open the disk with "
    ));
    error.remedy(advice.setting(Setting("raw")).text(", which gives it as a file"))
}

/// What FUSE needs here and has not. `None` if a mount can be tried.
pub fn lacking_for_fuse() -> Option<Error> {
    let what = "cannot mount with FUSE";
    if !Path::new("/dev/fuse").exists() {
        let remedy = "load it with `modprobe fuse`; give a container the device with `--device /dev/fuse`";
        return Some(Error::new(Kind::NotFound, what).found("no device /dev/fuse").remedy(remedy));
    }
    let mounts_itself = rustix::process::geteuid().is_root() && may_mount();
    (!mounts_itself && !tool::is_installed("fusermount3")).then(|| {
        Error::new(Kind::NotFound, what)
            .found("no program fusermount3, which mounts for those who are not root")
            .remedy("install the package fuse3; or in a container run as root of a user namespace: `unshare --user --map-root-user --mount`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuse2fs_is_for_its_family_alone() {
        assert!(Way::Fuse2fs.mounts("ext2") && Way::Fuse2fs.mounts("ext4") && !Way::Fuse2fs.mounts("xfs"));
        assert!(Way::Lklfuse.mounts("xfs"));
        let refused = Way::program(Some(Way::Fuse2fs), Some("btrfs")).unwrap_err();
        assert_eq!(refused.kind(), Kind::Usage);
        assert!(refused.to_string().contains("ext4") && refused.to_string().contains("btrfs"), "{refused}");
    }
}
