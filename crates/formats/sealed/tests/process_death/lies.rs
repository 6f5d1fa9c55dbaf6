//! Deaths on a medium that answers two reads of one place differently: the next process opens the
//! disk with the kept memory under lies, reads, writes and dies, and the process after it opens the
//! disk on an honest medium. The promises are those of media that lie (`sealed_lies` of the games):
//!
//! - `gcm`: a block reads as a whole version of its own or fails; other ciphers: also as noise.
//! - If first reads of all places are true, every block reads as its last acknowledged version or
//!   fails: nothing that the kept memory adds is decided by a second read.
//!
//! Lies are told to copies, so that the disk itself loses nothing.

use crate::dying_medium::{DyingMedium, open_kept};
use crate::play::{DeadDisk, Play, Trouble};
use crate::{assert_nothing_lost, seed_and_ends};
use lacuna_contracts::Disk;
use lacuna_crypto::Cipher;
use lacuna_sim::versions::{DiskModel, DiskWorkload};
use lacuna_sim::{CrashMedium, HonestReads, Lies, Rng};
use lacuna_testkit::openings::{OpeningResults, Promise};
use std::sync::Arc;

/// The ends of one disk. The medium keeps every version of every page, so a disk does not last.
const ENDS_PER_DISK: u64 = 20;
/// The number of lies in a thousand reads. An opening reads some thousand times.
const LIE_RATES: [u64; 4] = [1, 5, 30, 120];
/// The first stamp of writes under lies.
const STAMPS_UNDER_LIES: u64 = 1 << 40;

/// Opens a copy of a dead disk while its medium lies.
fn open_under_lies(dead: DeadDisk<'_>, rng: &mut Rng, shown: &mut OpeningResults) {
    let own = if dead.params.cipher.authenticates() { Promise::Own } else { Promise::OwnOrNoise };
    let first_reads = rng.chance(1, 2);
    let promise = if first_reads { Promise::Latest { may_undo_discards: false } } else { own };
    let (per_mille, may_forge) = (*rng.pick(&LIE_RATES), rng.chance(1, 2));
    let medium = Arc::new(dead.medium);
    let lies = Lies { per_mille, rng: Rng::new(rng.next_u64()), may_forge };
    medium.set_lies_except(Some(lies), HonestReads { first_reads, ..HonestReads::default() });
    let mut model: DiskModel = dead.model.ever().expect("the play keeps all versions").clone();
    let context = format!("first reads true: {first_reads}, {per_mille} lies in 1000 reads");

    let (dying, last) = DyingMedium::over(&medium, &dead.memory);
    shown.count_opening();
    let opened = open_kept(dying, dead.params, &dead.memory, rng.next_u64());
    match &opened {
        Err(e) => shown.count_refused(e),
        Ok(disk) => {
            shown.check_blocks(disk, &model, promise, rng, &context);
            write_until_death(disk, &medium, &mut model, rng);
        }
    }
    medium.cut_now();
    last.note(&dead.memory);
    drop(opened);

    let honest = Arc::new(medium.after_process_death(rng));
    honest.set_lies(None);
    let memory = last.take().expect("the process died");
    shown.count_opening();
    match open_kept(honest, dead.params, &memory, rng.next_u64()) {
        Err(e) => shown.count_refused(&e),
        Ok(disk) => shown.check_blocks(&disk, &model, own, rng, &format!("{context}, afterwards")),
    }
}

/// Writes on a lying medium until the process dies. A refused write may have happened or not.
fn write_until_death(disk: &dyn Disk, medium: &CrashMedium, model: &mut DiskModel, rng: &mut Rng) {
    medium.cut_after(rng.below(60));
    let mut next_stamp = STAMPS_UNDER_LIES;
    for _ in 0..30 {
        let (count, flushes) = (1 + rng.below(6), rng.chance(1, 4));
        let mut work = DiskWorkload { disk, model, rng, next_stamp: &mut next_stamp };
        let _refused = work.write(count).and_then(|()| if flushes { disk.flush() } else { Ok(()) });
        if medium.is_cut() {
            return;
        }
    }
}

/// Plays disks with this cipher, and opens copies of them under lies.
fn lies_and_deaths(cipher: Cipher) {
    let (seed, ends) = seed_and_ends(8);
    let mut shown = OpeningResults::new(0, 1);
    let mut played = 0;
    while played < ends {
        let seed = shown.begin_disk();
        let some = ENDS_PER_DISK.min(ends - played);
        let outcome = Play::new(cipher, seed, Trouble::LyingCopies, true)
            .run_with_copies(some, &mut |dead, rng| open_under_lies(dead, rng, &mut shown));
        assert_nothing_lost(&format!("{}, copies under lies", cipher.name()), seed, &outcome);
        played += some;
    }
    shown.assert_nothing_wrong(&format!("{}, deaths under lies, from seed {seed}", cipher.name()));
}

#[test]
fn blocks_read_as_promised_after_deaths_under_lies_with_xts() {
    lies_and_deaths(Cipher::Xts);
}

#[test]
fn blocks_read_as_promised_after_deaths_under_lies_with_xts_random() {
    lies_and_deaths(Cipher::XtsRandom);
}

#[test]
fn blocks_read_as_promised_after_deaths_under_lies_with_gcm() {
    lies_and_deaths(Cipher::Gcm);
}
