//! Serializes a path in a record: as text, or as an array of bytes if it is not UTF-8.

use serde::{Deserialize, Deserializer, Serializer};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Both forms.
#[derive(Deserialize)]
#[serde(untagged)]
enum PathForm {
    Text(String),
    Bytes(Vec<u8>),
}

pub(crate) fn serialize<S: Serializer>(path: &Path, out: S) -> Result<S::Ok, S::Error> {
    match path.to_str() {
        Some(text) => out.serialize_str(text),
        None => out.collect_seq(path.as_os_str().as_bytes()),
    }
}

pub(crate) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<PathBuf, D::Error> {
    Ok(match PathForm::deserialize(from)? {
        PathForm::Text(text) => text.into(),
        PathForm::Bytes(bytes) => OsString::from_vec(bytes).into(),
    })
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::PathBuf;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Record(#[serde(with = "super")] PathBuf);

    #[test]
    fn paths_that_are_not_utf_8_are_serialized() {
        for (path, written) in [(&b"/mnt/caf\xc3\xa9"[..], "\"/mnt/café\""), (&b"/a\xe9"[..], "[47,97,233]")]
        {
            let record = Record(OsStr::from_bytes(path).into());
            let text = serde_json::to_string(&record).unwrap();
            assert_eq!(text, written);
            assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
        }
        assert!(serde_json::from_str::<Record>("[300]").is_err());
    }
}
