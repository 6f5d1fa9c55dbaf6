//! The library and the command ask the table of formats for the properties of a disk and name no
//! format: only the files of a format name it.

use crate::workspace::{root, texts};

/// The code that serves all formats alike.
const FOLDERS: [&str; 2] = ["crates/library/storage/src", "crates/command/cli/src"];
/// The file of a format's constants, with the conclusions from the kind of its backing.
const CONSTANTS: &str = "format_info.rs";

/// Whether a file may name a format: a file of a format or of the table, a file about vaults, which
/// are not disks, and tests.
fn is_of_formats(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    path.starts_with("formats/") || file.starts_with("vault") || file.ends_with("tests.rs")
}

/// Whether a line names a format: `FormatId::FLASH`, or `FormatId(5)`.
fn names_format(line: &str) -> bool {
    line.match_indices("FormatId").any(|(at, word)| {
        let rest = &line[at + word.len()..];
        let begins = |mark: &str, is: fn(&char) -> bool| {
            rest.strip_prefix(mark).and_then(|rest| rest.chars().next()).is_some_and(|next| is(&next))
        };
        begins("::", char::is_ascii_uppercase) || begins("(", char::is_ascii_digit)
    })
}

/// The lines of code of these files, without comments and tests, that name a format.
fn findings(files: &[(String, String)]) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| !is_of_formats(path)) {
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let lines = code.lines().map(str::trim).filter(|line| !line.starts_with("//"));
        let says = |line: &&str| names_format(line) || (line.contains("backing_kind") && path != CONSTANTS);
        found.extend(lines.filter(says).map(|line| format!("{path}: {line}")));
    }
    found
}

#[test]
fn only_files_of_a_format_name_it() {
    for folder in FOLDERS {
        let files = texts(&root().join(folder), ".rs");
        assert!(files.len() > 30, "{folder}: {} files", files.len());
        assert_eq!(findings(&files), [""; 0], "in {folder}");
    }
}

#[test]
fn a_format_named_in_another_file_is_found() {
    let found = |path: &str, line: &str| !findings(&[(path.to_owned(), format!("{line}\n"))]).is_empty();
    for line in [
        "        if header.format == FormatId::FLASH {",
        "matches!(id, lacuna_header::FormatId(5))",
        "let is_vault = format.info().backing_kind == BackingKind::Directory;",
    ] {
        assert!(found("unlock.rs", line), "{line}");
        for path in ["formats/flash.rs", "formats/table.rs", "vault.rs", "vault_dir.rs", "unlock_tests.rs"] {
            assert!(!found(path, line), "{path}: {line}");
        }
    }
    for line in [
        "// As of FormatId::FLASH.",
        "    /// Of [`FormatId::FLASH`].",
        "use lacuna_header::{FormatId, Location};",
        "format.has_levels() || FormatId::has_levels(id)",
        "#[cfg(test)]\nmod tests {\n    const ID: FormatId = FormatId::SEALED;",
    ] {
        assert!(!found("unlock.rs", line), "{line}");
    }
    let constant = "matches!(self.backing_kind, BackingKind::Directory)";
    assert!(!found(CONSTANTS, constant) && found(CONSTANTS, "self.id.0 == FormatId::VAULT.0"));
}
