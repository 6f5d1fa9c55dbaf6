//! libfido2: the calls to security keys that lacuna uses.

use super::fido_socket::{FidoIoFunctions, SOCKET};
use super::library::{functions, load, too_old};
use crate::pin::Pin;
use lacuna_contracts::{Result, SecretVec};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

const PURPOSE: &str = "a FIDO2 token";
const PACKAGE: &str = "libfido2-1";

/// `FIDO_DISABLE_U2F_FALLBACK`: refuses tokens without FIDO2.
const NO_U2F: c_int = 2;
/// `FIDO_EXT_HMAC_SECRET`.
const HMAC_SECRET: c_int = 1;
/// `FIDO_EXT_CRED_PROTECT`.
const PROTECTED: c_int = 2;
/// `FIDO_CRED_PROT_UV_REQUIRED`: not even listed without the PIN.
const PIN_REQUIRED: c_int = 3;
/// `COSE_ES256`, which every token supports.
const ES256: c_int = -7;
/// `FIDO_OPT_FALSE` and `FIDO_OPT_TRUE`.
const FALSE: c_int = 1;
const TRUE: c_int = 2;
/// The most tokens that are listed.
const MOST: usize = 64;
/// `FIDO_ERR_INTERNAL`.
const INTERNAL: c_int = -9;
/// Our own code: the token has answered without a secret.
pub(crate) const NO_SECRET: c_int = c_int::MIN;

/// An opaque pointer from libfido2.
type Handle = *mut c_void;

functions! { Api:
    fido_init(c_int);
    fido_dev_info_new(usize) -> Handle;
    fido_dev_info_free(*mut Handle, usize);
    fido_dev_info_manifest(Handle, usize, *mut usize) -> c_int;
    fido_dev_info_ptr(Handle, usize) -> Handle;
    fido_dev_info_path(Handle) -> *const c_char;
    fido_dev_info_manufacturer_string(Handle) -> *const c_char;
    fido_dev_info_product_string(Handle) -> *const c_char;
    fido_dev_new() -> Handle;
    fido_dev_free(*mut Handle);
    fido_dev_set_io_functions(Handle, *const FidoIoFunctions) -> c_int;
    fido_dev_open(Handle, *const c_char) -> c_int;
    fido_dev_close(Handle) -> c_int;
    fido_dev_has_pin(Handle) -> bool;
    fido_dev_supports_cred_prot(Handle) -> bool;
    fido_dev_get_retry_count(Handle, *mut c_int) -> c_int;
    fido_dev_get_cbor_info(Handle, Handle) -> c_int;
    fido_cbor_info_new() -> Handle;
    fido_cbor_info_free(*mut Handle);
    fido_cbor_info_extensions_ptr(Handle) -> *const *const c_char;
    fido_cbor_info_extensions_len(Handle) -> usize;
    fido_dev_make_cred(Handle, Handle, *const c_char) -> c_int;
    fido_dev_get_assert(Handle, Handle, *const c_char) -> c_int;
    fido_cred_new() -> Handle;
    fido_cred_free(*mut Handle);
    fido_cred_set_type(Handle, c_int) -> c_int;
    fido_cred_set_clientdata_hash(Handle, *const u8, usize) -> c_int;
    fido_cred_set_rp(Handle, *const c_char, *const c_char) -> c_int;
    fido_cred_set_user(Handle, *const u8, usize, *const c_char, *const c_char, *const c_char) -> c_int;
    fido_cred_set_rk(Handle, c_int) -> c_int;
    fido_cred_set_extensions(Handle, c_int) -> c_int;
    fido_cred_set_prot(Handle, c_int) -> c_int;
    fido_assert_new() -> Handle;
    fido_assert_free(*mut Handle);
    fido_assert_set_clientdata_hash(Handle, *const u8, usize) -> c_int;
    fido_assert_set_rp(Handle, *const c_char) -> c_int;
    fido_assert_set_extensions(Handle, c_int) -> c_int;
    fido_assert_set_hmac_salt(Handle, *const u8, usize) -> c_int;
    fido_assert_set_up(Handle, c_int) -> c_int;
    fido_assert_count(Handle) -> usize;
    fido_assert_hmac_secret_ptr(Handle, usize) -> *const u8;
    fido_assert_hmac_secret_len(Handle, usize) -> usize;
}

/// An error code of libfido2 or of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FidoCode(pub(crate) c_int);

type FidoResult<T> = std::result::Result<T, FidoCode>;

fn check(code: c_int) -> FidoResult<()> {
    if code == 0 { Ok(()) } else { Err(FidoCode(code)) }
}

/// The functions of libfido2. Errors: the library is not installed.
fn api() -> Result<&'static Api> {
    static FOUND: OnceLock<Api> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(found);
    }
    let library = load("libfido2.so.1", PACKAGE, PURPOSE)?;
    let api = Api::find(&library).map_err(|e| too_old(&e, PACKAGE, PURPOSE))?;
    // The functions are used for the rest of the process.
    std::mem::forget(library);
    // SAFETY: allowed at any time; it sets flags for the calls of this thread.
    unsafe { (api.fido_init)(NO_U2F) };
    Ok(FOUND.get_or_init(|| api))
}

/// A token that is plugged in.
#[derive(Clone, Debug)]
pub(crate) struct PluggedToken {
    pub(crate) path: String,
    pub(crate) product: String,
}

/// All tokens that are plugged in.
pub(crate) fn list_tokens() -> Result<Vec<PluggedToken>> {
    let api = api()?;
    // SAFETY: the list has the given number of places, is read up to the returned count, and is
    // freed once.
    unsafe {
        let mut list = (api.fido_dev_info_new)(MOST);
        if list.is_null() {
            return Ok(Vec::new());
        }
        let mut count = 0;
        let found = (api.fido_dev_info_manifest)(list, MOST, &raw mut count) == 0;
        // The text comes from the device: control characters must not reach the terminal.
        let text = |raw: *const c_char| -> String {
            let raw = if raw.is_null() { c"" } else { CStr::from_ptr(raw) };
            raw.to_string_lossy().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
        };
        let tokens = (0..if found { count.min(MOST) } else { 0 }).map(|at| {
            let about = (api.fido_dev_info_ptr)(list, at);
            let maker = text((api.fido_dev_info_manufacturer_string)(about));
            let product = text((api.fido_dev_info_product_string)(about));
            PluggedToken {
                path: text((api.fido_dev_info_path)(about)),
                product: format!("{maker} {product}").trim().to_owned(),
            }
        });
        let tokens = tokens.collect();
        (api.fido_dev_info_free)(&raw mut list, MOST);
        Ok(tokens)
    }
}

/// An open token.
pub(crate) struct FidoDevice {
    api: &'static Api,
    raw: Handle,
    open: bool,
}

impl Drop for FidoDevice {
    fn drop(&mut self) {
        // SAFETY: the device is ours; it is closed if it was opened, and freed once.
        unsafe {
            if self.open {
                (self.api.fido_dev_close)(self.raw);
            }
            (self.api.fido_dev_free)(&raw mut self.raw);
        }
    }
}

/// An object of libfido2: a credential to be made, an assertion, or a token's description of
/// itself.
struct FidoObject {
    raw: Handle,
    // SAFETY: only a type; it is the function that frees `raw`.
    free: unsafe extern "C" fn(*mut Handle),
}

impl Drop for FidoObject {
    fn drop(&mut self) {
        // SAFETY: the object is ours and freed once. libfido2 zeroes the secrets in it.
        unsafe { (self.free)(&raw mut self.raw) }
    }
}

fn pin_or_null(pin: Option<&Pin>) -> *const c_char {
    pin.map_or(ptr::null(), |pin| pin.as_c().as_ptr())
}

impl FidoDevice {
    /// Opens a device, or with the prefix `socket:` a token at a Unix socket. The outer error:
    /// libfido2 is missing.
    pub(crate) fn open(path: &str) -> Result<FidoResult<FidoDevice>> {
        let api = api()?;
        let (path, socket) = path.strip_prefix("socket:").map_or((path, false), |path| (path, true));
        let Ok(path) = CString::new(path) else { return Ok(Err(FidoCode(INTERNAL))) };
        // SAFETY: no arguments.
        let raw = unsafe { (api.fido_dev_new)() };
        if raw.is_null() {
            return Ok(Err(FidoCode(INTERNAL)));
        }
        let mut device = FidoDevice { api, raw, open: false };
        let ready = if socket {
            // SAFETY: the device is ours and not open; the functions live as long as the program.
            unsafe { (api.fido_dev_set_io_functions)(raw, &raw const SOCKET) }
        } else {
            0
        };
        // SAFETY: the device is ours and not open; the path ends in NUL.
        let opened = check(ready).and_then(|()| check(unsafe { (api.fido_dev_open)(raw, path.as_ptr()) }));
        Ok(opened.map(|()| {
            device.open = true;
            device
        }))
    }

    /// Whether a PIN is set.
    pub(crate) fn has_pin(&self) -> bool {
        // SAFETY: the device is open.
        unsafe { (self.api.fido_dev_has_pin)(self.raw) }
    }

    /// Whether the token has the extension hmac-secret.
    pub(crate) fn has_hmac_secret(&self) -> FidoResult<bool> {
        let api = self.api;
        // SAFETY: no arguments.
        let raw = unsafe { (api.fido_cbor_info_new)() };
        if raw.is_null() {
            return Err(FidoCode(INTERNAL));
        }
        let info = FidoObject { raw, free: api.fido_cbor_info_free };
        // SAFETY: the device is open, the object is ours. The list has `len` strings, which end in
        // NUL and live as long as the object.
        unsafe {
            check((api.fido_dev_get_cbor_info)(self.raw, info.raw))?;
            let len = (api.fido_cbor_info_extensions_len)(info.raw);
            let list = (api.fido_cbor_info_extensions_ptr)(info.raw);
            Ok(!list.is_null() && (0..len).any(|at| CStr::from_ptr(*list.add(at)) == c"hmac-secret"))
        }
    }

    /// The number of wrong PINs that the token tolerates before it refuses all PINs.
    pub(crate) fn pin_retries(&self) -> Option<c_int> {
        let mut left = 0;
        // SAFETY: the device is open; the number outlives the call.
        check(unsafe { (self.api.fido_dev_get_retry_count)(self.raw, &raw mut left) }).ok().map(|()| left)
    }

    /// Makes a credential for `rp` and `user` that stays in the token, and that requires the PIN if
    /// there is one. Overwrites a credential for the same `rp` and `user`.
    pub(crate) fn make_credential(&self, rp: &CStr, user: &[u8], pin: Option<&Pin>) -> FidoResult<()> {
        // SAFETY: no arguments.
        let raw = unsafe { (self.api.fido_cred_new)() };
        if raw.is_null() {
            return Err(FidoCode(INTERNAL));
        }
        let credential = FidoObject { raw, free: self.api.fido_cred_free };
        let (api, cred, hash) = (self.api, credential.raw, [0; 32]);
        // SAFETY: the device is open, the credential is ours; libfido2 copies the strings, which
        // end in NUL, and the bytes.
        unsafe {
            let protect = pin.is_some() && (api.fido_dev_supports_cred_prot)(self.raw);
            let extensions = if protect { HMAC_SECRET | PROTECTED } else { HMAC_SECRET };
            check((api.fido_cred_set_type)(cred, ES256))?;
            check((api.fido_cred_set_clientdata_hash)(cred, hash.as_ptr(), hash.len()))?;
            check((api.fido_cred_set_rp)(cred, rp.as_ptr(), rp.as_ptr()))?;
            let name = rp.as_ptr();
            check((api.fido_cred_set_user)(cred, user.as_ptr(), user.len(), name, name, ptr::null()))?;
            check((api.fido_cred_set_rk)(cred, TRUE))?;
            check((api.fido_cred_set_extensions)(cred, extensions))?;
            if protect {
                check((api.fido_cred_set_prot)(cred, PIN_REQUIRED))?;
            }
            check((api.fido_dev_make_cred)(self.raw, cred, pin_or_null(pin)))
        }
    }

    /// The number of credentials for `rp` that the token shows without a touch.
    pub(crate) fn count(&self, rp: &CStr, pin: Option<&Pin>) -> FidoResult<usize> {
        let assertion = self.assertion(rp)?;
        // SAFETY: the device is open, the assertion is ours.
        unsafe {
            check((self.api.fido_assert_set_up)(assertion.raw, FALSE))?;
            check((self.api.fido_dev_get_assert)(self.raw, assertion.raw, pin_or_null(pin)))?;
            Ok((self.api.fido_assert_count)(assertion.raw))
        }
    }

    /// The secret that the credential for `rp` computes from the salt. Needs a touch.
    pub(crate) fn secret(&self, rp: &CStr, salt: &[u8; 32], pin: Option<&Pin>) -> FidoResult<SecretVec> {
        let assertion = self.assertion(rp)?;
        let api = self.api;
        // SAFETY: the device is open, the assertion is ours; the salt is copied. The secret is read
        // while the assertion lives.
        unsafe {
            check((api.fido_assert_set_extensions)(assertion.raw, HMAC_SECRET))?;
            check((api.fido_assert_set_hmac_salt)(assertion.raw, salt.as_ptr(), salt.len()))?;
            check((api.fido_assert_set_up)(assertion.raw, TRUE))?;
            check((api.fido_dev_get_assert)(self.raw, assertion.raw, pin_or_null(pin)))?;
            let at = (api.fido_assert_hmac_secret_ptr)(assertion.raw, 0);
            let len = (api.fido_assert_hmac_secret_len)(assertion.raw, 0);
            if at.is_null() || len != 32 {
                return Err(FidoCode(NO_SECRET));
            }
            Ok(SecretVec::new(std::slice::from_raw_parts(at, len).to_vec()))
        }
    }

    fn assertion(&self, rp: &CStr) -> FidoResult<FidoObject> {
        // SAFETY: no arguments.
        let raw = unsafe { (self.api.fido_assert_new)() };
        if raw.is_null() {
            return Err(FidoCode(INTERNAL));
        }
        let (assertion, hash) = (FidoObject { raw, free: self.api.fido_assert_free }, [0; 32]);
        // SAFETY: the assertion is ours; libfido2 copies the string, which ends in NUL, and the
        // bytes. The signature is not used, so the signed data does not matter.
        unsafe {
            check((self.api.fido_assert_set_clientdata_hash)(raw, hash.as_ptr(), hash.len()))?;
            check((self.api.fido_assert_set_rp)(raw, rp.as_ptr()))?;
        }
        Ok(assertion)
    }
}
