//! A TPM 2.0 as a token.
//!
//! The TPM derives an HMAC key from the seed of its owner hierarchy, the disk, the name and the
//! values of PCRs, and uses the key only while the PCRs have these values. The secret is the HMAC
//! of the salt and the PIN. Nothing is stored, so a changed PCR, another PIN and another TPM are
//! indistinguishable: each gives another secret.
//!
//! The PIN is part of the message, not the password of the key: a password does not enter the
//! derivation of a primary key, so an attacker could derive the same key with another password. For
//! the same reason the TPM cannot count wrong PINs.

use crate::ffi::esys::{SECRET_LEN, Tpm, TpmError};
use crate::request::SecretRequest;
use crate::token::Token;
use lacuna_contracts::{Error, Kind, Result, SecretVec};
use sha2::{Digest, Sha256};
use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use zeroize::Zeroize;

/// The minimum number of PCRs of a TPM for a PC.
pub(crate) const PCR_COUNT: u8 = 24;
/// PCRs that every program may reset to zeros and extend to any value: for debugging, and for
/// applications.
const RESETTABLE: [u8; 2] = [16, 23];
/// The TPM of this machine, behind the kernel's resource manager.
const DEVICE: &str = "/dev/tpmrm0";

/// The owner hierarchy has a password: `TPM_RC_BAD_AUTH` and `TPM_RC_AUTH_FAIL` for session 1.
const OWNER_PASSWORD: [u32; 2] = [0x9a2, 0x98e];
/// The owner hierarchy is switched off: `TPM_RC_HIERARCHY` for handle 1.
const OWNER_DISABLED: u32 = 0x185;
/// A PCR changed during the session: `TPM_RC_PCR_CHANGED`.
const PCR_CHANGED: u32 = 0x128;
/// The TPM is in its lockout: `TPM_RC_LOCKOUT`.
const LOCKOUT: u32 = 0x921;

/// A TPM, and the inputs of its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tpm2 {
    /// Numbers of PCRs, ascending, at least one.
    pub(crate) pcrs: Vec<u8>,
    /// Whether a PIN is required.
    pub(crate) pin: bool,
    /// The libtss2 configuration of the TPM; `None` for the TPM of this machine.
    pub(crate) tcti: Option<String>,
}

impl Tpm2 {
    /// The PCRs, for use in a sentence.
    pub(crate) fn pcr_text(&self) -> String {
        match &self.pcrs[..] {
            [one] => format!("PCR {one}"),
            several => {
                let numbers: Vec<String> = several.iter().map(u8::to_string).collect();
                format!("one of the PCRs {}", numbers.join(", "))
            }
        }
    }

    /// Refuses PCRs that the TPM does not have. During enrolment, warns the user if the PCRs bind
    /// the secret to nothing.
    fn check_pcrs(&self, tpm: &Tpm, request: &SecretRequest<'_>, create: bool) -> Result<()> {
        let mut measured = false;
        for pcr in &self.pcrs {
            let value = tpm.pcr(*pcr).map_err(|failed| refusal(&failed))?.ok_or_else(|| {
                Error::new(Kind::Usage, format!("cannot bind a secret to PCR {pcr}"))
                    .found("a TPM without SHA-256 PCRs")
                    .expected("PCRs of the SHA-256 bank")
                    .hint("switch the bank on in the firmware")
            })?;
            let untouched = value.iter().all(|byte| *byte == 0) || value.iter().all(|byte| *byte == 0xff);
            measured |= !untouched && !RESETTABLE.contains(pcr);
        }
        for pcr in self.pcrs.iter().filter(|pcr| create && RESETTABLE.contains(pcr)) {
            request.user.show_action(&format!(
                "PCR {pcr} binds the secret to nothing: every program can set it to any value"
            ));
        }
        if create && !measured {
            request.user.show_action("the firmware has measured nothing into these PCRs: any system that is booted here gets the secret");
        }
        Ok(())
    }

    fn connect(&self) -> Result<Tpm> {
        let configuration = if let Some(given) = &self.tcti {
            given.clone()
        } else {
            check_device()?;
            format!("device:{DEVICE}")
        };
        let c = CString::new(configuration.as_str())
            .map_err(|_| Error::new(Kind::Usage, "cannot use tcti=").found("a NUL byte in it"))?;
        Tpm::connect(&c)?.map_err(|failed| {
            Error::new(Kind::NotFound, "cannot reach the TPM")
                .found(format!("code {:#x} of libtss2 for {configuration}", failed.code))
                .expected("a TPM 2.0 that answers")
                .hint(
                    "give the passphrase if there is no TPM here; else see whether another program holds it",
                )
        })
    }
}

impl Token for Tpm2 {
    fn secret(&self, request: &SecretRequest<'_>, create: bool) -> Result<SecretVec> {
        let tpm = self.connect()?;
        self.check_pcrs(&tpm, request, create)?;
        let salt = request.salt();
        let mut message = [0; 64];
        message[..32].copy_from_slice(&salt);
        if self.pin {
            let pin = pin(request, create)?;
            let digest = Sha256::new()
                .chain_update(b"lacuna tpm2 pin v1")
                .chain_update(salt)
                .chain_update(pin.expose());
            // Written directly into `message`, which is zeroed below: the digest replaces the PIN.
            let place: &mut [u8; 32] = message.last_chunk_mut().expect("a message holds a digest");
            digest.finalize_into(place.into());
        }
        let used = if self.pin { &message[..] } else { &message[..32] };
        let answer = tpm.hmac(&self.pcrs, &salt, used).map_err(|failed| refusal(&failed));
        message.zeroize();
        let secret = answer?;
        match secret.expose().len() {
            SECRET_LEN => Ok(secret),
            len => Err(Error::new(Kind::Other, "cannot use the answer of the TPM")
                .found(format!("{len} bytes"))
                .expected(format!("{SECRET_LEN}"))
                .hint("give the passphrase instead")),
        }
    }
}

/// Asks for the PIN; twice on enrolment, where a typing error would make a secret that cannot be
/// reproduced.
fn pin(request: &SecretRequest<'_>, create: bool) -> Result<SecretVec> {
    let pin = request.user.ask_pin("PIN that goes with the TPM: ")?;
    if create && request.user.ask_pin("The same PIN again: ")?.expose() != pin.expose() {
        return Err(Error::new(Kind::Usage, "cannot take the PIN")
            .found("two that differ")
            .expected("the same twice"));
    }
    Ok(pin)
}

/// Reports why the device cannot be used. Otherwise libtss2 would, with its own messages on
/// standard error.
fn check_device() -> Result<()> {
    let Err(e) = OpenOptions::new().read(true).write(true).open(DEVICE) else { return Ok(()) };
    let error = Error::io(format!("cannot use the TPM {DEVICE}"), &e);
    Err(match e.kind() {
        ErrorKind::NotFound => error
            .expected("a TPM 2.0 that the kernel knows")
            .hint("switch the TPM on in the firmware (it may be called PTT or fTPM), or give the passphrase"),
        ErrorKind::PermissionDenied => {
            error.hint("run this as root, or as a member of the group that owns the device (tss)")
        }
        ErrorKind::ResourceBusy => error.expected("a TPM that no program has for itself").hint(
            "end that program (`fuser /dev/tpm0 /dev/tpmrm0` finds it) and try again, or give the passphrase",
        ),
        _ => error.hint("give the passphrase instead"),
    })
}

fn refusal(failed: &TpmError) -> Error {
    let error = |kind| Error::new(kind, format!("cannot {}", failed.step));
    // The upper half of a code is the layer; the TPM itself is layer 0.
    match failed.code {
        code if OWNER_PASSWORD.contains(&code) => error(Kind::Permission)
            .found("a TPM with a password on its owner hierarchy")
            .expected("one without, as systems leave it")
            .hint("take that password away with `tpm2_changeauth`, or give the passphrase of the disk"),
        OWNER_DISABLED => error(Kind::Permission)
            .found("a TPM with its owner hierarchy switched off until the machine starts again")
            .expected("one that is switched on, as it is when a machine starts")
            .hint("restart the machine; if it stays so, look for it in the firmware, or give the passphrase of the disk"),
        PCR_CHANGED => error(Kind::Changed).found("PCRs that change right now").hint("try again"),
        LOCKOUT => error(Kind::Permission)
            .found("a TPM in its lockout after wrong passwords of other keys")
            .hint("wait some hours, or give the passphrase"),
        code => error(Kind::Other)
            .found(format!(
                "code {code:#x} of the TPM or of libtss2 (`tpm2_rc_decode {code:#x}` has its words)"
            ))
            .hint("give the passphrase instead"),
    }
}
