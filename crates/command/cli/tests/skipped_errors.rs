//! No error vanishes silently: each line that may treat an error as an absence, or discard a
//! result, is in `skipped_errors.txt` with a reason. A name that begins with `_` needs no entry: it
//! states itself that the value is kept or discarded.

use std::path::{Path, PathBuf};

/// Expressions that drop a result, or an error that could be told from other errors.
const PATTERNS: [&str; 6] =
    ["let Ok(", ".ok()", "unwrap_or_default()", "Result::ok", "Err(_)", "or_else(|_|"];
/// Expressions that show that a discarded value is not a result: a lock, an emptied option, memory
/// from outside.
const ENDS: [&str; 3] = [".lock()", ".take()", "Box::from_raw("];
/// The folder of crates for tests and measurements, which are not part of the product.
const APART: &str = "test";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

/// Every Rust file below a directory, in order.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs")
            && !name.ends_with("tests.rs")
            && name != "fuzzing.rs"
        {
            found.push(path);
        }
    }
}

/// Whether a line discards the value of a call, with `let _ =`, `_ =` or `drop(…)`: it may be a
/// result. Writing into a string cannot fail and does not count.
fn discards_result(line: &str) -> bool {
    let is_text = |value: &str| value.starts_with("write!(") || value.starts_with("writeln!(");
    let calls = |value: &str| value.match_indices('(').any(|(at, _)| value[..at].ends_with(is_of_word));
    let ends = |value: &str| ENDS.iter().any(|end| value.contains(end));
    around(line, "_ = ").any(|(_, value)| !is_text(value) || value.contains("io::"))
        || around(line, "drop(")
            .any(|(before, value)| !before.ends_with("fn ") && calls(value) && !ends(value))
}

/// The text before and after each occurrence in a line that is not the end of a longer word.
fn around<'l>(line: &'l str, wanted: &'static str) -> impl Iterator<Item = (&'l str, &'l str)> {
    let places = line.match_indices(wanted);
    let parts = places.map(move |(at, found)| (&line[..at], &line[at + found.len()..]));
    parts.filter(|(before, _)| !before.ends_with(is_of_word))
}

fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

#[test]
fn discarded_results_are_recognised() {
    for line in [
        "let _ = fs::remove_file(path);",
        "_ = serve(stream);",
        "Some(left) => _ = self.freed.wait_for(&mut free, left),",
        "let bad = |bad: Bad| _ = exchange.tell(&bad);",
        "let _ = match block {",
        "let _ = writeln!(io::stderr(), \"{text}\");",
        "drop(self.store.remove(id));",
        "drop(guarded(\"close\", || {",
        "Err(e) => return drop(self.health.fail(e)),",
    ] {
        assert!(discards_result(line), "{line}");
    }
    for line in [
        "let _ = write!(words, \"; {growth}\");",
        "let total_ = sum(parts);",
        "_ => {}",
        "let _guard = self.lock.lock();",
        "fn drop(&mut self) {",
        "drop((mounted, fuse));",
        "drop(self.end.take());",
        "airdrop(call());",
        "header.write(&*connection.new_header()?, |_| Ok(())).map(drop)",
    ] {
        assert!(!discards_result(line), "{line}");
    }
}

/// The lines of a file's code, without its tests and comments, that drop a result.
fn lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let drops = |line: &&str| PATTERNS.iter().any(|pattern| line.contains(pattern)) || discards_result(line);
    let lines = code.lines().map(str::trim).filter(|line| !line.starts_with("//")).filter(drops);
    lines.map(str::to_owned).collect()
}

/// The lines that drop a result in the code, as `path: line`.
fn in_the_code() -> Vec<String> {
    let root = root();
    let below = |dir: &Path| std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let layers = below(&root.join("crates")).filter(|layer| !layer.ends_with(APART));
    let mut files = Vec::new();
    layers.flat_map(|layer| below(&layer)).for_each(|path| sources(&path.join("src"), &mut files));
    let mut all = Vec::new();
    for file in files {
        let name = file.strip_prefix(&root).unwrap().display().to_string();
        all.extend(lines(&file).into_iter().map(|line| format!("{name}: {line}")));
    }
    all.sort();
    all
}

/// The entries of the list, in the same form; each has a reason.
fn in_the_list() -> Vec<String> {
    let list = std::fs::read_to_string(root().join("crates/command/cli/tests/skipped_errors.txt")).unwrap();
    let (mut file, mut all, mut waits) = ("", Vec::new(), None::<&str>);
    for line in list.lines() {
        match (line.strip_prefix("        "), line.strip_prefix("    ")) {
            (Some(reason), _) => {
                let code = waits.take().unwrap_or_else(|| panic!("a reason for nothing: {reason}"));
                assert!(reason.len() > 10, "no reason for {code}");
                all.push(format!("{file}: {code}"));
            }
            (None, Some(code)) => assert!(waits.replace(code).is_none(), "no reason before {code}"),
            (None, None) if line.starts_with("crates/") => file = line,
            (None, None) => {}
        }
    }
    assert_eq!(waits, None, "the last place has no reason");
    all.sort();
    all
}

#[test]
fn every_skipped_error_has_a_reason() {
    let (code, list) = (in_the_code(), in_the_list());
    let without = |all: &[String], some: &[String]| -> Vec<String> {
        let mut some = some.to_vec();
        let left = all.iter().filter(|line| match some.iter().position(|other| other == *line) {
            Some(at) => {
                some.swap_remove(at);
                false
            }
            None => true,
        });
        left.cloned().collect()
    };
    assert_eq!(without(&code, &list), Vec::<String>::new(), "in the code, and without a reason in the list");
    assert_eq!(without(&list, &code), Vec::<String>::new(), "in the list, and no longer in the code");
}
