//! A medium that returns the header of another disk on a second read.

use super::*;
use crate::observer::Silent;
use lacuna_crypto::{Argon2Cost, Cipher, SeededRandom};
use lacuna_header::{FormatId, NewHeader, NewHeaderSpec, Uuid, medium_len};
use lacuna_medium::{MemoryMedium, ReadExtent};
use lacuna_sealed::Params;
use lacuna_sim::{InterceptedMedium, MediumInterceptor};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// The header of a disk with this UUID, on a medium of its own.
fn header_of(uuid: u8) -> MemoryMedium {
    let params = Params::plan(Cipher::Gcm, 16, None).unwrap();
    let end = params.geometry().end();
    let levels = [vec![SecretVec::new(b"secret".to_vec())]];
    let new = NewHeaderSpec {
        format: FormatId::SEALED,
        params: params.encode().to_vec(),
        end,
        cost: Argon2Cost::new(8, 1, 1).unwrap(),
        levels: &levels,
        uuid: Some(Uuid([uuid; 16])),
    };
    let medium = MemoryMedium::new(medium_len(end));
    let built = NewHeader::build(new, &SeededRandom::new(u64::from(uuid))).unwrap();
    built.write(&medium, |_| Ok(())).unwrap();
    medium
}

/// The first reads are served from one medium, later ones from another.
struct SwitchingMedium {
    first: MemoryMedium,
    then: MemoryMedium,
    first_reads: AtomicU64,
}

impl MediumInterceptor for SwitchingMedium {
    fn inner(&self) -> &dyn Medium {
        &self.then
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        let spent = |left: u64| left.checked_sub(1);
        let medium = match self.first_reads.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spent) {
            Ok(_) => &self.first,
            Err(_) => &self.then,
        };
        medium.read(batch)
    }
}

/// Unlocks for writing: the first `reads` reads see disk `first`, later ones disk `then`.
fn unlock_switching(first: u8, then: u8, reads: u64) -> Result<UnlockedHeader> {
    let (first, then) = (header_of(first), header_of(then));
    let header =
        Arc::new(InterceptedMedium(SwitchingMedium { first, then, first_reads: AtomicU64::new(reads) }));
    let held = HeldDisk::of_leased_header(header);
    let (location, pool_access) = (Location::Path(PathBuf::from("disk.img")), PoolAccess::default());
    unlock_held_disk(
        held,
        DiskRef { location: &location, pool_access: &pool_access },
        true,
        &Silent,
        |_, open| {
            let passphrases = vec![SecretVec::new(b"secret".to_vec())];
            Ok((open(&passphrases)?, passphrases))
        },
    )
}

/// The claimed disk must be the opened disk.
#[test]
fn a_header_that_changed_since_the_first_read_is_refused() {
    assert_eq!(unlock_switching(0xa1, 0xa2, 0).unwrap().unlocked.header.uuid, Uuid([0xa2; 16]));
    // Three copies are read to learn which disk it is.
    assert_eq!(unlock_switching(0xa3, 0xa4, 3).err().unwrap().kind(), Kind::Changed);
    assert_eq!(unlock_switching(0xa5, 0xa6, 1 << 20).unwrap().unlocked.header.uuid, Uuid([0xa5; 16]));
}
