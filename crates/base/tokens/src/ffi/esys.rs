//! libtss2: a connection to a TPM 2.0 and the few commands that lacuna uses.

use super::library::{functions, load, too_old};
use lacuna_contracts::{Result, SecretVec};
use std::ffi::{CStr, c_char, c_void};
use std::mem::offset_of;
use std::ptr;
use std::sync::OnceLock;
use zeroize::Zeroize;

const PURPOSE: &str = "a TPM";
const ESYS_PACKAGE: &str = "libtss2-esys-3.0.2-0";
const TCTI_PACKAGE: &str = "libtss2-tctildr0";

/// An opaque pointer from libtss2.
type Handle = *mut c_void;
/// `ESYS_TR`: libtss2's number for an object of the TPM.
type EsysTr = u32;

/// The length of a secret: that of an HMAC-SHA-256.
pub(crate) const SECRET_LEN: usize = 32;

const NONE: EsysTr = 0xfff;
const PASSWORD: EsysTr = 0x0ff;
const OWNER: EsysTr = 0x101;

const ALG_HMAC: u16 = 0x0005;
const ALG_AES: u16 = 0x0006;
const ALG_KEYED_HASH: u16 = 0x0008;
const ALG_SHA256: u16 = 0x000b;
const ALG_NULL: u16 = 0x0010;
const ALG_ECC: u16 = 0x0023;
const ALG_CFB: u16 = 0x0043;
const ECC_P256: u16 = 0x0003;
const POLICY_SESSION: u8 = 1;
const CONTINUE_SESSION: u8 = 0x01;
const DECRYPT_COMMAND: u8 = 0x20;
const ENCRYPT_RESPONSE: u8 = 0x40;

/// Attributes: fixed to this TPM and parent, made by the TPM, and exempt from its lockout, since
/// the key has no password.
const OURS: u32 = 0x0002 | 0x0010 | 0x0020 | 0x0400;
const USER_WITH_AUTH: u32 = 0x0040;
const RESTRICTED: u32 = 0x1_0000;
const DECRYPT: u32 = 0x2_0000;
const SIGN: u32 = 0x4_0000;

/// `TPM2B_DIGEST` and `TPM2B_NONCE`.
#[repr(C)]
struct Tpm2bDigest {
    size: u16,
    buffer: [u8; 64],
}

/// `TPM2B_DATA`.
#[repr(C)]
struct Tpm2bData {
    size: u16,
    /// The length of a `TPMT_HA`: a digest and its algorithm.
    buffer: [u8; 66],
}

/// `TPM2B_MAX_BUFFER`.
#[repr(C)]
struct Tpm2bMaxBuffer {
    size: u16,
    buffer: [u8; 1024],
}

/// `TPM2B_SENSITIVE_CREATE`.
#[repr(C)]
struct Tpm2bSensitiveCreate {
    size: u16,
    user_auth: Tpm2bDigest,
    data_size: u16,
    data: [u8; 256],
}

/// `TPMS_PCR_SELECTION`.
#[repr(C)]
#[derive(Clone, Copy)]
struct TpmsPcrSelection {
    hash: u16,
    size: u8,
    select: [u8; 4],
}

/// `TPML_PCR_SELECTION`.
#[repr(C)]
struct TpmlPcrSelection {
    count: u32,
    items: [TpmsPcrSelection; 16],
}

/// `TPMU_PUBLIC_PARMS`.
#[repr(C, align(4))]
struct TpmuPublicParms([u16; 10]);

/// `TPML_DIGEST`.
#[repr(C)]
struct TpmlDigest {
    count: u32,
    items: [Tpm2bDigest; 8],
}

/// `TPM2B_PUBLIC`.
#[repr(C)]
struct Tpm2bPublic {
    size: u16,
    area: TpmtPublic,
}

/// `TPMT_PUBLIC`.
#[repr(C)]
struct TpmtPublic {
    algorithm: u16,
    name_algorithm: u16,
    attributes: u32,
    policy: Tpm2bDigest,
    parameters: TpmuPublicParms,
    unique: TpmuPublicId,
}

/// `TPMU_PUBLIC_ID`. Only its `TPM2B_DIGEST` is used.
#[repr(C)]
struct TpmuPublicId {
    digest: Tpm2bDigest,
    rest: [u8; 448],
}

// The layout of C.
const _: () = {
    assert!(
        size_of::<Tpm2bDigest>() == 66 && size_of::<Tpm2bData>() == 68 && size_of::<Tpm2bMaxBuffer>() == 1026
    );
    assert!(size_of::<Tpm2bSensitiveCreate>() == 326);
    assert!(size_of::<TpmlPcrSelection>() == 132 && size_of::<Tpm2bPublic>() == 616);
    assert!(offset_of!(Tpm2bPublic, area) == 4 && offset_of!(TpmtPublic, policy) == 8);
    assert!(offset_of!(TpmtPublic, parameters) == 76 && offset_of!(TpmtPublic, unique) == 96);
};

functions! { Esys:
    Esys_Initialize(*mut Handle, Handle, *const c_void) -> u32;
    Esys_Finalize(*mut Handle);
    Esys_StartAuthSession(
        Handle, EsysTr, EsysTr, EsysTr, EsysTr, EsysTr, *const Tpm2bDigest, u8, *const [u16; 3], u16, *mut EsysTr,
    ) -> u32;
    Esys_TRSess_SetAttributes(Handle, EsysTr, u8, u8) -> u32;
    Esys_PCR_Read(
        Handle, EsysTr, EsysTr, EsysTr, *const TpmlPcrSelection, *mut u32, *mut *mut TpmlPcrSelection, *mut *mut TpmlDigest,
    ) -> u32;
    Esys_PolicyPCR(Handle, EsysTr, EsysTr, EsysTr, EsysTr, *const Tpm2bDigest, *const TpmlPcrSelection) -> u32;
    Esys_PolicyGetDigest(Handle, EsysTr, EsysTr, EsysTr, EsysTr, *mut *mut Tpm2bDigest) -> u32;
    Esys_CreatePrimary(
        Handle, EsysTr, EsysTr, EsysTr, EsysTr, *const Tpm2bSensitiveCreate, *const Tpm2bPublic, *const Tpm2bData, *const TpmlPcrSelection, *mut EsysTr,
        *mut *mut c_void, *mut *mut c_void, *mut *mut c_void, *mut *mut c_void,
    ) -> u32;
    Esys_HMAC(Handle, EsysTr, EsysTr, EsysTr, EsysTr, *const Tpm2bMaxBuffer, u16, *mut *mut Tpm2bDigest) -> u32;
    Esys_GetRandom(Handle, EsysTr, EsysTr, EsysTr, u16, *mut *mut Tpm2bDigest) -> u32;
    Esys_FlushContext(Handle, EsysTr) -> u32;
    Esys_Free(*mut c_void);
}

functions! { Loader:
    Tss2_TctiLdr_Initialize(*const c_char, *mut Handle) -> u32;
    Tss2_TctiLdr_Finalize(*mut Handle);
}

/// An error code of libtss2 or of the TPM, and the failed step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TpmError {
    pub(crate) step: &'static str,
    pub(crate) code: u32,
}

type TpmResult<T> = std::result::Result<T, TpmError>;

fn check(step: &'static str, code: u32) -> TpmResult<()> {
    if code == 0 { Ok(()) } else { Err(TpmError { step, code }) }
}

/// The functions of both libraries. Errors: a library is not installed.
fn libraries() -> Result<&'static (Esys, Loader)> {
    static FOUND: OnceLock<(Esys, Loader)> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(found);
    }
    let esys = load("libtss2-esys.so.0", ESYS_PACKAGE, PURPOSE)?;
    let loader = load("libtss2-tctildr.so.0", TCTI_PACKAGE, PURPOSE)?;
    let esys_functions = Esys::find(&esys).map_err(|e| too_old(&e, ESYS_PACKAGE, PURPOSE))?;
    let loader_functions = Loader::find(&loader).map_err(|e| too_old(&e, TCTI_PACKAGE, PURPOSE))?;
    // The functions are used for the rest of the process.
    std::mem::forget((esys, loader));
    Ok(FOUND.get_or_init(|| (esys_functions, loader_functions)))
}

/// A connection to a TPM.
pub(crate) struct Tpm {
    esys: &'static Esys,
    raw: Handle,
    _transport: Tcti,
}

/// The connection to the TPM.
struct Tcti {
    loader: &'static Loader,
    raw: Handle,
}

impl Drop for Tcti {
    fn drop(&mut self) {
        // SAFETY: it was initialised, and the context that used it is gone: fields are dropped
        // after their owner's `drop`.
        unsafe { (self.loader.Tss2_TctiLdr_Finalize)(&raw mut self.raw) }
    }
}

impl Drop for Tpm {
    fn drop(&mut self) {
        // SAFETY: it was initialised and is not used elsewhere.
        unsafe { (self.esys.Esys_Finalize)(&raw mut self.raw) }
    }
}

/// An object or session in the TPM. Drop removes it from the TPM.
struct TransientObject<'a> {
    tpm: &'a Tpm,
    tr: EsysTr,
}

impl Drop for TransientObject<'_> {
    fn drop(&mut self) {
        // On failure, the resource manager removes the object when the connection ends.
        // SAFETY: the connection is live and returned this number.
        let _ = unsafe { (self.tpm.esys.Esys_FlushContext)(self.tpm.raw, self.tr) };
    }
}

impl Tpm {
    /// Connects to the TPM named by a configuration string of libtss2, such as
    /// `device:/dev/tpmrm0`. The outer error: a library is missing.
    pub(crate) fn connect(configuration: &CStr) -> Result<TpmResult<Tpm>> {
        let (esys, loader) = libraries()?;
        let mut transport = Tcti { loader, raw: ptr::null_mut() };
        // SAFETY: the string ends in NUL; the pointer to the context outlives the call.
        let code =
            unsafe { (loader.Tss2_TctiLdr_Initialize)(configuration.as_ptr(), &raw mut transport.raw) };
        if let Err(failed) = check("connect", code) {
            // Nothing to finalise.
            std::mem::forget(transport);
            return Ok(Err(failed));
        }
        let mut raw = ptr::null_mut();
        // SAFETY: the transport is live and outlives the context; no version is required.
        let code = unsafe { (esys.Esys_Initialize)(&raw mut raw, transport.raw, ptr::null()) };
        Ok(check("connect", code).map(|()| Tpm { esys, raw, _transport: transport }))
    }

    /// HMAC-SHA-256 of `message` under a key that the TPM derives from its owner's seed, `unique`,
    /// and the present values of the PCRs. The TPM computes it only while the PCRs have these
    /// values. Leaves nothing in the TPM.
    pub(crate) fn hmac(&self, pcrs: &[u8], unique: &[u8; 32], message: &[u8]) -> TpmResult<SecretVec> {
        // A key that only encrypts the transport: a listener on the bus to the TPM sees neither the
        // message nor the answer.
        let transport_key = self.primary(&transport_template())?;
        let session = self.policy_session(&transport_key)?;
        let policy = self.policy_of(&session, pcrs)?;
        let key = self.primary(&key_template(&policy, unique))?;
        let mut buffer = Tpm2bMaxBuffer { size: message.len() as u16, buffer: [0; 1024] };
        buffer.buffer[..message.len()].copy_from_slice(message);
        let mut answer: *mut Tpm2bDigest = ptr::null_mut();
        // SAFETY: the connection, key and session are live; the buffer outlives the call.
        let code = unsafe {
            (self.esys.Esys_HMAC)(
                self.raw,
                key.tr,
                session.tr,
                NONE,
                NONE,
                &raw const buffer,
                ALG_SHA256,
                &raw mut answer,
            )
        };
        buffer.buffer.zeroize();
        check("compute the secret", code)?;
        let secret = SecretVec::new(self.copy_and_free(answer));
        self.overwrite_answer(&session);
        Ok(secret)
    }

    /// Overwrites the last answer in the buffer of libtss2, where it was decrypted. libtss2 frees
    /// that buffer without zeroing it, and a process that keeps a disk open would keep the secret
    /// in its memory.
    ///
    /// Another answer with the length of a digest, encrypted over the same session, is placed in
    /// the same memory and overwrites it.
    fn overwrite_answer(&self, session: &TransientObject<'_>) {
        let mut random: *mut Tpm2bDigest = ptr::null_mut();
        // SAFETY: the connection and the session are live. The session does not encrypt this
        // command, which has no parameter to encrypt.
        let code = unsafe {
            let flags = CONTINUE_SESSION | ENCRYPT_RESPONSE;
            (self.esys.Esys_TRSess_SetAttributes)(self.raw, session.tr, flags, 0xff);
            (self.esys.Esys_GetRandom)(self.raw, session.tr, NONE, NONE, SECRET_LEN as u16, &raw mut random)
        };
        // An error does not matter: the secret is correct.
        if code == 0 {
            drop(self.copy_and_free(random));
        }
    }

    /// The value of a PCR of the SHA-256 bank. `None` if the TPM has no such bank: a policy about
    /// it would bind to nothing.
    pub(crate) fn pcr(&self, number: u8) -> TpmResult<Option<Vec<u8>>> {
        let wanted = selection(&[number]);
        let mut values: *mut TpmlDigest = ptr::null_mut();
        // SAFETY: the connection is live, the selection outlives the call; null skips an output.
        let code = unsafe {
            (self.esys.Esys_PCR_Read)(
                self.raw,
                NONE,
                NONE,
                NONE,
                &raw const wanted,
                ptr::null_mut(),
                ptr::null_mut(),
                &raw mut values,
            )
        };
        check("read the PCRs", code)?;
        // SAFETY: the call succeeded and has set it to a list that is ours until it is freed here.
        unsafe {
            let first = ((*values).count > 0).then(|| &(*values).items[0]);
            let value = first.map(|digest| digest.buffer[..usize::from(digest.size).min(64)].to_vec());
            (self.esys.Esys_Free)(values.cast());
            Ok(value)
        }
    }

    /// Copies a digest allocated by libtss2, then zeroes and frees it.
    fn copy_and_free(&self, digest: *mut Tpm2bDigest) -> Vec<u8> {
        // SAFETY: a call that succeeded has set it to a digest that is ours until it is freed here.
        unsafe {
            let bytes = (&(*digest).buffer)[..usize::from((*digest).size).min(64)].to_vec();
            (*digest).buffer.zeroize();
            (self.esys.Esys_Free)(digest.cast());
            bytes
        }
    }

    /// Derives a key from the owner's seed: the same key for the same template.
    fn primary(&self, template: &Tpm2bPublic) -> TpmResult<TransientObject<'_>> {
        let user_auth = Tpm2bDigest { size: 0, buffer: [0; 64] };
        let sensitive = Tpm2bSensitiveCreate { size: 0, user_auth, data_size: 0, data: [0; 256] };
        let (outside, pcrs) = (Tpm2bData { size: 0, buffer: [0; 66] }, selection(&[]));
        let mut tr = NONE;
        // SAFETY: the connection is live; all structures outlive the call; null skips an output.
        let code = unsafe {
            (self.esys.Esys_CreatePrimary)(
                self.raw,
                OWNER,
                PASSWORD,
                NONE,
                NONE,
                &raw const sensitive,
                ptr::from_ref(template),
                &raw const outside,
                &raw const pcrs,
                &raw mut tr,
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        check("make the key", code).map(|()| TransientObject { tpm: self, tr })
    }

    /// A policy session with encrypted commands and answers.
    fn policy_session(&self, transport_key: &TransientObject<'_>) -> TpmResult<TransientObject<'_>> {
        let symmetric = [ALG_AES, 128, ALG_CFB];
        let mut tr = NONE;
        // SAFETY: the connection and the key are live; without a nonce the library draws one.
        let code = unsafe {
            (self.esys.Esys_StartAuthSession)(
                self.raw,
                transport_key.tr,
                NONE,
                NONE,
                NONE,
                NONE,
                ptr::null(),
                POLICY_SESSION,
                &raw const symmetric,
                ALG_SHA256,
                &raw mut tr,
            )
        };
        let session = check("begin a session", code).map(|()| TransientObject { tpm: self, tr })?;
        let flags = CONTINUE_SESSION | DECRYPT_COMMAND | ENCRYPT_RESPONSE;
        // SAFETY: the connection and the session are live.
        let code = unsafe { (self.esys.Esys_TRSess_SetAttributes)(self.raw, tr, flags, 0xff) };
        check("begin a session", code).map(|()| session)
    }

    /// Binds the session to the present values of the PCRs. Returns the digest of that policy.
    fn policy_of(&self, session: &TransientObject<'_>, pcrs: &[u8]) -> TpmResult<Vec<u8>> {
        let (present, pcrs) = (Tpm2bDigest { size: 0, buffer: [0; 64] }, selection(pcrs));
        // SAFETY: the connection and the session are live; the structures outlive the call. An
        // empty digest means the present values.
        let code = unsafe {
            (self.esys.Esys_PolicyPCR)(
                self.raw,
                session.tr,
                NONE,
                NONE,
                NONE,
                &raw const present,
                &raw const pcrs,
            )
        };
        check("read the PCRs", code)?;
        let mut digest: *mut Tpm2bDigest = ptr::null_mut();
        // SAFETY: the connection and the session are live.
        let code = unsafe {
            (self.esys.Esys_PolicyGetDigest)(self.raw, session.tr, NONE, NONE, NONE, &raw mut digest)
        };
        check("read the PCRs", code)?;
        Ok(self.copy_and_free(digest))
    }
}

/// A selection of PCRs of the SHA-256 bank.
fn selection(pcrs: &[u8]) -> TpmlPcrSelection {
    let none = TpmsPcrSelection { hash: 0, size: 0, select: [0; 4] };
    let mut selections = TpmlPcrSelection { count: 0, items: [none; 16] };
    if !pcrs.is_empty() {
        let mut one = TpmsPcrSelection { hash: ALG_SHA256, size: 3, select: [0; 4] };
        pcrs.iter().for_each(|pcr| one.select[usize::from(pcr / 8)] |= 1 << (pcr % 8));
        (selections.count, selections.items[0]) = (1, one);
    }
    selections
}

fn template(algorithm: u16, attributes: u32, parameters: [u16; 10]) -> Tpm2bPublic {
    let empty = || Tpm2bDigest { size: 0, buffer: [0; 64] };
    let area = TpmtPublic {
        algorithm,
        name_algorithm: ALG_SHA256,
        attributes,
        policy: empty(),
        parameters: TpmuPublicParms(parameters),
        unique: TpmuPublicId { digest: empty(), rest: [0; 448] },
    };
    Tpm2bPublic { size: 0, area }
}

/// The template of the key that encrypts sessions.
fn transport_template() -> Tpm2bPublic {
    let parameters = [ALG_AES, 128, ALG_CFB, ALG_NULL, 0, 0, ECC_P256, ALG_NULL, 0, 0];
    template(ALG_ECC, OURS | USER_WITH_AUTH | RESTRICTED | DECRYPT, parameters)
}

/// The template of the key of the secret. Any change makes enrolled tokens useless.
fn key_template(policy: &[u8], unique: &[u8; 32]) -> Tpm2bPublic {
    let filled = |bytes: &[u8]| {
        let mut digest = Tpm2bDigest { size: bytes.len() as u16, buffer: [0; 64] };
        digest.buffer[..bytes.len()].copy_from_slice(bytes);
        digest
    };
    let mut template = template(ALG_KEYED_HASH, OURS | SIGN, [ALG_HMAC, ALG_SHA256, 0, 0, 0, 0, 0, 0, 0, 0]);
    template.area.policy = filled(policy);
    template.area.unique.digest = filled(unique);
    template
}
