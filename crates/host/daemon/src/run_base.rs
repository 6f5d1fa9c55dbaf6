//! The bases of run directories: where this user has some, and whether others can meddle with them.

use lacuna_contracts::{Error, Kind, Result};
use rustix::fs::{Access, access};
use rustix::process::geteuid;
use std::fs::{self, DirBuilder, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What others may do with a base: nothing may be written by them.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// How many names a shared directory has for the base of one user, so that another user who takes
/// some of them keeps nobody out.
const NAMES: u32 = 8;

/// The directory in which new run directories are made: `/run/lacuna` for root; otherwise below
/// `XDG_RUNTIME_DIR` or `/run/user/UID`, if that is a directory of this user that others cannot
/// write to; otherwise `/dev/shm/lacuna-UID`, or `/tmp/lacuna-UID` where there is no `/dev/shm`.
/// Where another user has taken that name, `lacuna-UID-2` to `-8` follow.
///
/// Errors: [`Kind::Permission`] if it is this user's and others can change what is in it, or if
/// others have taken all names; that it cannot be looked at.
pub fn default_run_base() -> Result<PathBuf> {
    first_of(&Candidates::now()?.new)
}

/// Every directory in which run directories of this user may be, the one for new ones first. A
/// server that was started where there was no `XDG_RUNTIME_DIR`, as by cron, has its run directory
/// in another than those that a login starts. Directories that others can change are left out, for
/// records in them could lead commands astray.
///
/// Errors: those of [`default_run_base`].
pub(crate) fn run_bases() -> Result<Vec<PathBuf>> {
    let candidates = Candidates::now()?;
    let first = first_of(&candidates.new)?;
    let mut bases = vec![first];
    for base in candidates.new.into_iter().chain(candidates.former) {
        if !bases.contains(&base) && Standing::of(&base)? == Standing::Own {
            bases.push(base);
        }
    }
    Ok(bases)
}

/// The first that no other user has taken: nothing of this user can be in theirs. One of this
/// user's that others can change is refused, because passing over it would pass over the servers
/// that are in it.
fn first_of(candidates: &[PathBuf]) -> Result<PathBuf> {
    for base in candidates {
        match Standing::of(base)? {
            Standing::Absent | Standing::Own => return Ok(base.clone()),
            Standing::Open => return check_base(base).map(|()| base.clone()),
            Standing::Taken => {}
        }
    }
    let what = "cannot choose a run directory";
    let base = candidates.first().ok_or_else(|| Error::new(Kind::NotFound, what))?;
    check_base(base).map(|()| base.clone())
}

/// Where bases of this user can be.
struct Candidates {
    /// Those for new run directories, the best first.
    new: Vec<PathBuf>,
    /// Those that servers which were started in another surrounding may have.
    former: Vec<PathBuf>,
}

impl Candidates {
    fn now() -> Result<Candidates> {
        // The root of a user namespace cannot write to the system's own directory, unless the
        // namespace is that of a container.
        if geteuid().is_root() && access("/run", Access::WRITE_OK).is_ok() {
            return Ok(Candidates { new: vec![PathBuf::from("/run/lacuna")], former: Vec::new() });
        }
        let user = real_user()?;
        let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let usual = PathBuf::from(format!("/run/user/{user}"));
        let own = given.into_iter().chain([usual]).filter(|dir| dir.is_absolute() && is_own(dir));
        let mut new: Vec<PathBuf> = own.map(|dir| dir.join("lacuna")).collect();
        let mut former = names(Path::new("/tmp"), user);
        // What is written there says how many levels are mounted: it belongs into memory, and not
        // on a disk (deniability contract).
        if access("/dev/shm", Access::WRITE_OK).is_ok() {
            new.extend(names(Path::new("/dev/shm"), user));
        } else {
            new.append(&mut former);
        }
        Ok(Candidates { new, former })
    }
}

/// The names of a user's base in a directory that all users share.
fn names(dir: &Path, user: u32) -> Vec<PathBuf> {
    let suffix = |n| if n == 1 { String::new() } else { format!("-{n}") };
    (1..=NAMES).map(|n| dir.join(format!("lacuna-{user}{}", suffix(n)))).collect()
}

/// How a base stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Nothing is there.
    Absent,
    /// A directory of this user that nobody else can change.
    Own,
    /// Something of this user that others can change, or that is no directory.
    Open,
    /// Something of another user.
    Taken,
}

impl Standing {
    /// Errors: the base cannot be looked at.
    fn of(base: &Path) -> Result<Standing> {
        match fs::symlink_metadata(base) {
            Ok(meta) if is_closed_to_others(&meta) => Ok(Standing::Own),
            Ok(meta) if meta.uid() == geteuid().as_raw() => Ok(Standing::Open),
            Ok(_) => Ok(Standing::Taken),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Standing::Absent),
            Err(e) => Err(Error::io(format!("cannot use the run directory {}", base.display()), &e)),
        }
    }
}

/// Whether this is a directory of this user that nobody else can write to.
fn is_own(dir: &Path) -> bool {
    fs::metadata(dir).is_ok_and(|meta| is_closed_to_others(&meta))
}

fn is_closed_to_others(meta: &Metadata) -> bool {
    let own = meta.is_dir() && meta.uid() == geteuid().as_raw();
    own && meta.permissions().mode() & WRITABLE_BY_OTHERS == 0
}

/// The number of this user outside of the user namespace that the process may be in: the root of a
/// namespace is somebody else there.
fn real_user() -> Result<u32> {
    let inside = geteuid().as_raw();
    let map = lacuna_mount::proc::user_map()
        .map_err(|e| Error::io("cannot tell who this user is outside of its user namespace", &e))?;
    // A kernel without user namespaces has no map.
    Ok(map.and_then(|map| outside(&map, inside)).unwrap_or(inside))
}

/// What a map of users says of one.
fn outside(map: &str, inside: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map(|n| n.parse::<u32>().ok());
        let (from, to, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let offset = inside.checked_sub(from).filter(|offset| *offset < count)?;
        to.checked_add(offset)
    })
}

/// Makes a base, or a directory in one, if it is not there. Errors: [`Kind::Permission`] as of
/// [`default_run_base`].
pub(crate) fn prepare_base(base: &Path) -> Result<()> {
    create_dir(base)?;
    check_base(base)
}

/// Errors: [`Kind::Permission`] if others than this user can change what is in it, or if it is a
/// symbolic link.
fn check_base(base: &Path) -> Result<()> {
    let failed = |e| Error::io(format!("cannot use the run directory {}", base.display()), &e);
    let meta = fs::symlink_metadata(base).map_err(failed)?;
    if is_closed_to_others(&meta) {
        return Ok(());
    }
    Err(Error::new(Kind::Permission, format!("cannot use the run directory {}", base.display()))
        .found(format!("owner {}, mode {:o}", meta.uid(), meta.permissions().mode()))
        .expected("a directory of your own that only you can write to")
        .remedy("set XDG_RUNTIME_DIR to such a directory, or remove this one if it is yours"))
}

/// Makes a directory for this user alone, with those above it, if it is not there.
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
    fn users_are_told_apart_outside_of_their_namespaces() {
        assert_eq!(outside("         0       1000          1\n", 0), Some(1000));
        assert_eq!(outside("0 1000 1\n1 100000 65536\n", 2), Some(100_001));
        assert_eq!(outside("0 0 4294967295", 1000), Some(1000));
        for map in ["", "0 1000 1", "a b c", "0 4294967295 9"] {
            assert_eq!(outside(map, 5), None, "{map}");
        }
    }

    #[test]
    fn planted_bases_are_refused() {
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
    fn a_name_that_another_user_took_keeps_nobody_out() {
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
            assert_eq!(Standing::of(base).unwrap(), Standing::Taken);
        }
        assert_eq!(first_of(&all).unwrap_err().kind(), Kind::Permission);
    }
}
