//! The one header of every lacuna disk: what a disk is (format, parameters), and the key slots that turn a
//! passphrase into the master keys of a level.
//!
//! The header is kept twice, as copy A and copy B, in the first [`HEADER_AREA`] bytes of the medium. The page
//! `docs/format/header.md` gives it byte by byte.
//!
//! Invariants kept here:
//! - Opening never writes, and no bytes found on a medium make it panic, allocate without bound or run a key
//!   derivation whose cost lies outside the limits of [`lacuna_crypto::Argon2Cost`].
//! - An unused key slot is random bytes; so is the padding of a used one, and everything between is ciphertext.
//!   Without a passphrase nothing tells how many slots are used or which levels exist (deniability contract).
//! - Every key operation rewrites all slots under a new salt, in new random positions. What is written, how
//!   much and in which order does not depend on how many levels exist (deniability contract).
//! - Every slot is tried with every passphrase, whether or not an earlier one opened.
//! - A header that was once valid is valid: a medium that gives back an older header, both copies whole, is not
//!   noticed here, and a removed passphrase opens that older header. Only trusted storage could tell.
//! - Nothing that the header says is believed before its MAC verifies, except by [`read_public`], whose answer is
//!   for display.
//!
//! # One salt for the whole header
//! The 8 slots share one Argon2id salt, chosen anew at every rewrite, and each slot has its own key derived from
//! the stretched passphrase and the slot's number. So one run of Argon2id tests all 8 slots. With a salt for
//! each slot the owner would pay up to 8 runs for every opening, and the gain would be nothing: somebody who
//! guesses passphrases wants *any* slot to open, cannot tell which slots are used, and would simply be made to
//! pay 8 runs for a guess, which the owner can have as well by asking for 8 times the cost, all of it
//! spent on one run with 8 times the memory or passes. The salt still makes work done for one header useless
//! for any other, and for the same header after its next rewrite.
//!
//! # Power cuts while the header is written
//! [`store()`] writes one copy, syncs, writes the other, syncs. The copy that goes first is the one that is
//! missing, damaged or older; if both are sound and alike, copy A. A power cut may lose, reorder and tear
//! what was not synced:
//! - before or during the first write: the first copy is as before, or torn and so fails its digest. It was
//!   either of no use, or the equal of the other copy. The other copy is sound and opens as before.
//! - between the first sync and the second: the first copy is new and sound, and has the higher generation; the
//!   second is old, torn or new. Opening chooses the first, or the second if it is whole, which is the same.
//! - after the second sync: both are new.
//!
//! So at every moment one sound copy is durable, and the old passphrases open until the moment when the new
//! ones do. [`NewHeader::write`] has no earlier state to keep: it first makes both places zero and durable, and writes
//! the header when everything else is durable, so that a cut leaves no disk or the new one, never an older disk that
//! happened to lie on the same medium.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod copies;
mod create;
mod keyring;
mod keyslot;
pub mod layout;
mod location;
mod public;
mod seal;
mod unlock;

pub use copies::{HeaderCopy, read_public, store};
pub use create::{CreateHeader, NewHeader, update_params};
pub use keyring::{Keyring, LOST_SLOTS_WARNING, change_keys, rekey};
pub use layout::{COPY_A, COPY_B, HEADER_AREA, HEADER_LEN, KEY_SLOTS, MAX_LEVELS, PARAMS_MAX};
pub use location::Location;
pub use public::{FormatId, PublicHeader, Uuid};
pub use seal::HeaderImage;
pub use unlock::{Unlocked, open};
