//! The interface to libfido2, libtss2 and the kernel's keyrings: the only unsafe code of this
//! crate. Every function of this module is safe to call in any order.
//!
//! ABI: `fido.h` of libfido2 1.5 (soname `libfido2.so.1`), `tss2_esys.h` and `tss2_tctildr.h` of
//! tpm2-tss 3.0 (`libtss2-esys.so.0`, `libtss2-tctildr.so.0`). Later releases keep the functions
//! used here under the same sonames.

pub(crate) mod esys;
pub(crate) mod fido;
mod fido_socket;
pub(crate) mod keyctl;
mod library;
