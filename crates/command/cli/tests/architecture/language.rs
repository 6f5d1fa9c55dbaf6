//! The language of comments, messages and documents: headless relative clauses and other
//! constructions that hide the subject are rare in the comments and in the messages of each crate
//! and in each document, and comments are at most 100 columns wide.

use crate::workspace::{root, texts};
use std::collections::BTreeMap;

/// The most of each construction for 10,000 words.
const MOST: usize = 5;
/// The columns of a line of comment.
const WIDTH: usize = 100;

/// The words that make a headless relative clause after `what`.
const AFTER_WHAT: &str = "is are was were has have had can could may might must will would shall should does do did they it he she we you a \
an the this that its one each every lies stands comes came goes went stays waits waited follows remains makes made keeps kept takes took \
needs holds held reads writes ends belongs others other no not only never nothing";

/// The constructions that are counted, in the order of the counts.
const CONSTRUCTIONS: [&str; 4] = ["what is", "persons for code", "but for", "of which"];

/// The words of a text in lower case, without punctuation and code; a mark that ends a clause is a
/// word of its own.
fn words(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    for (at, part) in text.split('`').enumerate() {
        // Between backticks stands code.
        if at % 2 == 1 {
            out.push("`".to_owned());
            continue;
        }
        for word in part.split_whitespace() {
            let bare: String =
                word.chars().filter(|c| c.is_alphanumeric() || matches!(c, '\'' | '-')).collect();
            if !bare.is_empty() {
                out.push(bare.to_lowercase());
            }
            if word.ends_with(['.', ',', ';', ':', '?', '!', '|']) {
                out.push(".".to_owned());
            }
        }
    }
    out
}

/// How often each construction begins in these words.
fn count(words: &[String]) -> [usize; 4] {
    let mut counts = [0; 4];
    for (at, word) in words.iter().enumerate() {
        let next = |n: usize| words.get(at + n).map_or("", String::as_str);
        let is_headless = word == "what" && AFTER_WHAT.split_whitespace().any(|after| after == next(1));
        let is_person = match word.as_str() {
            "nobody" | "somebody" | "anybody" | "everybody" | "someone" | "anyone" | "who" | "whom"
            | "whoever" | "others" => true,
            "no" => next(1) == "one",
            "those" => matches!(next(1), "who" | "that" | "which"),
            "the" => {
                matches!(next(1), "one" | "ones") && matches!(next(2), "that" | "who" | "which" | "in" | "of")
            }
            _ => false,
        };
        let is_amount = match word.as_str() {
            "but" => next(1) == "for",
            "so" => matches!(next(1), "many" | "much"),
            "as" => matches!(next(1), "many" | "much"),
            "from" => (2..=4).any(|n| next(n) == "on" && matches!(next(n + 1), "." | "")),
            _ => false,
        };
        let is_relative =
            word == "whose" || matches!(word.as_str(), "of" | "by" | "in") && next(1) == "which";
        for (count, found) in counts.iter_mut().zip([is_headless, is_person, is_amount, is_relative]) {
            *count += usize::from(found);
        }
    }
    counts
}

/// The comment of a line, without its slashes. A line with a string before the slashes has none.
fn comment(line: &str) -> Option<&str> {
    let (code, comment) = line.split_once("//")?;
    let is_alone = code.trim().is_empty();
    (is_alone || code.ends_with(' ') && !code.contains('"')).then(|| comment.trim_start_matches(['/', '!']))
}

/// The comments of a file of code, joined.
fn comments(text: &str) -> String {
    text.lines().filter_map(comment).collect::<Vec<_>>().join(" ")
}

/// The text of a string literal, as [`words`] takes it: without placeholders and line breaks, and
/// as a sentence of its own.
fn message(literal: &str) -> String {
    let mut parts = literal.split('{');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // A mark in the place of the placeholder: its name is no word of the message.
        text += " {} ";
        text += part.split_once('}').map_or(part, |(_, after)| after);
    }
    // Code that begins in one literal and ends in another cannot be told from prose.
    if text.matches('`').count() % 2 == 1 {
        text = text.replace('`', " ");
    }
    text.replace("\\n", " . ") + " . "
}

/// The messages of a file of code: its string literals.
fn messages(code: &str) -> String {
    let (mut found, mut rest) = (String::new(), code);
    while let Some(at) = rest.find(['"', '\'', '/']) {
        let (before, here) = rest.split_at(at);
        let len = if here.starts_with("//") {
            here.find('\n').unwrap_or(here.len())
        } else if let Some(literal) = here.strip_prefix('"') {
            let prefix = before.trim_end_matches('#');
            let end = if prefix.ends_with('r') {
                literal.find(&format!("\"{}", &before[prefix.len()..]))
            } else {
                end_of_literal(literal)
            };
            let end = end.expect("the end of a literal");
            found += &message(&literal[..end]);
            end + 2
        } else if here.starts_with("'\\") {
            // The character after the backslash may be a quotation mark.
            4 + here[3..].find('\'').expect("the end of a character")
        } else {
            // A character in quotation marks, or the name of a lifetime.
            let len = here.chars().nth(1).map_or(0, |c| 1 + c.len_utf8());
            if here.starts_with('\'') && here[len..].starts_with('\'') { len + 1 } else { 1 }
        };
        rest = &here[len..];
    }
    found
}

/// The position of the quotation mark that ends a literal.
fn end_of_literal(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

/// The prose of a document, without fenced code.
pub(crate) fn prose(text: &str) -> String {
    text.split("\n```").step_by(2).collect::<Vec<_>>().join("\n")
}

/// The constructions that a text has too often.
fn findings(name: &str, text: &str) -> Vec<String> {
    let words = words(text);
    // A short text may have each once.
    let most = (words.len() * MOST).div_ceil(10_000).max(1);
    let counted = CONSTRUCTIONS.iter().zip(count(&words));
    let too_many = counted.filter(|(_, count)| *count > most);
    too_many.map(|(what, count)| format!("{name}: \"{what}\" {count} times, at most {most}")).collect()
}

/// The texts that are measured, by name: the comments of each crate, its messages (all string
/// literals outside of its tests), and each document.
fn measured() -> BTreeMap<String, String> {
    let root = root();
    let mut out = BTreeMap::new();
    for folder in ["crates", "papers", "fuzz", "examples"] {
        for (path, text) in texts(&root.join(folder), ".rs") {
            let depth = if folder == "crates" { 2 } else { 0 };
            let below = path.split('/').take(depth);
            let name = std::iter::once(folder).chain(below).collect::<Vec<_>>().join("/");
            if !path.split('/').any(|part| part == "tests") {
                let all: &mut String = out.entry(format!("{name}, messages")).or_default();
                all.push_str(&messages(&text));
            }
            let all: &mut String = out.entry(name).or_default();
            *all += &comments(&text);
            all.push_str(" . ");
        }
    }
    for folder in ["docs", "crates/command/cli/man"] {
        for (path, text) in texts(&root.join(folder), ".md") {
            out.insert(format!("{folder}/{path}"), prose(&text));
        }
    }
    for name in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        out.insert(name.to_owned(), prose(&std::fs::read_to_string(root.join(name)).unwrap()));
    }
    out
}

#[test]
fn comments_messages_and_documents_have_subjects() {
    let measured = measured();
    assert!(measured.len() > 100, "{:?}", measured.keys());
    let messages = &measured["crates/command/cli, messages"];
    assert!(messages.contains("cannot restore the header of"), "{} bytes of messages", messages.len());
    let found: Vec<String> = measured.iter().flat_map(|(name, text)| findings(name, text)).collect();
    assert_eq!(found, [""; 0]);
}

#[test]
fn comments_are_not_wide() {
    let mut wide = Vec::new();
    for folder in ["crates", "papers", "fuzz", "examples"] {
        for (path, text) in texts(&root().join(folder), ".rs") {
            let lines = text.lines().enumerate();
            let is_wide = |line: &str| line.trim_start().starts_with("//") && line.chars().count() > WIDTH;
            wide.extend(
                lines.filter(|(_, line)| is_wide(line)).map(|(at, _)| format!("{folder}/{path}:{}", at + 1)),
            );
        }
    }
    assert_eq!(wide, [""; 0]);
}

#[test]
fn each_construction_is_found() {
    let text =
        "What is left goes. Nobody reads it but for the one that wrote, whose lock is held from then on.";
    assert_eq!(count(&words(text)), [1, 2, 2, 1]);
    let plain = "The reader says what failed in `what is`, which ends the scan of one of those pages.";
    assert_eq!(count(&words(plain)), [0; 4]);
    assert_eq!(findings("a", &format!("{text} {text}")).len(), 4);
    assert_eq!(
        comments("let a = \"//\"; // no\n    /// Yes.\n//! So.\nf(); // And this.\n"),
        " Yes.  So.  And this."
    );
    assert_eq!(prose("a\n```\ncode\n```\nb"), "a\n\nb");
}

#[test]
fn messages_are_found_in_code() {
    let code = "// \"no\"\nlet a: &'static str = f('\"', '\\'', b'/', 1 / 2, \"yes {what} is \\\"so\\\" \\\n  on\"); // \"no\"\n\
        g(r\"a\\\", r#\"b \"c\" d\"#, \"`e \", \"`f`\");";
    let found = messages(code);
    assert_eq!(words(&found).join(" "), "yes is so on . a . b c d . e . ` .");
    assert_eq!(count(&words(&messages("\"{what} is what is left\""))), [1, 0, 0, 0]);
}
