//! The notation for tokens: `fido2[:NAME]`, `tpm2[:NAME]`, `keyring:NAME`, with options after
//! commas.

use crate::fido2::Fido2;
use crate::keyring::KernelKeyring;
use crate::request::{SecretRequest, TokenUser};
use crate::token::Token;
use crate::tpm2::{PCR_COUNT, Tpm2};
use lacuna_contracts::{Result, SecretVec};
use std::fmt;
use std::str::FromStr;

/// The maximum length of a name, in bytes.
const LONGEST_NAME: usize = 64;
/// The PCR of the Secure Boot policy: it stays the same when kernels and firmware are updated.
const USUAL_PCRS: [u8; 1] = [7];

/// A token as given by a user. Two are equal if they mean the same request to the same token, in
/// any notation.
#[derive(Clone, Debug)]
pub struct TokenSpec {
    text: String,
    name: String,
    kind: TokenKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TokenKind {
    Fido2(Fido2),
    Tpm2(Tpm2),
    Keyring,
}

impl PartialEq for TokenSpec {
    fn eq(&self, other: &TokenSpec) -> bool {
        self.name == other.name && self.kind == other.kind
    }
}

impl Eq for TokenSpec {}

impl TokenSpec {
    /// The secret for a disk. With `create`, the token is being enrolled, and is prepared first if
    /// it is not ready for lacuna.
    ///
    /// Errors: [`Kind::NotFound`](lacuna_contracts::Kind::NotFound) if the token is absent,
    /// [`Kind::Passphrase`](lacuna_contracts::Kind::Passphrase) for a wrong PIN and for a security
    /// key that was never enrolled, [`Kind::Permission`](lacuna_contracts::Kind::Permission) if the
    /// system or the token refuses, and [`Kind::Other`](lacuna_contracts::Kind::Other) if a library
    /// or the device fails.
    pub fn secret(&self, uuid: &[u8; 16], person: &dyn TokenUser, create: bool) -> Result<SecretVec> {
        let request = SecretRequest { uuid, name: &self.name, user: person };
        let token: &dyn Token = match &self.kind {
            TokenKind::Fido2(token) => token,
            TokenKind::Tpm2(token) => token,
            TokenKind::Keyring => &KernelKeyring,
        };
        token.secret(&request, create).map_err(|e| e.context(format!("token {self}")))
    }

    /// The possible reasons why the secret opens nothing, to follow "the secret of the token opens
    /// nothing".
    pub fn mismatch_reasons(&self) -> String {
        match &self.kind {
            TokenKind::Fido2(_) => "it was not enrolled for this disk under this name, is another token, or was reset, or its PIN was set \
                 or removed since"
                .to_owned(),
            TokenKind::Tpm2(token) => {
                let pin = if token.pin { ", the PIN is wrong" } else { "" };
                format!(
                    "{} changed since it was enrolled (by an update of the firmware or of the booted \
                     system){pin}, or it was not enrolled for this disk under this name and with these \
                     options, or the TPM is another one or was cleared",
                    token.pcr_text()
                )
            }
            TokenKind::Keyring => "the key in the keyring is no passphrase of this disk or vault".to_owned(),
        }
    }
}

impl fmt::Display for TokenSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for TokenSpec {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let (name, which) = match kind {
            "fido2" => {
                let (name, options) = name_and_options(rest);
                (name, TokenKind::Fido2(fido2(&options)?))
            }
            "tpm2" => {
                let (rest, tcti) = split_tcti(rest);
                let (name, options) = name_and_options(rest);
                (name, TokenKind::Tpm2(Tpm2 { tcti: tcti.map(str::to_owned), ..tpm2(&options)? }))
            }
            // A keyring has no options, so text with `=` is a name too.
            "keyring" => match rest.split_once(',') {
                Some((_, option)) => return Err(format!("keyring:NAME has no options, but found: {option}")),
                None if rest.is_empty() => return Err("the name of the key, as keyring:NAME".to_owned()),
                None => (rest, TokenKind::Keyring),
            },
            _ => return Err("fido2, tpm2 or keyring:NAME".to_owned()),
        };
        if name.len() > LONGEST_NAME {
            return Err(format!("the name of a token has at most {LONGEST_NAME} bytes"));
        }
        Ok(TokenSpec { text: text.to_owned(), name: name.to_owned(), kind: which })
    }
}

/// Splits the text after the colon into the name, which comes first if present, and the options.
fn name_and_options(rest: &str) -> (&str, Vec<&str>) {
    let mut items: Vec<&str> = if rest.is_empty() { vec![] } else { rest.split(',').collect() };
    let is_name = |item: &&str| !item.contains('=') && *item != "pin";
    let name = if items.first().is_some_and(is_name) { items.remove(0) } else { "" };
    (name, items)
}

/// Splits off the option `tcti=` at the end: its value may have commas.
fn split_tcti(rest: &str) -> (&str, Option<&str>) {
    match (rest.strip_prefix("tcti="), rest.split_once(",tcti=")) {
        (Some(tcti), _) => ("", Some(tcti)),
        (None, Some((before, tcti))) => (before, Some(tcti)),
        (None, None) => (rest, None),
    }
}

fn fido2(options: &[&str]) -> std::result::Result<Fido2, String> {
    let mut device = None;
    for option in options {
        match option.split_once('=') {
            Some(("device", path)) if !path.is_empty() => once(&mut device, path.to_owned(), "device=")?,
            _ => return Err(format!("fido2 has the option device=PATH, not {option}")),
        }
    }
    Ok(Fido2 { device })
}

fn tpm2(options: &[&str]) -> std::result::Result<Tpm2, String> {
    let (mut chosen, mut pin) = (None, None);
    for option in options {
        match option.split_once('=') {
            Some(("pcrs", list)) => once(&mut chosen, pcrs(list)?, "pcrs=")?,
            None if *option == "pin" => once(&mut pin, (), "pin")?,
            _ => return Err(format!("tpm2 has the options pcrs=N+N…, pin and tcti=CONF, not {option}")),
        }
    }
    let pcrs = chosen.unwrap_or_else(|| USUAL_PCRS.to_vec());
    Ok(Tpm2 { pcrs, pin: pin.is_some(), tcti: None })
}

/// Stores the value of an option, and refuses a repeated option: of two lists of PCRs, only one
/// would bind.
fn once<T>(place: &mut Option<T>, value: T, option: &str) -> std::result::Result<(), String> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{option} once, and not twice")),
    }
}

/// PCR numbers such as `7+11`, sorted and without duplicates: the order as typed must not change
/// the key.
fn pcrs(list: &str) -> std::result::Result<Vec<u8>, String> {
    let number = |text: &str| text.parse().ok().filter(|pcr| *pcr < PCR_COUNT);
    let numbers: Option<Vec<u8>> = list.split('+').map(number).collect();
    let mut numbers = numbers.ok_or_else(|| format!("PCRs are numbers below {PCR_COUNT}, such as 7+11"))?;
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> TokenSpec {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn names_and_options_are_parsed() {
        for (text, name) in [
            ("fido2", ""),
            ("fido2:blue", "blue"),
            ("tpm2:pcrs=7,pin", ""),
            ("keyring:home", "home"),
            ("keyring:pin", "pin"),
            ("keyring:a=b", "a=b"),
            ("keyring:tcti=x", "tcti=x"),
        ] {
            assert_eq!((parsed(text).name.as_str(), parsed(text).to_string().as_str()), (name, text));
        }
        let TokenKind::Tpm2(token) = parsed("tpm2:n,pcrs=11+7+7,pin,tcti=swtpm:host=h,port=1").kind else {
            panic!()
        };
        assert_eq!(
            (token.pcrs, token.pin, token.tcti.as_deref()),
            (vec![7, 11], true, Some("swtpm:host=h,port=1"))
        );
        let TokenKind::Tpm2(token) = parsed("tpm2").kind else { panic!() };
        assert_eq!((token.pcrs, token.pin, token.tcti), (vec![7], false, None));
        let TokenKind::Fido2(token) = parsed("fido2:device=/dev/hidraw3").kind else { panic!() };
        assert_eq!(token.device.as_deref(), Some("/dev/hidraw3"));
        let TokenKind::Fido2(token) = parsed("fido2:device=/run/tcti=x").kind else { panic!() };
        assert_eq!(token.device.as_deref(), Some("/run/tcti=x"));
        let TokenKind::Tpm2(token) = parsed("tpm2:tcti=device:/dev/tpm0").kind else { panic!() };
        assert_eq!(token.tcti.as_deref(), Some("device:/dev/tpm0"));
    }

    #[test]
    fn equal_tokens_may_be_written_differently() {
        assert_eq!(parsed("tpm2"), parsed("tpm2:pcrs=7"));
        assert_eq!(parsed("tpm2:a,pin,pcrs=11+7"), parsed("tpm2:a,pcrs=7+11,pin"));
        for (one, other) in [("fido2", "fido2:a"), ("tpm2", "tpm2:pin"), ("tpm2:a", "fido2:a")] {
            assert_ne!(parsed(one), parsed(other));
        }
    }

    #[test]
    fn invalid_specs_are_refused() {
        let long = format!("fido2:{}", "n".repeat(65));
        for text in [
            "",
            "usb",
            "keyring",
            "keyring:",
            "keyring:a,pin",
            "fido2:a,pin",
            "fido2:device=",
            "tpm2:pcrs=",
            "tpm2:pcrs=24",
            "tpm2:pcrs=7,8",
            "tpm2:a,b",
            "fido2:tcti=x",
            "keyring:a,tcti=x",
            "tpm2:notcti=x",
            "tpm2:pcrs=7,pcrs=11",
            "tpm2:pin,pin",
            "fido2:device=a,device=b",
            &long,
        ] {
            assert!(text.parse::<TokenSpec>().is_err(), "{text}");
        }
    }
}
