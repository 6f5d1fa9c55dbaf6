//! A FIDO2 security key as a token, through the extension hmac-secret.
//!
//! The token stores one credential, for the relying party `lacuna`, and finds it by that name: no
//! credential ID is stored elsewhere. The one credential serves all disks and levels, so it does
//! not reveal their number; each disk and name has its own salt. A token answers differently with
//! and without its PIN, so the PIN is always used if one is set.

use crate::ffi::fido::{FidoCode, FidoDevice, NO_SECRET, list_tokens};
use crate::pin::Pin;
use crate::request::SecretRequest;
use crate::token::Token;
use lacuna_contracts::{Error, Kind, Result, SecretVec};
use std::ffi::CStr;
use std::fs::File;
use std::io::ErrorKind;

/// The relying party. The token shows the same name for its user.
const RP: &CStr = c"lacuna";
/// The user ID of the credential: the same on every token.
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
/// The token requires a PIN, and none is set.
const PIN_REQUIRED: i32 = 0x36;
/// The PIN must be changed before use.
const PIN_POLICY: i32 = 0x37;
const UNSUPPORTED: [i32; 2] = [0x16, 0x2b];
/// Codes of libfido2: it cannot write to or read from the device.
const TRANSPORT: [i32; 2] = [-1, -2];

/// A security key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fido2 {
    /// The path of the device; `None` for the only one that is plugged in.
    pub(crate) device: Option<String>,
}

impl Token for Fido2 {
    fn secret(&self, request: &SecretRequest<'_>, create: bool) -> Result<SecretVec> {
        let (path, product) = self.path()?;
        let device = open(&path)?;
        let failed = |what: &str, code| refusal(&device, &path, what, code);
        // Checked before a credential is made: one without the extension would stay in the token
        // and be useless.
        if !device.has_hmac_secret().map_err(|code| failed("ask the token for its abilities", code))? {
            return Err(failed("get a secret from the token", FidoCode(NO_SECRET)));
        }
        let pin = if device.has_pin() {
            Some(Pin::new(&request.user.ask_pin(&format!("PIN of the token {product}: "))?)?)
        } else {
            None
        };
        let pin = pin.as_ref();
        // An existing credential must not be overwritten: other disks open with it.
        match device.count(RP, pin) {
            Ok(1) => {}
            Err(FidoCode(NO_CREDENTIALS)) | Ok(0) if create => {
                request
                    .user
                    .show_action(&format!("touch the token {product}: it will keep a credential for lacuna"));
                device
                    .make_credential(RP, USER, pin)
                    .map_err(|code| failed("make a credential in the token", code))?;
                request.user.report_stored(&format!(
                    "the token {product} keeps the credential that was made in it. It tells nothing of this disk, and serves when \
                     the token is enrolled the next time"
                ));
            }
            Err(FidoCode(NO_CREDENTIALS)) | Ok(0) => {
                return Err(Error::new(
                    Kind::Passphrase,
                    format!("the token {product} is not the right one"),
                )
                .found("no credential for lacuna on it")
                .expected("the token that was enrolled, which was not reset since")
                .hint("use the other token, or give the recovery passphrase"));
            }
            Ok(several) => {
                return Err(Error::new(Kind::Other, "cannot tell which credential to use")
                    .found(format!("{several} credentials for lacuna on the token"))
                    .expected("one")
                    .hint("remove the credentials of other programs, for example with `fido2-token -D`"));
            }
            Err(code) => return Err(failed("look for the credential in the token", code)),
        }
        request.user.show_action(&format!("touch the token {product}"));
        device.secret(RP, &request.salt(), pin).map_err(|code| match code {
            // The token has just counted one, so it requires a PIN.
            FidoCode(NO_CREDENTIALS) if pin.is_none() => {
                failed("use the credential in the token", FidoCode(PIN_REQUIRED))
            }
            code => failed("get the secret from the token", code),
        })
    }
}

impl Fido2 {
    /// The path and the product name of the token.
    fn path(&self) -> Result<(String, String)> {
        if let Some(path) = &self.device {
            return Ok((path.clone(), path.clone()));
        }
        let mut tokens = list_tokens()?;
        match tokens.len() {
            0 => Err(Error::new(Kind::NotFound, "cannot find a FIDO2 token")
                .found("none that is plugged in and that this user may open")
                .expected("one")
                .hint("plug it in, or give the recovery passphrase")),
            1 => Ok(tokens.pop().map(|token| (token.path, token.product)).unwrap_or_default()),
            _ => {
                let list: Vec<String> =
                    tokens.iter().map(|token| format!("{} ({})", token.path, token.product)).collect();
                Err(Error::new(Kind::Usage, "cannot tell which FIDO2 token to use")
                    .found(list.join(", "))
                    .expected("one token")
                    .hint("leave one plugged in, or name one with device=PATH"))
            }
        }
    }
}

fn open(path: &str) -> Result<FidoDevice> {
    FidoDevice::open(path)?.map_err(|FidoCode(code)| {
        let error = |kind| Error::new(kind, format!("cannot open the token {path}"));
        // libfido2 does not report the reason, but opening the file does.
        let file = path.strip_prefix("socket:").unwrap_or(path);
        match File::options().read(true).write(true).open(file).map_err(|e| e.kind()) {
            Err(ErrorKind::NotFound) => error(Kind::NotFound)
                .found("no such device")
                .expected("a token that is plugged in")
                .hint("plug it in, or give the recovery passphrase"),
            Err(ErrorKind::PermissionDenied) => error(Kind::Permission)
                .found("a device that this user may not read and write")
                .expected("one that this user may")
                .hint(
                    "see the permissions of the device (udev gives tokens to the user at the machine)",
                ),
            _ => error(Kind::Other)
                .found(format!("a device that does not answer as a FIDO2 token does ({})", describe_code(code)))
                .expected("a FIDO2 token that no other program uses")
                .hint(
                    "check that it is the right device, end other programs that use it, plug it in anew, and try again",
                ),
        }
    })
}

/// A code in the notation of its documentation: hexadecimal for a token, negative for libfido2.
fn describe_code(code: i32) -> String {
    if code < 0 { format!("code {code} of libfido2") } else { format!("code {code:#x} of the token") }
}

fn refusal(device: &FidoDevice, path: &str, what: &str, FidoCode(code): FidoCode) -> Error {
    let error = |kind| Error::new(kind, format!("cannot {what}"));
    match code {
        PIN_INVALID => {
            let left = device.pin_retries().map_or(String::new(), |left| format!("; {left} tries are left"));
            error(Kind::Passphrase)
                .found(format!("a wrong PIN{left}"))
                .expected("the PIN of the token")
                .hint("try again, or give the recovery passphrase: the token locks itself after too many wrong PINs")
        }
        PIN_AUTH_BLOCKED => error(Kind::Permission)
            .found("a token that refuses PINs after several wrong ones in a row")
            .hint("pull it out, plug it in, and try again"),
        PIN_BLOCKED => error(Kind::Permission)
            .found("a token that is locked after too many wrong PINs")
            .hint("give the recovery passphrase; to reset the token (`fido2-token -R`) removes all that it keeps"),
        PIN_REQUIRED => error(Kind::Other)
            .found("a token that wants a PIN and has none")
            .expected("one with a PIN")
            .hint(format!("set one with `fido2-token -S {path}`, and enrol the token then")),
        PIN_POLICY => error(Kind::Other)
            .found("a token with a PIN that must be changed before it is used")
            .hint(format!("change it with `fido2-token -C {path}`; secrets that were made with a PIN stay as they are")),
        KEY_STORE_FULL => error(Kind::Other)
            .found("a token that is full")
            .hint("remove a credential that is not needed (`fido2-token -L -r` lists them), or use another token"),
        code if ACTION_TIMEOUTS.contains(&code) => {
            error(Kind::TimedOut).found("no touch in the time that the token gives").hint("try again")
        }
        OPERATION_DENIED | NOT_ALLOWED => {
            error(Kind::Permission).found("a token that refuses").hint("try again, and touch the token when it blinks")
        }
        code if code == NO_SECRET || UNSUPPORTED.contains(&code) => error(Kind::Other)
            .found("a token without hmac-secret or without room for credentials")
            .expected("a FIDO2 token with the extension hmac-secret")
            .hint("use another token"),
        code if TRANSPORT.contains(&code) => error(Kind::NotFound)
            .found(format!("a token that does not answer ({})", describe_code(code)))
            .hint("leave it plugged in, and try again"),
        code => error(Kind::Other)
            .found(describe_code(code))
            .hint("try again, or give the recovery passphrase"),
    }
}
