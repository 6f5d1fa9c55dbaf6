//! A note on a new passphrase that is easy to guess or easy to type differently.

use lacuna_storage::Passphrase;

/// The length without a note, in characters.
const LONG_ENOUGH: usize = 12;
const SHORT: &str =
    "this passphrase is short: 12 characters or more, such as four random words, are harder to guess";
const BLANK: &str = "this passphrase begins or ends with a blank, which is a part of it";
const SHORT_AND_BLANK: &str = "this passphrase is short (12 characters or more are harder to guess), and a blank at its end is a part of it";

/// The note on a new passphrase, if it deserves one.
pub(crate) fn note(new: &Passphrase) -> Option<&'static str> {
    let bytes = new.expose();
    let characters = std::str::from_utf8(bytes).map_or(bytes.len(), |text| text.chars().count());
    let is_blank = |end: Option<&u8>| end.is_some_and(u8::is_ascii_whitespace);
    match (characters < LONG_ENOUGH, is_blank(bytes.first()) || is_blank(bytes.last())) {
        (true, true) => Some(SHORT_AND_BLANK),
        (true, false) => Some(SHORT),
        (false, true) => Some(BLANK),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_ones_and_blanks_are_noted() {
        for (new, expected) in [
            ("correct horse battery staple", None),
            ("eleven char", Some(SHORT)),
            ("zwölf Zeiche", None),
            ("éééééééééée", Some(SHORT)),
            ("correct horse battery staple ", Some(BLANK)),
            (" a", Some(SHORT_AND_BLANK)),
        ] {
            assert_eq!(note(&Passphrase::new(new.as_bytes().to_vec())), expected, "{new:?}");
        }
        assert_eq!(note(&Passphrase::new(vec![0xff; 12])), None);
    }
}
