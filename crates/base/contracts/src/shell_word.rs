//! Quotes a path so that a user can paste it into a command line.

use std::path::Path;

/// The path, or a location written as a path, quoted if a shell would not read it literally.
pub fn shell_word(path: impl AsRef<Path>) -> String {
    let text = path.as_ref().to_string_lossy();
    let plain = |c: char| {
        c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c) || (!c.is_ascii() && c.is_alphanumeric())
    };
    if !text.is_empty() && text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_a_quoted_path_back() {
        for (path, word) in [
            ("/mnt/a", "/mnt/a"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("$HOME", "'$HOME'"),
            ("~", "'~'"),
            ("Größe", "Größe"),
            ("", "''"),
        ] {
            assert_eq!(shell_word(path), word);
        }
    }
}
