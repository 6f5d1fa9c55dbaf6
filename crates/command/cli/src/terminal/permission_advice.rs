//! Advice for files, directories, sockets and devices that the system keeps from this user, where
//! the error has none of its own.

use lacuna_storage::{Error, Kind};
use rustix::process::geteuid;
use std::error::Error as _;
use std::io;

/// The advice for an error of the system that refused this user; `None` for any other error.
pub(super) fn of(e: &Error) -> Option<&'static str> {
    let number = e.source()?.downcast_ref::<io::Error>()?.raw_os_error()?;
    if e.kind() == Kind::Permission { advice(number, geteuid().is_root()) } else { None }
}

/// The advice for a number of the system.
fn advice(number: i32, is_root: bool) -> Option<&'static str> {
    match (number, is_root) {
        (libc::EACCES, false) => {
            Some("use sudo, or ask its owner for access: `ls -ld` shows the owner and the group")
        }
        (libc::EACCES, true) => {
            Some("the file system refuses root too, as NFS and FUSE may: run the command as the owner")
        }
        (libc::EPERM, false) => {
            Some("use sudo; if root may not do it either, `lsattr` shows an immutable file")
        }
        (libc::EPERM, true) => {
            Some("`lsattr` shows an immutable file; a container may lack the right for it")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_that_refuses_has_advice() {
        let refused = |number| Error::io("cannot read key", &io::Error::from_raw_os_error(number));
        for number in [libc::EACCES, libc::EPERM] {
            assert!(of(&refused(number)).is_some_and(|advice| advice.len() <= 100));
        }
        assert!(advice(libc::EACCES, false).is_some_and(|advice| advice.contains("sudo")));
        assert!(advice(libc::EACCES, true).is_some_and(|advice| !advice.contains("sudo")));
        assert_eq!(of(&refused(libc::EIO)), None);
        // What lacuna itself refuses says why.
        assert_eq!(of(&Error::new(Kind::Permission, "cannot use the run directory")), None);
    }
}
