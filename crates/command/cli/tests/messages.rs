//! Libraries do not know the command line: their messages name settings and actions by type
//! (`Setting`, `Action`), and `crates/command/cli/src/terminal/option_names.rs` has the option or
//! the command for each of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A hint should have at most this number of characters.
const LONG_HINT: usize = 100;
/// The number of hints in libraries that may have more. The number only falls.
const LONG_HINTS: usize = 18;
/// Crates that are programs.
const PROGRAMS: [&str; 2] = ["cli", "bench"];
/// Verbs of the command. Messages may use them as words next to "lacuna", so a verb counts only
/// after a backtick and `lacuna`.
const VERBS: [&str; 22] = [
    "bench",
    "check",
    "close",
    "completions",
    "create",
    "delete",
    "doctor",
    "erase",
    "header",
    "info",
    "key",
    "list",
    "man",
    "open",
    "purge",
    "rescue",
    "resize",
    "serve",
    "snapshot",
    "status",
    "vault",
    "help",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

/// Every Rust file in the `src` folders below `dir`, except in programs.
fn sources(dir: &Path, in_src: bool, found: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            if in_src || !PROGRAMS.contains(&name) {
                sources(&path, in_src || name == "src", found);
            }
        } else if in_src && path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The code of the libraries by file: without comments, and with string literals of several lines
/// joined.
fn libraries() -> Vec<(String, String)> {
    let root = root();
    let mut files = Vec::new();
    sources(&root.join("crates"), false, &mut files);
    let name = |file: &Path| file.strip_prefix(&root).unwrap().display().to_string();
    files.iter().map(|file| (name(file), code(&std::fs::read_to_string(file).unwrap()))).collect()
}

fn code(text: &str) -> String {
    let mut code = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
        if let Some(begun) = line.strip_suffix('\\') {
            code += begun;
        } else {
            code += line;
            code.push('\n');
        }
    }
    code
}

/// The commands that a code names.
fn commands(code: &str) -> Vec<&str> {
    let is_of_word = |letter: char| letter.is_alphanumeric() || letter == '-';
    let verb = |at: usize| code[at..].split(|letter: char| !is_of_word(letter)).next().unwrap();
    let named = code.match_indices("`lacuna ").map(|(at, before)| verb(at + before.len()));
    named.filter(|verb| VERBS.contains(verb)).collect()
}

/// The names in a code that appear in `kind("…")`.
fn names<'c>(code: &'c str, kind: &str) -> Vec<&'c str> {
    let begin = format!("{kind}(\"");
    let named = code.match_indices(&begin).map(|(at, _)| &code[at + begin.len()..]);
    named.map(|rest| rest.split('"').next().unwrap()).collect()
}

#[test]
fn a_command_is_found_in_a_message() {
    let text =
        "    // `lacuna open` is no message.\n    let a = \"see `lacuna \\\n        vault accept DIR`\";\n";
    assert_eq!(commands(&code(text)), ["vault"]);
    assert_eq!(commands("\"no lacuna header; nothing of lacuna open there; `lacuna.vault`\""), [""; 0]);
    assert_eq!(names("a.setting(Setting(\"size\")).action(Action(\"close\"))", "Setting"), ["size"]);
}

/// The literal beginnings of the hints in a code.
fn hints(code: &str) -> Vec<&str> {
    let calls = code.match_indices(".hint(").map(|(at, call)| code[at + call.len()..].trim_start());
    let texts = calls.map(|call| call.trim_start_matches("Hint::from(").trim_start());
    let texts = texts.map(|text| text.trim_start_matches("format!(").trim_start());
    texts.filter_map(|text| text.strip_prefix('"')?.split('"').next()).collect()
}

#[test]
fn hints_are_short() {
    let code = code("e.hint(\n    Hint::from(\"do \\\n        this\"))\n    .hint(text)\n    .hint(\"x\")");
    assert_eq!(hints(&code), ["do this", "x"]);
    let all = libraries();
    let long = all.iter().flat_map(|(file, code)| {
        hints(code).into_iter().filter(|hint| hint.chars().count() > LONG_HINT).map(move |hint| (file, hint))
    });
    let long: Vec<_> = long.collect();
    assert!(long.len() <= LONG_HINTS, "{} hints are long: {long:#?}", long.len());
}

#[test]
fn no_message_of_a_library_names_a_command() {
    let libraries = libraries();
    assert!(libraries.len() > 200, "{} files", libraries.len());
    let found: Vec<String> = libraries
        .iter()
        .flat_map(|(file, code)| {
            commands(code).into_iter().map(move |verb| format!("{file}: `lacuna {verb}`"))
        })
        .collect();
    assert_eq!(found, [""; 0], "name them with `Action`");
}

#[test]
fn every_setting_and_action_has_a_command_line_name() {
    let settings =
        std::fs::read_to_string(root().join("crates/command/cli/src/terminal/option_names.rs")).unwrap();
    let libraries = libraries();
    for kind in ["Setting", "Action"] {
        let used: BTreeSet<&str> = libraries.iter().flat_map(|(_, code)| names(code, kind)).collect();
        assert!(used.len() > 5, "{kind}: {used:?}");
        for name in used {
            assert!(settings.contains(&format!("    (\"{name}\", \"")), "no words for {kind}(\"{name}\")");
        }
    }
}
