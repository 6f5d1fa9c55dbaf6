//! The commands in the documents are commands of this program, with options that it has.

use super::Cli;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use std::path::Path;

/// A command in a document.
#[derive(Debug, PartialEq, Eq)]
struct Documented {
    words: Vec<String>,
    /// Whether it is in a block of commands. In a sentence, arguments may be missing.
    is_in_block: bool,
}

/// The commands of this program in a line of a shell.
fn in_line(line: &str) -> impl Iterator<Item = Vec<String>> {
    let code = if line.trim_start().starts_with('#') { "" } else { line };
    let code = code.split_once(" #").map_or(code, |(code, _)| code);
    let parts = code.split([';', '|', '&']).map(|part| part.trim().trim_start_matches("$ "));
    let unquoted = |word: &str| word.trim_matches(['\'', '"']).to_owned();
    parts
        .filter(|part| part.starts_with("lacuna "))
        .map(move |part| part.split_whitespace().map(unquoted).collect())
}

/// The commands of this program in a page: in its blocks of code, and between backticks.
fn documented(page: &str) -> Vec<Documented> {
    let page = page.replace("\\\n", " ");
    let (mut found, mut text, mut is_in_block) = (Vec::new(), String::new(), false);
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_in_block = !is_in_block;
        } else if is_in_block {
            found.extend(in_line(line).map(|words| Documented { words, is_in_block }));
        } else {
            text.push_str(line);
            text.push(' ');
        }
    }
    let spans = text.split('`').skip(1).step_by(2).flat_map(in_line);
    found.extend(spans.map(|words| Documented { words, is_in_block: false }));
    // A phrase that begins with the name of the program is no command unless a verb follows.
    let program = Cli::command();
    found.retain(|one| program.find_subcommand(&one.words[1]).is_some());
    found
}

/// The error of a command that this program refuses.
fn refused(one: &Documented) -> Option<String> {
    let error = Cli::try_parse_from(&one.words).err()?;
    let is_incomplete = match error.kind() {
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => true,
        ErrorKind::InvalidValue => one.words.last().is_some_and(|word| word.starts_with("--")),
        _ => false,
    };
    (one.is_in_block || !is_incomplete).then(|| error.to_string())
}

#[test]
fn documents_name_commands_and_options_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    let (mut count, mut found) = (0, Vec::new());
    for path in pages.chain([root.join("README.md")]) {
        for one in documented(&std::fs::read_to_string(&path).unwrap()) {
            count += 1;
            let error = refused(&one);
            found.extend(error.map(|error| format!("{}: {}: {error}", path.display(), one.words.join(" "))));
        }
    }
    assert!(count > 150, "{count} commands");
    assert_eq!(found, [""; 0]);
}

#[test]
fn commands_are_found_in_a_page_and_wrong_ones_refused() {
    let page = "Use `lacuna close\n--all`, `lacuna key add|remove`, not `lacuna header` v1 or `lacuna xts`.\n\
        ```sh\n lacuna open 'a b' --nothing  # comment; lacuna list\n# lacuna list\n$ lacuna close x && lacuna list --json\n\
        lacuna serve x \\\n  --socket y | cat\necho lacuna list\n```\n";
    let found = documented(page);
    let lines: Vec<String> = found.iter().map(|one| one.words.join(" ")).collect();
    let blocks =
        ["lacuna open a b --nothing", "lacuna close x", "lacuna list --json", "lacuna serve x --socket y"];
    let spans = ["lacuna close --all", "lacuna key add", "lacuna header"];
    assert_eq!(lines, [&blocks[..], &spans[..]].concat());
    let names: Vec<&str> =
        found.iter().filter(|one| refused(one).is_some()).map(|one| &*one.words[1]).collect();
    assert_eq!(names, ["open"]);
    // A block has whole commands.
    let words = ["lacuna", "key", "add"].map(str::to_owned).to_vec();
    assert!(refused(&Documented { words, is_in_block: true }).is_some());
}
