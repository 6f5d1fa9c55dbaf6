//! A FIDO2 security key as a token, through its extension hmac-secret.
//!
//! The token keeps one credential, for the relying party `lacuna`, and finds it by that name: no credential ID is stored anywhere. The
//! one credential serves all disks and levels, so it does not tell how many there are; each has a salt of its own. A token
//! answers differently with and without its PIN, so the PIN is always used where there is one.

use crate::Token;
use crate::ffi::fido::{Code, Device, plugged};
use crate::pin::Pin;
use crate::request::Request;
use lacuna_core::{Error, Kind, Result, SecretVec};
use std::ffi::CStr;
use std::path::Path;

/// The relying party, which is also the name that the token shows for its user.
const RP: &CStr = c"lacuna";
/// The user of the one credential: the same on every token.
const USER: &[u8; 16] = b"lacuna token v1\0";

// Codes of CTAP 2.
const KEY_STORE_FULL: i32 = 0x28;
const OPERATION_DENIED: i32 = 0x27;
const NO_CREDENTIALS: i32 = 0x2e;
const ACTION_TIMEOUTS: [i32; 3] = [0x05, 0x2f, 0x3a];
const NOT_ALLOWED: i32 = 0x30;
const PIN_INVALID: i32 = 0x31;
const PIN_BLOCKED: i32 = 0x32;
const PIN_AUTH_BLOCKED: i32 = 0x34;
const UNSUPPORTED: [i32; 2] = [0x16, 0x2b];
/// Of libfido2: it cannot open, write to or read from the device.
const TRANSPORT: [i32; 3] = [-1, -2, -9];

/// A security key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fido2 {
    /// Which, if not the only one that is plugged in.
    pub(crate) device: Option<String>,
}

impl Token for Fido2 {
    fn secret(&self, request: &Request<'_>, create: bool) -> Result<SecretVec> {
        let (path, product) = self.path()?;
        let device = open(&path)?;
        let pin = if device.has_pin() {
            Some(Pin::new(&request.person.pin(&format!("PIN of the token {product}: "))?)?)
        } else {
            None
        };
        let pin = pin.as_ref();
        let failed = |what: &str, code| refusal(&device, what, code);
        // A credential that is there must not be overwritten: other disks open with it.
        match device.count(RP, pin) {
            Ok(1) => {}
            Err(Code(NO_CREDENTIALS)) | Ok(0) if create => {
                request
                    .person
                    .act(&format!("touch the token {product}: it keeps a credential for lacuna from now on"));
                device
                    .make_credential(RP, USER, pin)
                    .map_err(|code| failed("make a credential in the token", code))?;
            }
            Err(Code(NO_CREDENTIALS)) | Ok(0) => {
                return Err(Error::new(
                    Kind::Passphrase,
                    format!("the token {product} is not the right one"),
                )
                .found("no credential for lacuna on it")
                .expected("the token that was enrolled, which was not reset since")
                .remedy("use the other token, or give the recovery passphrase"));
            }
            Ok(several) => {
                return Err(Error::new(Kind::Other, "cannot tell which credential to use")
                    .found(format!("{several} credentials for lacuna on the token"))
                    .expected("one")
                    .remedy("remove those that another program made, for example with `fido2-token -D`"));
            }
            Err(code) => return Err(failed("look for the credential in the token", code)),
        }
        request.person.act(&format!("touch the token {product}"));
        device.secret(RP, &request.salt(), pin).map_err(|code| failed("get the secret from the token", code))
    }
}

impl Fido2 {
    /// The path of the token, and what it is called.
    fn path(&self) -> Result<(String, String)> {
        if let Some(path) = &self.device {
            return Ok((path.clone(), path.clone()));
        }
        let mut tokens = plugged()?;
        match tokens.len() {
            0 => Err(Error::new(Kind::NotFound, "cannot find a FIDO2 token")
                .found("none that is plugged in and that this user may open")
                .expected("one")
                .remedy("plug it in, or give the recovery passphrase")),
            1 => Ok(tokens.pop().map(|token| (token.path, token.product)).unwrap_or_default()),
            _ => {
                let list: Vec<String> =
                    tokens.iter().map(|token| format!("{} ({})", token.path, token.product)).collect();
                Err(Error::new(Kind::Usage, "cannot tell which FIDO2 token to use")
                    .found(list.join(", "))
                    .expected("one token")
                    .remedy("unplug the others, or name one with device=PATH"))
            }
        }
    }
}

fn open(path: &str) -> Result<Device> {
    Device::open(path)?.map_err(|Code(code)| {
        let error = |kind| Error::new(kind, format!("cannot open the token {path}"));
        let file = path.strip_prefix("socket:").unwrap_or(path);
        match Path::new(file).metadata() {
            Err(_) => error(Kind::NotFound)
                .found("no such device")
                .expected("a token that is plugged in")
                .remedy("plug it in, or give the recovery passphrase"),
            Ok(_) => error(Kind::Permission)
                .found(format!("code {code} of libfido2"))
                .expected("a FIDO2 token that this user may read and write")
                .remedy(
                    "see the permissions of the device (udev gives tokens to whoever sits at the machine)",
                ),
        }
    })
}

fn refusal(device: &Device, what: &str, Code(code): Code) -> Error {
    let error = |kind| Error::new(kind, format!("cannot {what}"));
    match code {
        PIN_INVALID => {
            let left = device.pin_retries().map_or(String::new(), |left| format!("; {left} tries are left"));
            error(Kind::Passphrase)
                .found(format!("a wrong PIN{left}"))
                .expected("the PIN of the token")
                .remedy("try again, or give the recovery passphrase: the token locks itself after too many wrong PINs")
        }
        PIN_AUTH_BLOCKED => error(Kind::Permission)
            .found("a token that refuses PINs after several wrong ones in a row")
            .remedy("pull it out, plug it in, and try again"),
        PIN_BLOCKED => error(Kind::Permission)
            .found("a token that is locked after too many wrong PINs")
            .remedy("give the recovery passphrase; to reset the token (`fido2-token -R`) removes all that it keeps"),
        KEY_STORE_FULL => error(Kind::Other)
            .found("a token that is full")
            .remedy("remove a credential that is not needed (`fido2-token -L -r` lists them), or use another token"),
        code if ACTION_TIMEOUTS.contains(&code) => {
            error(Kind::TimedOut).found("no touch in the time that the token gives").remedy("try again")
        }
        OPERATION_DENIED | NOT_ALLOWED => {
            error(Kind::Permission).found("a token that refuses").remedy("try again, and touch the token when it blinks")
        }
        code if UNSUPPORTED.contains(&code) => error(Kind::Other)
            .found("a token without hmac-secret or without room for credentials")
            .expected("a FIDO2 token with the extension hmac-secret")
            .remedy("use another token"),
        code if TRANSPORT.contains(&code) => error(Kind::NotFound)
            .found(format!("a token that does not answer (code {code} of libfido2)"))
            .remedy("leave it plugged in, and try again"),
        code => error(Kind::Other)
            .found(format!("code {code:#x} of the token or of libfido2"))
            .remedy("try again, or give the recovery passphrase"),
    }
}
