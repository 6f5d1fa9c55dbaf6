//! The limits of the file system of a rescue's target: names, kinds, lengths and attributes that it
//! cannot hold. Each concerns single nodes, which the rescue lists, and goes on.

use lacuna_contracts::{Error, Result};
use rustix::io::Errno;

/// The limit of the target that a node exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetLimit {
    /// That of its name, or of its path: elsewhere there may be a place for it.
    Name,
    /// That of its kind, its length or its attributes.
    Node,
}

impl TargetLimit {
    /// The limit that an error of the target shows. `None`: any other failure, which other nodes
    /// would meet as well.
    pub(super) fn of(e: &Error) -> Option<TargetLimit> {
        let source = std::error::Error::source(e)?.downcast_ref::<std::io::Error>()?;
        match Errno::from_io_error(source)? {
            Errno::EXIST | Errno::ILSEQ | Errno::INVAL | Errno::NAMETOOLONG => Some(TargetLimit::Name),
            Errno::FBIG | Errno::OPNOTSUPP | Errno::PERM => Some(TargetLimit::Node),
            _ => None,
        }
    }
}

/// The system's words for an error, without the path, which may be very long.
pub(super) fn reason(e: &Error) -> String {
    std::error::Error::source(e).map_or_else(|| e.summary(), ToString::to_string)
}

/// The attributes that the target does not keep. A file system without permissions has none for any
/// file, so each attribute is listed once.
#[derive(Default)]
pub(super) struct UnkeptAttributes(Vec<&'static str>);

impl UnkeptAttributes {
    /// Notes whether an attribute could be set. Returns the missing part to list, if any.
    ///
    /// Errors: any failure of the target that is no limit of it.
    pub(super) fn note(&mut self, attribute: &'static str, set: Result<()>) -> Result<Option<String>> {
        let Err(e) = set else { return Ok(None) };
        if TargetLimit::of(&e).is_none() {
            return Err(e);
        }
        if self.0.contains(&attribute) {
            return Ok(None);
        }
        self.0.push(attribute);
        let why = reason(&e);
        Ok(Some(format!("its {attribute}, as those of all other nodes that the target cannot keep ({why})")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(errno: Errno) -> Error {
        Error::io("cannot create a file", &errno.into())
    }

    #[test]
    fn a_limit_is_no_failure_of_the_target() {
        for errno in [Errno::EXIST, Errno::ILSEQ, Errno::INVAL, Errno::NAMETOOLONG] {
            assert_eq!(TargetLimit::of(&error(errno)), Some(TargetLimit::Name), "{errno}");
        }
        for errno in [Errno::FBIG, Errno::OPNOTSUPP, Errno::PERM] {
            assert_eq!(TargetLimit::of(&error(errno)), Some(TargetLimit::Node), "{errno}");
        }
        for errno in [Errno::NOSPC, Errno::DQUOT, Errno::IO, Errno::ROFS, Errno::ACCESS, Errno::NOENT] {
            assert_eq!(TargetLimit::of(&error(errno)), None, "{errno}");
        }
        assert!(reason(&error(Errno::NAMETOOLONG)).starts_with("File name too long"));
    }

    #[test]
    fn an_attribute_that_the_target_does_not_keep_is_listed_once() {
        let mut unkept = UnkeptAttributes::default();
        assert_eq!(unkept.note("permissions", Ok(())).unwrap(), None);
        let first = unkept.note("permissions", Err(error(Errno::PERM))).unwrap();
        assert!(first.is_some_and(|line| line.starts_with("its permissions")));
        assert_eq!(unkept.note("permissions", Err(error(Errno::PERM))).unwrap(), None);
        assert!(unkept.note("times", Err(error(Errno::PERM))).unwrap().is_some());
        assert!(unkept.note("times", Err(error(Errno::IO))).is_err());
    }
}
