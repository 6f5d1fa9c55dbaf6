//! The header of every lacuna disk: format and parameters of the disk, and the key slots that turn
//! a passphrase into the master keys of a level.
//!
//! The medium holds three copies: A and B in its first [`HEADER_AREA`] bytes, C at its end.
//! `docs/format/header.md` describes them byte by byte.
//!
//! Invariants:
//! - Opening never writes. No bytes on a medium make it panic, allocate without bound or run a key
//!   derivation with a cost outside the limits of [`lacuna_crypto::Argon2Cost`].
//! - An unused key slot is random bytes. A used one is ciphertext, padded with random bytes.
//!   Without a passphrase nothing tells how many slots are used or which levels exist (deniability
//!   contract).
//! - In formats with levels every key operation rewrites all slots under a new salt, in new random
//!   positions. The content, amount and order of the writes do not depend on how many levels exist
//!   (deniability contract). In formats without levels one slot can change while all other slots
//!   stay byte for byte: an encrypted map tells which slots are used.
//! - Every slot is tried with every passphrase, whether or not an earlier one opened.
//! - A rollback is not noticed: if a medium returns an older header, all copies whole, that header
//!   is valid, and a passphrase that was removed since opens it. Only trusted storage could tell.
//! - No field of the header is trusted before its MAC verifies. [`read_public`] returns unverified
//!   fields, for display only.
//!
//! # One salt for the whole header
//! The 8 slots share one Argon2id salt, chosen anew at every rewrite. Each slot has its own key,
//! derived from the stretched passphrase and the slot's number, so one run of Argon2id tests all 8
//! slots. A salt for each slot would cost the owner up to 8 runs for every opening and gain
//! nothing: an adversary that guesses passphrases wants *any* slot to open and cannot tell which
//! slots are used, so it would pay 8 runs for a guess. The owner gets the same by asking for 8
//! times the cost, spent on one run with 8 times the memory or passes. The salt still makes work
//! done for one header useless for any other, and for the same header after its next rewrite.
//!
//! # Power cuts while the header is written
//! [`store()`] writes one copy after another and syncs after each. Copies that are missing,
//! damaged, altered or older go first; sound ones follow in the order A, B, C. A power cut may
//! lose, reorder and tear writes that were not synced:
//! - before or during the first write: the first copy is as before, or torn and so fails its
//!   digest. It was unusable already, or it equals a copy that is not being written; that copy is
//!   sound and opens as before.
//! - after the first sync: the copies written so far are new and sound, and have the highest
//!   generation; the copy being written is old, torn or new. Opening chooses a new one.
//! - after the last sync: all are new.
//!
//! So one sound copy is durable at every moment, and the old passphrases open until the new ones
//! do. [`NewHeader::write`] has no earlier state to keep: it first zeroes all places of the header
//! durably, and writes the header when everything else is durable. A cut leaves no disk or the new
//! one, never an older disk that lay on the same medium.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod backup;
mod copies;
mod create;
mod diagnosis;
mod disk_id;
mod header_image;
mod keyring;
mod keyslot;
pub mod layout;
mod location;
mod passphrases;
mod public;
mod slot_map;
mod unlock;

pub use backup::{HeaderBackup, repair};
pub use copies::{HeaderCopy, MISSING_AFTER_GROWTH, read_public, store};
pub use create::{NewHeader, NewHeaderSpec, update_params};
pub use diagnosis::{CopyReport, CopyState, Diagnosis};
pub use disk_id::DiskId;
pub use header_image::HeaderImage;
pub use keyring::{Keyring, change_keys, lost_slots_warning, rekey};
pub use layout::{
    COPY_A, COPY_B, HEADER_AREA, HEADER_LEN, KEY_SLOTS, MAX_LEVELS, PARAMS_MAX, TAIL_AREA, copy_c, medium_len,
};
pub use location::Location;
pub use passphrases::{add_passphrase, change_passphrase, check_free_slot, remove_passphrase};
pub use public::{FormatId, PublicHeader, Uuid};
pub use unlock::{OpenHeader, open, open_by_key};
