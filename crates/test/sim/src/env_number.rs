//! Numbers from environment variables for tests. CONTRIBUTING.md has the table of variables.

use std::env::{VarError, var};

/// The number in an environment variable, or `default` if it is not set.
///
/// # Panics
///
/// If the variable holds anything other than a decimal number: a run with the default would be
/// mistaken for the requested run.
pub fn env_number(name: &str, default: u64) -> u64 {
    parse_number(name, var(name)).unwrap_or(default)
}

fn parse_number(name: &str, value: Result<String, VarError>) -> Option<u64> {
    let text = match value {
        Ok(text) => text,
        Err(VarError::NotPresent) => return None,
        Err(VarError::NotUnicode(bytes)) => bytes.to_string_lossy().into_owned(),
    };
    match text.parse() {
        Ok(number) => Some(number),
        Err(e) => panic!(
            "cannot read {name}: found {text:?} ({e}), expected a decimal number; give one, or unset {name}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_and_an_unset_variable_gives_the_default() {
        assert_eq!(parse_number("LACUNA_SEED", Ok("7".into())), Some(7));
        assert_eq!(parse_number("LACUNA_SEED", Err(VarError::NotPresent)), None);
        assert_eq!(env_number("LACUNA_A_TEST_SETS_THIS_NOWHERE", 5), 5);
    }

    #[test]
    #[should_panic(expected = "cannot read LACUNA_SEED: found \"0x7\"")]
    fn a_value_that_is_no_number_is_refused() {
        parse_number("LACUNA_SEED", Ok("0x7".into()));
    }
}
