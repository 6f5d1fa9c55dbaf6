//! Where a disk lies, as a person writes it.

use lacuna_core::{Error, Kind, Result};
use std::fmt;
use std::path::{Path, PathBuf};

/// The prefixes of media that a build may or may not have, with the name of what they lead to.
const SCHEMES: [(&str, &str); 3] =
    [("rados:", "Ceph RADOS medium"), ("nand:", "simulated flash medium"), ("ubi:", "UBI flash medium")];

/// Where a disk lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A file or block device.
    Path(PathBuf),
}

impl Location {
    /// Reads a location. A file whose name begins like another kind of location is written `./rados:x`.
    pub fn parse(text: &str) -> Result<Location> {
        if text.is_empty() || text.contains('\0') {
            return Err(Error::new(Kind::Usage, "cannot read the location")
                .found(if text.is_empty() { "an empty one" } else { "one with a zero byte in it" })
                .expected("the path of a file or block device"));
        }
        if let Some((prefix, medium)) = SCHEMES.iter().find(|(prefix, _)| text.starts_with(prefix)) {
            return Err(Error::new(Kind::Usage, format!("cannot use the location {text}"))
                .found(format!("the prefix `{prefix}`; this build has no {medium}"))
                .expected("the path of a file or block device")
                .remedy(format!("for a file of this name write ./{text}")));
        }
        Ok(Location::Path(PathBuf::from(text)))
    }

    /// The path, if the location is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Location::Path(path) => Some(path),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Path(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_paths() {
        for text in ["disk.img", "/dev/vdb", "./rados:x", "a:b", "radosgw", "-", "dir/nand:x"] {
            assert_eq!(Location::parse(text).unwrap(), Location::Path(PathBuf::from(text)));
            assert_eq!(Location::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_media_are_refused_with_a_way_out() {
        for text in ["rados:pool/name@snap", "nand:x", "ubi:/dev/ubi0_0"] {
            let error = Location::parse(text).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage);
            assert!(error.to_string().contains("this build has no "), "{error}");
            assert!(error.to_string().contains(&format!("./{text}")), "{error}");
        }
        assert_eq!(Location::parse("").unwrap_err().kind(), Kind::Usage);
        assert_eq!(Location::parse("a\0b").unwrap_err().kind(), Kind::Usage);
    }
}
