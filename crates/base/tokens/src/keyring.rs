//! The kernel's keyrings as a token: a key of type `user` with the name `lacuna:NAME` is a
//! passphrase.

use crate::ffi::keyctl;
use crate::request::SecretRequest;
use crate::token::Token;
use lacuna_contracts::{Error, Kind, Result, SecretVec};
use std::ffi::CString;
use std::io;

/// The maximum length of a passphrase, as for a key file. (The kernel limits a key to 32 KiB.)
const LIMIT: usize = 1 << 20;

/// The keyrings of this process: those of its thread, process, session and user.
pub(crate) struct KernelKeyring;

impl Token for KernelKeyring {
    fn secret(&self, request: &SecretRequest<'_>, _create: bool) -> Result<SecretVec> {
        let key = format!("lacuna:{}", request.name);
        let failed = |e: &io::Error| refusal(&key, e);
        let name = CString::new(key.as_str())
            .map_err(|_| Error::new(Kind::Usage, "cannot use the name").found("a NUL byte in it"))?;
        let id = keyctl::find(&name).map_err(|e| failed(&e))?;
        let mut secret = SecretVec::zeroed(keyctl::read(id, &mut []).map_err(|e| failed(&e))?.min(LIMIT));
        let len = keyctl::read(id, secret.expose_mut()).map_err(|e| failed(&e))?;
        if len != secret.expose().len() {
            return Err(Error::new(Kind::Changed, format!("cannot read the key {key}"))
                .found("a key that was changed meanwhile")
                .hint("try again"));
        }
        // Trimmed as a key file is, so that the same bytes are the same passphrase.
        let text = secret.expose();
        Ok(SecretVec::new(text.strip_suffix(b"\n").unwrap_or(text).to_vec()))
    }
}

fn refusal(key: &str, e: &io::Error) -> Error {
    let what = format!("cannot read the key {key} from the kernel's keyrings");
    match e.raw_os_error() {
        Some(libc::ENOKEY | libc::EKEYEXPIRED | libc::EKEYREVOKED) => Error::new(Kind::NotFound, what)
            .found(e.to_string())
            .expected("a key of the type user in the keyring of the session or of the user")
            .hint(format!(
                "put the passphrase there with `keyctl padd user {key} @u` (keyutils), or give the passphrase itself"
            )),
        Some(libc::EACCES) => Error::new(Kind::Permission, what)
            .found("a key that is there and that this session may not read")
            .expected("a key that the session possesses")
            .hint("link the user's keyring to that of the session with `keyctl link @u @s` (keyutils), and try again"),
        Some(libc::ENOSYS | libc::EPERM) => Error::new(Kind::Permission, what)
            .found(format!("{e}: the system, or the container, does not permit keyrings"))
            .hint("give the passphrase in another way"),
        _ => Error::io(what, e),
    }
}
