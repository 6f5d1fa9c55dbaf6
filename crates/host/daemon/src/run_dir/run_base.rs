//! The bases of run directories: their paths for this user, and protection against other users.

use lacuna_contracts::{Error, Kind, Result};
use rustix::fs::{Access, access};
use rustix::process::geteuid;
use std::fs::{self, DirBuilder, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Permission bits that a base must not have: group and world write.
pub(crate) const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The number of names that a shared directory has for the base of one user, so that another user
/// cannot lock this user out by taking some of them.
const NAMES: u32 = 8;

/// The directory for new run directories: `/run/lacuna` for root; otherwise below `XDG_RUNTIME_DIR`
/// or `/run/user/UID`, if that is a directory of this user that other users cannot write to;
/// otherwise `/dev/shm/lacuna-UID`, or `/tmp/lacuna-UID` if there is no `/dev/shm`. If another user
/// has taken that name, `lacuna-UID-2` to `-8` follow.
///
/// Errors: [`Kind::Permission`] if it belongs to this user and other users can change its content,
/// or if other users have taken all names; a failure to inspect it.
pub fn default_run_base() -> Result<PathBuf> {
    first_of(&Candidates::now()?.new)
}

/// Every directory that may have run directories of this user, the one for new ones first. A server
/// that was started without `XDG_RUNTIME_DIR`, as by cron, is in another base than a server that
/// was started after a login. Directories that other users can change are left out, because forged
/// records could misdirect commands.
///
/// Errors: those of [`default_run_base`].
pub(crate) fn run_bases() -> Result<Vec<PathBuf>> {
    let candidates = Candidates::now()?;
    let first = first_of(&candidates.new)?;
    let mut bases = vec![first];
    for base in candidates.new.into_iter().chain(candidates.elsewhere) {
        if !bases.contains(&base) && BaseOwnership::of(&base)? == BaseOwnership::Own {
            bases.push(base);
        }
    }
    Ok(bases)
}

/// The first candidate that no other user has taken; a directory of another user cannot contain
/// anything of this user. A directory of this user that other users can change is an error:
/// skipping it would hide the servers in it.
fn first_of(candidates: &[PathBuf]) -> Result<PathBuf> {
    for base in candidates {
        match BaseOwnership::of(base)? {
            BaseOwnership::Absent | BaseOwnership::Own => return Ok(base.clone()),
            BaseOwnership::Insecure => return check_base(base).map(|()| base.clone()),
            BaseOwnership::Foreign => {}
        }
    }
    let what = "cannot choose a run directory";
    let base = candidates.first().ok_or_else(|| Error::new(Kind::NotFound, what))?;
    check_base(base).map(|()| base.clone())
}

/// The possible bases of this user.
struct Candidates {
    /// The bases for new run directories, in order of preference.
    new: Vec<PathBuf>,
    /// Bases of servers that were started in another environment.
    elsewhere: Vec<PathBuf>,
}

impl Candidates {
    fn now() -> Result<Candidates> {
        // Root in a user namespace cannot write to the system's `/run`, unless the namespace is
        // that of a container.
        if geteuid().is_root() && access("/run", Access::WRITE_OK).is_ok() {
            return Ok(Candidates { new: vec![PathBuf::from("/run/lacuna")], elsewhere: Vec::new() });
        }
        let user = outer_uid()?;
        let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let usual = PathBuf::from(format!("/run/user/{user}"));
        let own = given.into_iter().chain([usual]).filter(|dir| dir.is_absolute() && is_own(dir));
        let mut new: Vec<PathBuf> = own.map(|dir| dir.join("lacuna")).collect();
        let mut former = names(Path::new("/tmp"), user);
        // The run directory reveals how many levels are mounted, so it belongs in memory and not on
        // a disk (deniability contract).
        if access("/dev/shm", Access::WRITE_OK).is_ok() {
            new.extend(names(Path::new("/dev/shm"), user));
        } else {
            new.append(&mut former);
        }
        Ok(Candidates { new, elsewhere: former })
    }
}

/// The names of a user's base in a directory that all users share.
pub(crate) fn names(dir: &Path, user: u32) -> Vec<PathBuf> {
    let suffix = |n| if n == 1 { String::new() } else { format!("-{n}") };
    (1..=NAMES).map(|n| dir.join(format!("lacuna-{user}{}", suffix(n)))).collect()
}

/// The state of a possible base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BaseOwnership {
    /// Nothing exists there.
    Absent,
    /// A directory of this user that other users cannot change.
    Own,
    /// An entry of this user that other users can change, or that is no directory.
    Insecure,
    /// An entry of another user.
    Foreign,
}

impl BaseOwnership {
    /// Errors: the base cannot be looked at.
    fn of(base: &Path) -> Result<BaseOwnership> {
        match fs::symlink_metadata(base) {
            Ok(meta) if is_closed_to_others(&meta) => Ok(BaseOwnership::Own),
            Ok(meta) if meta.uid() == geteuid().as_raw() => Ok(BaseOwnership::Insecure),
            Ok(_) => Ok(BaseOwnership::Foreign),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(BaseOwnership::Absent),
            Err(e) => Err(Error::io(format!("cannot use the run directory {}", base.display()), &e)),
        }
    }
}

/// Whether this is a directory of this user that other users cannot write to.
fn is_own(dir: &Path) -> bool {
    fs::metadata(dir).is_ok_and(|meta| is_closed_to_others(&meta))
}

fn is_closed_to_others(meta: &Metadata) -> bool {
    let own = meta.is_dir() && meta.uid() == geteuid().as_raw();
    own && meta.permissions().mode() & WRITABLE_BY_OTHERS == 0
}

/// The number of this user outside of the user namespace of the process: root of a namespace has
/// another number there.
fn outer_uid() -> Result<u32> {
    let inside = geteuid().as_raw();
    let map = lacuna_mount::proc::user_map()
        .map_err(|e| Error::io("cannot find the number of this user outside of its user namespace", &e))?;
    // A kernel without user namespaces has no map.
    Ok(map.and_then(|map| map_uid(&map, inside)).unwrap_or(inside))
}

/// Maps a user number through a `uid_map` to the number outside.
fn map_uid(map: &str, inside: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map(|n| n.parse::<u32>().ok());
        let (from, to, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let offset = inside.checked_sub(from).filter(|offset| *offset < count)?;
        to.checked_add(offset)
    })
}

/// Creates a base if it does not exist, and checks it. Errors: [`Kind::Permission`] as in
/// [`default_run_base`].
pub(crate) fn prepare_base(base: &Path) -> Result<()> {
    create_dir(base)?;
    check_base(base)
}

/// Errors: [`Kind::Permission`] if other users can change its content, or if it is a symbolic link.
fn check_base(base: &Path) -> Result<()> {
    let failed = |e| Error::io(format!("cannot use the run directory {}", base.display()), &e);
    let meta = fs::symlink_metadata(base).map_err(failed)?;
    if is_closed_to_others(&meta) {
        return Ok(());
    }
    Err(Error::new(Kind::Permission, format!("cannot use the run directory {}", base.display()))
        .found(format!("owner {}, mode {:o}", meta.uid(), meta.permissions().mode()))
        .expected("a directory of your own that only you can write to")
        .hint("set XDG_RUNTIME_DIR to such a directory, or remove this one if it is yours"))
}

/// Creates a directory for this user alone, with its parents, if it does not exist.
pub(crate) fn create_dir(dir: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|e| Error::io(format!("cannot create the directory {}", dir.display()), &e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn user_numbers_are_mapped_out_of_namespaces() {
        assert_eq!(map_uid("         0       1000          1\n", 0), Some(1000));
        assert_eq!(map_uid("0 1000 1\n1 100000 65536\n", 2), Some(100_001));
        assert_eq!(map_uid("0 0 4294967295", 1000), Some(1000));
        for map in ["", "0 1000 1", "a b c", "0 4294967295 9"] {
            assert_eq!(map_uid(map, 5), None, "{map}");
        }
    }

    #[test]
    fn insecure_bases_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let base = place.path().join("base");
        assert_eq!(first_of(std::slice::from_ref(&base)).unwrap(), base);
        prepare_base(&base).unwrap();
        assert_eq!(first_of(std::slice::from_ref(&base)).unwrap(), base);

        let link = place.path().join("link");
        symlink(&base, &link).unwrap();
        for mode in [0o770, 0o707, 0o1777] {
            fs::set_permissions(&base, fs::Permissions::from_mode(mode)).unwrap();
            for refused in [prepare_base(&base), first_of(std::slice::from_ref(&base)).map(drop)] {
                assert_eq!(refused.unwrap_err().kind(), Kind::Permission, "{mode:o}");
            }
            assert!(!is_own(&base));
        }
        fs::set_permissions(&base, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(prepare_base(&link).unwrap_err().kind(), Kind::Permission);
        assert_eq!(first_of(&[link, base]).unwrap_err().kind(), Kind::Permission);
    }

    #[test]
    fn a_base_name_taken_by_another_user_is_skipped() {
        if !geteuid().is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let all = names(place.path(), 7);
        assert_eq!(all[1], place.path().join("lacuna-7-2"));
        for (n, base) in all.iter().enumerate() {
            assert_eq!(first_of(&all).unwrap(), *base, "{n} names are taken");
            fs::create_dir(base).unwrap();
            std::os::unix::fs::chown(base, Some(54_321), None).unwrap();
            assert_eq!(BaseOwnership::of(base).unwrap(), BaseOwnership::Foreign);
        }
        assert_eq!(first_of(&all).unwrap_err().kind(), Kind::Permission);
    }
}
