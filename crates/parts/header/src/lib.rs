//! The one header of every lacuna disk: what a disk is (format, parameters), and the key slots that
//! turn a passphrase into the master keys of a level.
//!
//! The header is kept three times: copies A and B in the first [`HEADER_AREA`] bytes of the medium,
//! copy C at its end. The page `docs/format/header.md` gives it byte by byte.
//!
//! Invariants kept here:
//! - Opening never writes, and no bytes found on a medium make it panic, allocate without bound or
//!   run a key derivation whose cost lies outside the limits of [`lacuna_crypto::Argon2Cost`].
//! - An unused key slot is random bytes; so is the padding of a used one, and everything between is
//!   ciphertext. Without a passphrase nothing tells how many slots are used or which levels exist
//!   (deniability contract).
//! - On formats with levels every key operation rewrites all slots under a new salt, in new random
//!   positions. What is written, how much and in which order does not depend on how many levels
//!   exist (deniability contract). On others one slot can change while all other bytes of the slots
//!   stay: an encrypted map tells which slots are used.
//! - Every slot is tried with every passphrase, whether or not an earlier one opened.
//! - A header that was once valid is valid: a medium that gives back an older header, all copies
//!   whole, is not noticed here, and a removed passphrase opens that older header. Only trusted
//!   storage could tell.
//! - Nothing that the header says is believed before its MAC verifies, except by [`read_public`],
//!   whose answer is for display.
//!
//! # One salt for the whole header
//! The 8 slots share one Argon2id salt, chosen anew at every rewrite, and each slot has its own key
//! derived from the stretched passphrase and the slot's number. So one run of Argon2id tests all 8
//! slots. With a salt for each slot the owner would pay up to 8 runs for every opening, and the
//! gain would be nothing: somebody who guesses passphrases wants *any* slot to open, cannot tell
//! which slots are used, and would simply be made to pay 8 runs for a guess, which the owner can
//! have as well by asking for 8 times the cost, all of it spent on one run with 8 times the memory
//! or passes. The salt still makes work done for one header useless for any other, and for the same
//! header after its next rewrite.
//!
//! # Power cuts while the header is written
//! [`store()`] writes one copy after another and syncs after each. Copies that are missing,
//! damaged, altered or older go first; sound ones follow in the order A, B, C. A power cut may
//! lose, reorder and tear what was not synced:
//! - before or during the first write: the first copy is as before, or torn and so fails its
//!   digest. It was either of no use, or the equal of a copy that is not being written. That one is
//!   sound and opens as before.
//! - after the first sync: the copies written so far are new and sound, and have the highest
//!   generation; the one being written is old, torn or new. Opening chooses a new one.
//! - after the last sync: all are new.
//!
//! So at every moment one sound copy is durable, and the old passphrases open until the moment when
//! the new ones do. [`NewHeader::write`] has no earlier state to keep: it first makes all places
//! zero and durable, and writes the header when everything else is durable, so that a cut leaves no
//! disk or the new one, never an older disk that happened to lie on the same medium.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod backup;
mod copies;
mod create;
mod diagnosis;
mod disk_id;
mod keyring;
mod keyslot;
pub mod layout;
mod location;
mod passphrases;
mod public;
mod seal;
mod slot_map;
mod unlock;

pub use backup::{HeaderBackup, repair};
pub use copies::{HeaderCopy, read_public, store};
pub use create::{CreateHeader, NewHeader, update_params};
pub use diagnosis::{CopyReport, CopyState, Diagnosis};
pub use disk_id::DiskId;
pub use keyring::{Keyring, change_keys, lost_slots_warning, rekey};
pub use layout::{
    COPY_A, COPY_B, HEADER_AREA, HEADER_LEN, KEY_SLOTS, MAX_LEVELS, PARAMS_MAX, TAIL_AREA, copy_c, medium_len,
};
pub use location::Location;
pub use passphrases::{add_passphrase, change_passphrase, check_free_slot, remove_passphrase};
pub use public::{FormatId, PublicHeader, Uuid};
pub use seal::HeaderImage;
pub use unlock::{Unlocked, open, open_by_key};
