//! The location of a disk, as a user writes it.

use lacuna_contracts::{Error, Hint, Kind, Result, Setting};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The prefix of disks in Ceph RADOS.
const RADOS: &str = "rados:";
/// The form of such a location.
const RADOS_FORM: &str = "rados:POOL/NAME or rados:POOL/NAME@SNAPSHOT";
/// The prefix of files that hold a simulated chip.
const NAND: &str = "nand:";
/// The prefix of UBI volumes.
const UBI: &str = "ubi:";
/// Longest name of a disk or of a snapshot, in bytes: it becomes part of the names of objects.
const NAME_MAX: usize = 64;

/// The location of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A file or block device.
    Path(PathBuf),
    /// A file with a simulated NAND chip.
    Nand(PathBuf),
    /// A UBI volume of Linux, by its character device.
    Ubi(PathBuf),
    /// Objects in a pool of Ceph RADOS.
    Rados {
        /// The pool.
        pool: String,
        /// The name of the disk in its pool and namespace: letters, digits, `-` and `_`.
        name: String,
        /// The snapshot, or none for the present state.
        snapshot: Option<String>,
    },
}

impl Location {
    /// Reads a location. A file with a name that begins like another kind of location is written
    /// `./rados:x`.
    pub fn parse(text: &str) -> Result<Location> {
        if text.is_empty() || text.contains('\0') {
            return Err(Error::new(Kind::Usage, "cannot read the location")
                .found(if text.is_empty() { "an empty one" } else { "one with a zero byte in it" })
                .expected(format!("the path of a file or block device, or {RADOS_FORM}")));
        }
        if let Some(rest) = text.strip_prefix(RADOS) {
            return parse_rados(rest).map_err(|flaw| flaw.into_error(text));
        }
        for (prefix, example, flash) in [
            (NAND, "nand:chip.img", Location::Nand as fn(PathBuf) -> Location),
            (UBI, "ubi:/dev/ubi0_0", Location::Ubi),
        ] {
            let Some(path) = text.strip_prefix(prefix) else { continue };
            if path.is_empty() {
                return Err(Error::new(Kind::Usage, format!("cannot read the location {text:?}"))
                    .found("no path behind the prefix")
                    .expected(format!("for example {example}"))
                    .hint(format!("for a file of this name write ./{text}")));
            }
            return Ok(flash(PathBuf::from(path)));
        }
        Ok(Location::Path(PathBuf::from(text)))
    }

    /// [`Location::parse`] of a word that may not be UTF-8: paths are bytes. Errors: those of
    /// [`Location::parse`].
    pub fn from_os_str(word: &OsStr) -> Result<Location> {
        if let Some(text) = word.to_str() {
            return Location::parse(text);
        }
        let bytes = word.as_bytes();
        if bytes.starts_with(RADOS.as_bytes()) {
            return Location::parse(&word.to_string_lossy());
        }
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        Ok(match (bytes.strip_prefix(NAND.as_bytes()), bytes.strip_prefix(UBI.as_bytes())) {
            (Some(rest), _) => Location::Nand(path(rest)),
            (None, Some(rest)) => Location::Ubi(path(rest)),
            (None, None) => Location::Path(path(bytes)),
        })
    }

    /// The location as [`Location::from_os_str`] reads it.
    pub fn to_os_string(&self) -> OsString {
        let (prefix, path) = match self {
            Location::Path(path) => ("", path),
            Location::Nand(path) => (NAND, path),
            Location::Ubi(path) => (UBI, path),
            Location::Rados { .. } => return self.to_string().into(),
        };
        let mut word = OsString::from(prefix);
        word.push(path);
        word
    }

    /// The path of the disk on this machine, if it has one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Location::Path(path) | Location::Nand(path) | Location::Ubi(path) => Some(path),
            Location::Rados { .. } => None,
        }
    }

    /// Whether the location is a block device now.
    pub fn is_block_device(&self) -> bool {
        let Location::Path(path) = self else { return false };
        std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
    }

    /// The same kind of location with another path.
    #[must_use]
    pub fn with_path(&self, path: PathBuf) -> Location {
        match self {
            Location::Path(_) => Location::Path(path),
            Location::Nand(_) => Location::Nand(path),
            Location::Ubi(_) => Location::Ubi(path),
            Location::Rados { .. } => self.clone(),
        }
    }

    /// The snapshot, if the location names one. Such a disk is read-only.
    pub fn snapshot(&self) -> Option<&str> {
        match self {
            Location::Path(_) | Location::Nand(_) | Location::Ubi(_) => None,
            Location::Rados { snapshot, .. } => snapshot.as_deref(),
        }
    }

    /// Checks the name of a snapshot: 1 to 64 letters, digits, and `-`, `_`, `.`, `:`. The first
    /// character is a letter or a digit.
    pub fn check_snapshot_name(name: &str) -> Result<()> {
        check_name("a snapshot", name, "-_.:").map_err(|flaw| {
            let error = Error::new(Kind::Usage, "cannot use this name for a snapshot");
            error.found(flaw.found).expected(flaw.expected).hint(flaw.hint)
        })
    }
}

/// The flaw of a malformed location.
struct LocationFlaw {
    found: String,
    expected: String,
    hint: Hint,
}

impl LocationFlaw {
    fn into_error(self, text: &str) -> Error {
        Error::new(Kind::Usage, format!("cannot read the location {text:?}"))
            .found(self.found)
            .expected(self.expected)
            .hint(self.hint)
    }
}

/// Reads the part after the prefix. The name of the pool ends at the first slash: no pool name,
/// disk name or snapshot name contains one.
fn parse_rados(rest: &str) -> std::result::Result<Location, LocationFlaw> {
    let flaw = |found: &str, remedy: Hint| LocationFlaw {
        found: found.into(),
        expected: RADOS_FORM.into(),
        hint: remedy,
    };
    let (pool, rest) = rest.split_once('/').ok_or_else(|| {
        let remedy = "write for example rados:mypool/mydisk; for a file of this name begin with ./";
        flaw("no slash after the pool", remedy.into())
    })?;
    check_pool(pool)?;
    let (name, snapshot) = match rest.split_once('@') {
        Some((name, snapshot)) => (name, Some(snapshot)),
        None => (rest, None),
    };
    if name.contains('/') {
        let remedy =
            Hint::from("the namespace, if there is one, is given with ").setting(Setting("namespace"));
        return Err(flaw("a second slash", remedy));
    }
    check_name("a disk", name, "-_")?;
    if let Some(snapshot) = snapshot {
        check_name("a snapshot", snapshot, "-_.:")?;
    }
    Ok(Location::Rados { pool: pool.into(), name: name.into(), snapshot: snapshot.map(Into::into) })
}

fn check_pool(pool: &str) -> std::result::Result<(), LocationFlaw> {
    let flaw = |found: String, remedy: &'static str| LocationFlaw {
        found,
        expected: "the name of a pool before the slash".into(),
        hint: remedy.into(),
    };
    if pool.is_empty() {
        return Err(flaw("no pool".into(), "`ceph osd pool ls` lists the pools"));
    }
    match pool.chars().find(|c| c.is_whitespace() || c.is_control() || *c == '@') {
        Some('@') => Err(flaw(
            "a snapshot before the slash".into(),
            "the snapshot comes last: rados:POOL/NAME@SNAPSHOT",
        )),
        Some(c) => Err(flaw(format!("{c:?} in the name of the pool"), "`ceph osd pool ls` lists the pools")),
        None => Ok(()),
    }
}

/// Checks a name that becomes part of the names of objects. The name of a disk has no dot: the
/// objects of its header must never be taken for data objects of another disk.
fn check_name(whose: &str, name: &str, marks: &str) -> std::result::Result<(), LocationFlaw> {
    let listed: Vec<String> = marks.chars().map(|c| format!("`{c}`")).collect();
    let flaw = |found: String| LocationFlaw {
        found,
        expected: format!(
            "a name of 1 to {NAME_MAX} letters (a to z, A to Z), digits, and {}, which do not begin it",
            listed.join(", ")
        ),
        hint: "choose such a name".into(),
    };
    if name.is_empty() {
        return Err(flaw(format!("no name of {whose}")));
    }
    if name.len() > NAME_MAX {
        return Err(flaw(format!("a name of {} bytes", name.len())));
    }
    if let Some(c) = name.chars().find(|c| !c.is_ascii_alphanumeric() && !marks.contains(*c)) {
        return Err(flaw(format!("{c:?} in the name of {whose}")));
    }
    match name.chars().next() {
        Some(c) if !c.is_ascii_alphanumeric() => Err(flaw(format!("a name that begins with {c:?}"))),
        _ => Ok(()),
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Path(path) => path.display().fmt(f),
            Location::Nand(path) => write!(f, "{NAND}{}", path.display()),
            Location::Ubi(path) => write!(f, "{UBI}{}", path.display()),
            Location::Rados { pool, name, snapshot: None } => write!(f, "{RADOS}{pool}/{name}"),
            Location::Rados { pool, name, snapshot: Some(snapshot) } => {
                write!(f, "{RADOS}{pool}/{name}@{snapshot}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_paths_parse_as_paths() {
        for text in
            ["disk.img", "/dev/vdb", "./rados:x", "a:b", "radosgw", "-", "dir/nand:x", "dir/rados:p/n"]
        {
            assert_eq!(Location::parse(text).unwrap(), Location::Path(PathBuf::from(text)));
            assert_eq!(Location::parse(text).unwrap().to_string(), text);
            assert_eq!(Location::parse(text).unwrap().snapshot(), None);
        }
    }

    #[test]
    fn paths_need_not_be_text() {
        let of = |word: &[u8]| Location::from_os_str(OsStr::from_bytes(word));
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        assert_eq!(of(b"caf\xe9.img").unwrap(), Location::Path(path(b"caf\xe9.img")));
        assert_eq!(of(b"nand:\xff").unwrap(), Location::Nand(path(b"\xff")));
        assert_eq!(of(b"ubi:\xff").unwrap(), Location::Ubi(path(b"\xff")));
        for word in [&b"caf\xe9.img"[..], b"nand:\xff", b"ubi:\xff", b"rados:p/n@s"] {
            assert_eq!(of(word).unwrap().to_os_string().as_bytes(), word);
        }
        assert_eq!(of(b"rados:p/\xff").unwrap_err().kind(), Kind::Usage);
        assert_eq!(of(b"rados:p/n").unwrap(), Location::parse("rados:p/n").unwrap());
        assert_eq!(of(b"").unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn rados_locations_parse() {
        for (text, pool, name, snapshot) in [
            ("rados:pool/name", "pool", "name", None),
            ("rados:pool/name@snap", "pool", "name", Some("snap")),
            ("rados:.rgw-x.y/A_1-b@2024-05-01T10:00", ".rgw-x.y", "A_1-b", Some("2024-05-01T10:00")),
            ("rados:p/0@0", "p", "0", Some("0")),
        ] {
            let location = Location::parse(text).unwrap();
            let expected =
                Location::Rados { pool: pool.into(), name: name.into(), snapshot: snapshot.map(Into::into) };
            assert_eq!(location, expected);
            assert_eq!(location.to_string(), text);
            assert_eq!((location.path(), location.snapshot()), (None, snapshot));
        }
        let longest = format!("rados:p/{}@{}", "n".repeat(NAME_MAX), "s".repeat(NAME_MAX));
        assert_eq!(Location::parse(&longest).unwrap().to_string(), longest);
    }

    #[test]
    fn malformed_locations_are_explained() {
        for (text, said) in [
            ("rados:", "no slash after the pool"),
            ("rados:pool", "no slash after the pool"),
            ("rados:/name", "no pool"),
            ("rados:pool/", "no name of a disk"),
            ("rados:pool/@snap", "no name of a disk"),
            ("rados:pool/name@", "no name of a snapshot"),
            ("rados:pool/ns/name", "given with `namespace`"),
            ("rados:pool@snap/name", "the snapshot comes last"),
            ("rados:my pool/name", "in the name of the pool"),
            ("rados:pool/na me", "' ' in the name of a disk"),
            ("rados:pool/na.me", "'.' in the name of a disk"),
            ("rados:pool/näme", "'ä' in the name of a disk"),
            ("rados:pool/-name", "begins with '-'"),
            ("rados:pool/name@a@b", "'@' in the name of a snapshot"),
            ("rados:pool/name@a/b", "'/' in the name of a snapshot"),
            ("rados:pool/name@.a", "begins with '.'"),
            ("rados:pool/name\n", "'\\n' in the name of a disk"),
        ] {
            let error = Location::parse(text).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage);
            assert!(error.to_string().contains(said), "{text:?}: {error}");
        }
        for text in ["rados:p/".to_owned() + &"n".repeat(65), "rados:p/n@".to_owned() + &"s".repeat(65)] {
            assert!(Location::parse(&text).unwrap_err().to_string().contains("65 bytes"));
        }
        assert!(Location::check_snapshot_name("before-upgrade").is_ok());
        assert_eq!(Location::check_snapshot_name("a b").unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn flash_locations_parse() {
        for (text, expected) in [
            ("nand:chip.img", Location::Nand("chip.img".into())),
            ("nand:/tmp/a:b", Location::Nand("/tmp/a:b".into())),
            ("ubi:/dev/ubi0_0", Location::Ubi("/dev/ubi0_0".into())),
        ] {
            let location = Location::parse(text).unwrap();
            assert_eq!((location.to_string().as_str(), &location), (text, &expected));
            assert_eq!(location.path().unwrap().to_str(), text.split_once(':').map(|(_, path)| path));
            assert_eq!(
                location.with_path("x".into()).to_string(),
                format!("{}:x", text.split_once(':').unwrap().0)
            );
        }
        for text in ["nand:", "ubi:"] {
            let error = Location::parse(text).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage);
            assert!(error.to_string().contains(&format!("./{text}")), "{error}");
        }
        assert_eq!(Location::parse("").unwrap_err().kind(), Kind::Usage);
        assert_eq!(Location::parse("a\0b").unwrap_err().kind(), Kind::Usage);
    }
}
