//! Deniability: the slot area looks the same, whatever the number of used slots.

mod fixture;

use fixture::*;
use lacuna_crypto::SeededRandom;
use lacuna_header::{Keyring, change_keys, open};
use lacuna_medium::MemoryMedium;

/// Chi-square of the byte values, over 255 degrees of freedom.
fn chi_square(bytes: &[u8]) -> f64 {
    let mut counts = [0u32; 256];
    bytes.iter().for_each(|b| counts[usize::from(*b)] += 1);
    let expected = bytes.len() as f64 / 256.0;
    counts.iter().map(|n| (f64::from(*n) - expected).powi(2) / expected).sum()
}

fn slots(medium: &MemoryMedium) -> Vec<u8> {
    medium.snapshot()[field("key slots").range()].to_vec()
}

#[test]
fn slot_areas_are_uniform_for_one_level_and_for_many() {
    let one: &[&[&str]] = &[&["zero"]];
    let many: &[&[&str]] = &[&["a", "b", "c"], &["d", "e"], &["f"], &["g", "h"]];
    for levels in [one, many] {
        let pooled: Vec<u8> = (0..64).flat_map(|seed| slots(&disk(levels, seed))).collect();
        let chi = chi_square(&pooled);
        // Mean 255, standard deviation 22.6: five standard deviations to each side.
        assert!((142.0..368.0).contains(&chi), "{chi}");
        // Each byte of a slot by itself, so that no field of a used slot stands out.
        for at in 0..1024 {
            let ones: u32 = pooled.chunks(1024).map(|slot| slot[at].count_ones()).sum();
            assert!((1792..2304).contains(&ones), "place {at}: {ones} of 4096 bits");
        }
    }
}

#[test]
fn used_slots_lie_anywhere() {
    // Damage one slot at a time to find the used one. The digest is made right again.
    let mut used = [0u32; 8];
    for seed in 0..80 {
        let good = disk(&[&["zero"]], seed).snapshot();
        for (slot, count) in used.iter_mut().enumerate() {
            let mut bytes = good.clone();
            for copy in copies() {
                copy_at(&mut bytes, copy)[2048 + slot * 1024] ^= 1;
                redigest(copy_at(&mut bytes, copy));
            }
            let opened = level_of(&MemoryMedium::from_bytes(bytes), &["zero"]);
            *count += u32::from(opened == Err(lacuna_contracts::Kind::Passphrase));
        }
    }
    assert_eq!(used.iter().sum::<u32>(), 80, "each disk uses one slot");
    assert!(used.iter().all(|n| (2..24).contains(n)), "{used:?}");
}

#[test]
fn a_key_operation_changes_the_same_bytes_whether_hidden_levels_exist_or_not() {
    let changed = |levels: &[&[&str]]| {
        let medium = disk(levels, 1);
        let before = medium.snapshot();
        let mut unlocked = open(&medium, &secrets(&["zero"])).unwrap();
        let ring = Keyring::from_opened(&unlocked, secrets(&["zero"])).unwrap();
        change_keys(&medium, &mut unlocked, &ring, cost(), &SeededRandom::new(2)).unwrap();
        let after = medium.snapshot();
        let blocks = before.chunks(512).zip(after.chunks(512)).map(|(a, b)| a != b).collect::<Vec<_>>();
        (blocks, unlocked.notes)
    };
    assert!(changed(&[&["zero"]]) == changed(&[&["zero"], &["one"], &["two"]]));
}
