//! A file has one job and a function does one thing: neither is long. A folder of code has few
//! files.

use crate::workspace::{root, texts};
use std::collections::BTreeMap;

const MOST_LINES: usize = 500;
const MOST_LINES_OF_FUNCTION: usize = 100;
/// The most files of code in one folder: further ones move into a room, a folder with one job.
const MOST_FILES: usize = 25;
/// A function should have at most this number of lines.
const LONG: usize = 70;
/// Number of functions that have more. The number only falls: if there are fewer, it is lowered.
const LONG_FUNCTIONS: usize = 2;
/// The folders of our code.
const FOLDERS: [&str; 4] = ["crates", "papers", "fuzz", "examples"];

/// The name of the function that begins in a line, if one does.
fn name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let words = ["default", "const", "async", "unsafe", "extern"];
    let may_stand_before =
        |word: &str| word.starts_with("pub") || word.starts_with('"') || words.contains(&word);
    let name = after.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("");
    (before.split_whitespace().all(may_stand_before) && !name.is_empty()).then_some(name)
}

/// The number of lines of the function that begins with the first line, up to its closing brace as
/// rustfmt places it. `None` for a function without a body.
fn length(lines: &[&str]) -> Option<usize> {
    let first = lines.first()?;
    let end = format!("{}}}", &first[..first.len() - first.trim_start().len()]);
    let mut has_body = false;
    for (at, line) in lines.iter().enumerate() {
        if has_body {
            if *line == end {
                return Some(at + 1);
            }
        } else if line.ends_with('{') {
            has_body = true;
        } else if line.ends_with('}') {
            return Some(at + 1);
        } else if line.ends_with(';') {
            return None;
        }
    }
    None
}

/// The functions of a file that rustfmt has formatted, with their numbers of lines.
fn functions(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let begin = lines.iter().enumerate().filter_map(|(at, line)| Some((at, name(line.trim_start())?)));
    begin.filter_map(|(at, name)| Some((name, length(&lines[at..])?))).collect()
}

/// Files and functions that are too long, and functions that are long.
fn findings(files: &[(String, String)]) -> (Vec<String>, Vec<String>) {
    let (mut found, mut long) = (Vec::new(), Vec::new());
    for (file, text) in files {
        let lines = text.lines().count();
        if lines > MOST_LINES {
            found.push(format!("{file} has {lines} lines"));
        }
        for (name, lines) in functions(text) {
            let finding = || format!("{file}: {name} has {lines} lines");
            long.extend((lines > LONG).then(finding));
            found.extend((lines > MOST_LINES_OF_FUNCTION).then(finding));
        }
    }
    (found, long)
}

#[test]
fn files_and_functions_are_short() {
    let root = root();
    let mut files = Vec::new();
    for folder in FOLDERS {
        let below = texts(&root.join(folder), ".rs").into_iter();
        files.extend(below.map(|(path, text)| (format!("{folder}/{path}"), text)));
    }
    assert!(files.len() > 500, "{} files", files.len());
    let (found, long) = findings(&files);
    assert_eq!(found, [""; 0]);
    assert_eq!(long.len(), LONG_FUNCTIONS, "functions of more than {LONG} lines: {long:#?}");
}

/// The folders with too many of these files. Tests of a module in a file of their own do not count.
fn crowded<'f>(paths: impl IntoIterator<Item = &'f str>) -> Vec<String> {
    let mut folders = BTreeMap::new();
    for path in paths.into_iter().filter(|path| !path.ends_with("_tests.rs")) {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        *folders.entry(folder).or_insert(0) += 1;
    }
    let crowded = folders.into_iter().filter(|(_, files)| *files > MOST_FILES);
    crowded.map(|(folder, files)| format!("{folder} has {files} files")).collect()
}

#[test]
fn folders_of_code_have_few_files() {
    let files = texts(&root().join("crates"), ".rs");
    let of_code = files.iter().map(|(path, _)| path.as_str()).filter(|path| path.contains("/src/"));
    assert_eq!(crowded(of_code), [""; 0]);
}

#[test]
fn crowded_folders_are_found() {
    let names: Vec<String> = (0..26).map(|n| format!("a/src/{n}.rs")).collect();
    let paths = || names.iter().map(String::as_str);
    assert_eq!(crowded(paths().skip(1).chain(["a/src/b/c.rs", "a/src/1_tests.rs"])), [""; 0]);
    assert_eq!(crowded(paths()), ["a/src has 26 files"]);
}

#[test]
fn long_files_and_functions_are_found() {
    let text = |lines: usize| {
        format!("    pub(crate) fn f(\n        a: u8,\n    ) {{\n{}    }}\n", "\n".repeat(lines - 4))
    };
    let file = |text: String| [("a.rs".to_owned(), text)];
    let finding = |found: &str| vec![found.to_owned()];
    assert_eq!(findings(&file(text(70))), (vec![], vec![]));
    assert_eq!(findings(&file(text(71))), (vec![], finding("a.rs: f has 71 lines")));
    assert_eq!(
        findings(&file(text(101))),
        (finding("a.rs: f has 101 lines"), finding("a.rs: f has 101 lines"))
    );
    assert_eq!(findings(&file("\n".repeat(500))), (vec![], vec![]));
    assert_eq!(findings(&file("\n".repeat(501))), (finding("a.rs has 501 lines"), vec![]));
}

#[test]
fn functions_are_found_with_and_without_bodies() {
    let text = "fn short() {}\ntrait A {\n    fn b(&self);\n    fn c(\n        &self,\n    ) -> u8\n    where\n        Self: Sized;\n}\n\
                pub const unsafe extern \"C\" fn d() {\n    {\n    }\n}\n// fn e() {\nlet f = fn_of();\n";
    assert_eq!(functions(text), [("short", 1), ("d", 4)]);
}
