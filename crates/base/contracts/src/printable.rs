//! Escapes untrusted text, such as names of files and processes, for a terminal, a log or a table.

use std::borrow::Cow;

/// The text with control characters and bidirectional controls escaped as in Rust (`\n`, `\u{1b}`),
/// so that it cannot forge a line or move the cursor. Other text stays as it is.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        if is_control(letter) { out.extend(letter.escape_default()) } else { out.push(letter) }
    }
    Cow::Owned(out)
}

fn is_control(letter: char) -> bool {
    let turns = matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    letter.is_control() || turns || matches!(letter, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_deceptive_characters_are_escaped() {
        for plain in ["", "disk.img", "größer als 3 %", "a\\b", "日本語"] {
            assert!(matches!(printable(plain), Cow::Borrowed(same) if same == plain));
        }
        assert_eq!(printable("a\nlacuna: fake"), "a\\nlacuna: fake");
        assert_eq!(printable("\u{1b}]0;PWN\u{7}\u{9b}2J\r"), "\\u{1b}]0;PWN\\u{7}\\u{9b}2J\\r");
        assert_eq!(printable("gpj\u{202e}exe"), "gpj\\u{202e}exe");
        assert_eq!(printable(&printable("\t")), "\\t");
    }
}
