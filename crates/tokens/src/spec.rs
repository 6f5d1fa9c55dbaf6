//! How a user names a token: `fido2[:NAME]`, `tpm2[:NAME]`, `keyring:NAME`, with options after commas.

use crate::Token;
use crate::fido2::Fido2;
use crate::keyring::Keyring;
use crate::request::{Person, Request};
use crate::tpm2::{PCR_COUNT, Tpm2};
use lacuna_core::{Result, SecretVec};
use std::fmt;
use std::str::FromStr;

/// Longest name, in bytes.
const LONGEST_NAME: usize = 64;
/// The PCR of the Secure Boot policy: it stays as it is when kernels and firmware are updated.
const USUAL_PCRS: [u8; 1] = [7];

/// A token as a user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSpec {
    text: String,
    name: String,
    which: Which,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Which {
    Fido2(Fido2),
    Tpm2(Tpm2),
    Keyring,
}

impl TokenSpec {
    /// The secret for a disk. `create`: the token is being enrolled. Errors: those of [`Token::secret`].
    pub fn secret(&self, uuid: &[u8; 16], person: &dyn Person, create: bool) -> Result<SecretVec> {
        let request = Request { uuid, name: &self.name, person };
        let token: &dyn Token = match &self.which {
            Which::Fido2(token) => token,
            Which::Tpm2(token) => token,
            Which::Keyring => &Keyring,
        };
        token.secret(&request, create).map_err(|e| e.context(format!("token {self}")))
    }

    /// Why the secret may open nothing, to come after "the secret of the token opens nothing".
    pub fn why_not(&self) -> String {
        match &self.which {
            Which::Fido2(_) => "it was not enrolled for this disk under this name, is another token, or was reset, or its PIN was set \
                 or removed since"
                .to_owned(),
            Which::Tpm2(token) => {
                let pin = if token.pin { ", the PIN is wrong" } else { "" };
                format!(
                    "{} changed since it was enrolled (by an update of the firmware or of what is booted){pin}, or it \
                     was not enrolled for this disk under this name and with these options, or the TPM is another one or was \
                     cleared",
                    token.pcr_words()
                )
            }
            Which::Keyring => "the key in the keyring is no passphrase of this disk".to_owned(),
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
        let (rest, tcti) = match rest.split_once("tcti=") {
            // It has commas of its own.
            Some((before, tcti)) => (before.trim_end_matches(','), Some(tcti.to_owned())),
            None => (rest, None),
        };
        let mut items: Vec<&str> = if rest.is_empty() { vec![] } else { rest.split(',').collect() };
        let is_name = |item: &&str| !item.contains('=') && *item != "pin";
        let name =
            if items.first().is_some_and(is_name) { items.remove(0).to_owned() } else { String::new() };
        if name.len() > LONGEST_NAME {
            return Err(format!("the name of a token has at most {LONGEST_NAME} bytes"));
        }
        let which = match kind {
            "fido2" => Which::Fido2(fido2(&items)?),
            "tpm2" => Which::Tpm2(Tpm2 { tcti: tcti.clone(), ..tpm2(&items)? }),
            "keyring" if name.is_empty() => return Err("the name of the key, as keyring:NAME".to_owned()),
            "keyring" if items.is_empty() => Which::Keyring,
            "keyring" => return Err(format!("keyring:NAME has no option {}", items[0])),
            _ => return Err("fido2, tpm2 or keyring:NAME".to_owned()),
        };
        if tcti.is_some() && kind != "tpm2" {
            return Err("tcti= is an option of tpm2".to_owned());
        }
        Ok(TokenSpec { text: text.to_owned(), name, which })
    }
}

fn fido2(items: &[&str]) -> std::result::Result<Fido2, String> {
    let mut token = Fido2 { device: None };
    for item in items {
        match item.split_once('=') {
            Some(("device", path)) if !path.is_empty() => token.device = Some(path.to_owned()),
            _ => return Err(format!("fido2 has the option device=PATH, not {item}")),
        }
    }
    Ok(token)
}

fn tpm2(items: &[&str]) -> std::result::Result<Tpm2, String> {
    let mut token = Tpm2 { pcrs: USUAL_PCRS.to_vec(), pin: false, tcti: None };
    for item in items {
        match item.split_once('=') {
            Some(("pcrs", list)) => token.pcrs = pcrs(list)?,
            None if *item == "pin" => token.pin = true,
            _ => return Err(format!("tpm2 has the options pcrs=N+N…, pin and tcti=CONF, not {item}")),
        }
    }
    Ok(token)
}

/// Numbers of PCRs such as `7+11`, in order and each once: an order that is typed must not make another key.
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
    fn names_and_options_are_told_apart() {
        for (text, name) in
            [("fido2", ""), ("fido2:blue", "blue"), ("keyring:home", "home"), ("tpm2:pcrs=7,pin", "")]
        {
            assert_eq!((parsed(text).name.as_str(), parsed(text).to_string().as_str()), (name, text));
        }
        let Which::Tpm2(token) = parsed("tpm2:n,pcrs=11+7+7,pin,tcti=swtpm:host=h,port=1").which else {
            panic!()
        };
        assert_eq!(
            (token.pcrs, token.pin, token.tcti.as_deref()),
            (vec![7, 11], true, Some("swtpm:host=h,port=1"))
        );
        let Which::Tpm2(token) = parsed("tpm2").which else { panic!() };
        assert_eq!((token.pcrs, token.pin, token.tcti), (vec![7], false, None));
        let Which::Fido2(token) = parsed("fido2:device=/dev/hidraw3").which else { panic!() };
        assert_eq!(token.device.as_deref(), Some("/dev/hidraw3"));
    }

    #[test]
    fn what_means_nothing_is_refused() {
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
            &long,
        ] {
            assert!(text.parse::<TokenSpec>().is_err(), "{text}");
        }
    }
}
