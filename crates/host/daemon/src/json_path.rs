//! Paths in JSON for programs. JSON has no bytes, so a path that is not UTF-8 has a second field
//! with its bytes.

use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

/// The end of the name of the second field.
const BYTES: &str = "_bytes";

/// Sets the field `name` of an object to a path. If the path is not UTF-8, the field has U+FFFD in
/// the place of other bytes, and the field `NAME_bytes` has all bytes in hex.
pub fn set_path(object: &mut Value, name: &str, path: impl AsRef<OsStr>) {
    let path = path.as_ref();
    object[name] = json!(path.to_string_lossy());
    if let Some(bytes) = bytes_unless_text(path) {
        object[format!("{name}{BYTES}")] = json!(bytes);
    }
}

/// The bytes of a path in hex, if it is not UTF-8.
pub(crate) fn bytes_unless_text(path: impl AsRef<OsStr>) -> Option<String> {
    let path = path.as_ref();
    if path.to_str().is_some() {
        return None;
    }
    let mut hex = String::new();
    for byte in path.as_bytes() {
        let _ = write!(hex, "{byte:02x}");
    }
    Some(hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_no_text_comes_with_its_bytes() {
        let mut object = json!({ "size": 7 });
        set_path(&mut object, "location", "café");
        assert_eq!(object, json!({ "size": 7, "location": "café" }));
        set_path(&mut object, "location", OsStr::from_bytes(b"caf\xe9\n"));
        let with_bytes = json!({ "size": 7, "location": "caf\u{fffd}\n", "location_bytes": "636166e90a" });
        assert_eq!(object, with_bytes);
    }
}
