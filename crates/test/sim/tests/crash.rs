//! Tests that the crash medium keeps all that it promised, and nothing more.

use lacuna_contracts::Kind;
use lacuna_medium::{Medium, WriteExtent};
use lacuna_sim::{CrashMedium, Lies, LossPolicy, MediumImage, Rng, SECTOR_SIZE};
use std::collections::{HashMap, HashSet};

const LEN: u64 = 64 * 1024;

fn bytes_at(image: &MediumImage, offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    image.read(offset, &mut out).unwrap();
    out
}

/// The sectors of `image` with all bytes equal to `byte`.
fn sectors_of(image: &MediumImage, byte: u8) -> Vec<u64> {
    let flat = image.to_vec();
    let sectors = flat.chunks(SECTOR_SIZE as usize).enumerate();
    sectors.filter(|(_, s)| s.iter().all(|&b| b == byte)).map(|(i, _)| i as u64).collect()
}

#[test]
fn synced_data_survives_a_cut_and_other_data_may_be_lost() {
    let medium = CrashMedium::new(LEN);
    medium.write_at(0, &[1; 4096]).unwrap();
    medium.sync().unwrap();
    medium.write_at(8192, &[2; 4096]).unwrap();
    let (mut gone, mut kept, mut torn) = (0, 0, 0);
    let mut rng = Rng::new(1);
    for _ in 0..500 {
        let left = medium.after_cut(&mut rng);
        assert_eq!(bytes_at(&left, 0, 4096), [1; 4096]);
        match sectors_of(&left, 2).len() {
            0 => gone += 1,
            8 => kept += 1,
            _ => torn += 1,
        }
        assert_eq!(sectors_of(&left, 0).len() + sectors_of(&left, 2).len(), 120, "torn inside a sector");
    }
    assert!(gone > 20 && kept > 20 && torn > 20, "{gone} {kept} {torn}");
}

#[test]
fn lost_writes_are_earlier_versions_after_a_power_cycle() {
    let medium = CrashMedium::new(LEN);
    medium.write_at(0, &[1; 4096]).unwrap();
    medium.sync().unwrap();
    medium.keep_history();
    medium.write_at(0, &[2; 4096]).unwrap();
    medium.cut_now();
    let mut restarted = (0..100).map(|seed| medium.after_power_cycle(&mut Rng::new(seed)));
    let took_all = |after: &CrashMedium| after.image() == medium.durable_image();
    let after = restarted.find(took_all).expect("some cuts take everything");
    let read = || {
        let mut page = [0; 4096];
        after.read_at(0, &mut page).unwrap();
        page[0]
    };
    after.write_at(8192, &[3; 4096]).unwrap();
    assert_eq!((read(), after.unsynced()), (1, 1));
    after.set_lies(Some(Lies { per_mille: 1000, rng: Rng::new(1), may_forge: false }));
    let read_values: HashSet<u8> = (0..400).map(|_| read()).collect();
    assert_eq!(read_values, HashSet::from([0, 1, 2, 3]));
}

#[test]
fn reads_see_unsynced_writes() {
    let medium = CrashMedium::new(LEN);
    medium.write_at(100, b"seen").unwrap();
    let mut buf = [0; 4];
    medium.read_at(100, &mut buf).unwrap();
    assert_eq!(&buf, b"seen");
    assert_eq!(medium.durable_image(), MediumImage::new(LEN));
    medium.discard(100, 2).unwrap();
    medium.read_at(100, &mut buf).unwrap();
    assert_eq!(&buf, b"\0\0en");
    medium.sync().unwrap();
    assert_eq!(medium.durable_image(), medium.image());
    assert_eq!(medium.unsynced(), 0);
}

#[test]
fn writes_tear_at_sector_boundaries() {
    let medium = CrashMedium::new(LEN);
    medium.write_at(300, &[9; 1500]).unwrap();
    let mut rng = Rng::new(2);
    let mut edges = HashSet::new();
    for _ in 0..300 {
        let flat = medium.after_cut_with(LossPolicy::Sectors, &mut rng).to_vec();
        edges.extend((1..flat.len()).filter(|&i| flat[i] != flat[i - 1]));
    }
    assert_eq!(edges, HashSet::from([300, 512, 1024, 1536, 1800]));
}

#[test]
fn a_durable_write_makes_no_other_write_durable() {
    let medium = CrashMedium::new(LEN);
    medium.write_at(0, &[1; 2048]).unwrap();
    medium.write_at(8192, &[1; 512]).unwrap();
    medium.write_durable(&[WriteExtent { offset: 512, data: &[2; 512] }]).unwrap();
    let mut rng = Rng::new(3);
    let mut first = HashSet::new();
    let mut far = HashSet::new();
    for _ in 0..300 {
        let left = medium.after_cut(&mut rng);
        assert_eq!(bytes_at(&left, 512, 512), [2; 512]);
        first.insert(bytes_at(&left, 0, 1)[0]);
        far.insert(bytes_at(&left, 8192, 1)[0]);
    }
    assert_eq!((first.len(), far.len()), (2, 2));

    // A later write over a durable one may be lost like any other.
    medium.write_at(512, &[3; 512]).unwrap();
    let seen: HashSet<u8> = (0..100).map(|_| bytes_at(&medium.after_cut(&mut rng), 512, 1)[0]).collect();
    assert_eq!(seen, HashSet::from([2, 3]));
}

#[test]
fn unsynced_writes_and_discards_land_in_any_order() {
    let medium = CrashMedium::from_image(vec![9; LEN as usize]);
    for version in 1..=3 {
        medium.write_at(0, &[version; 512]).unwrap();
    }
    medium.discard(0, 512).unwrap();
    let mut rng = Rng::new(4);
    let seen: HashSet<u8> = (0..500).map(|_| bytes_at(&medium.after_cut(&mut rng), 0, 1)[0]).collect();
    assert_eq!(seen, HashSet::from([9, 1, 2, 3, 0]));
    assert_eq!(bytes_at(&medium.after_cut_with(LossPolicy::Reverse, &mut rng), 0, 1), [1]);
    assert_eq!(medium.after_cut_with(LossPolicy::KeepAll, &mut rng), medium.image());
    assert_eq!(medium.after_cut_with(LossPolicy::DropAll, &mut rng), medium.durable_image());
}

#[test]
fn operations_fail_after_a_cut_and_those_in_flight_may_land() {
    let medium = CrashMedium::new(LEN);
    medium.cut_after(2);
    medium.write_at(0, &[1; 512]).unwrap();
    medium.sync().unwrap();
    let batch =
        [WriteExtent { offset: 512, data: &[2; 1024] }, WriteExtent { offset: 4096, data: &[3; 512] }];
    let lost = medium.write(&batch).unwrap_err();
    assert_eq!(lost.kind(), Kind::Io);
    assert!(lost.to_string().contains("power is off"));
    assert!(medium.is_cut());
    assert_eq!(medium.ops(), 3);
    assert!(medium.read_at(0, &mut [0]).is_err());
    assert!(medium.sync().is_err() && medium.discard(0, 1).is_err() && medium.set_len(1).is_err());
    assert!(medium.write_durable(&batch).is_err());
    assert_eq!(medium.ops(), 3);
    let mut rng = Rng::new(5);
    let seen: HashSet<_> = (0..300)
        .map(|_| {
            let left = medium.after_cut(&mut rng);
            assert_eq!(bytes_at(&left, 0, 512), [1; 512]);
            [512, 1024, 4096].map(|at| bytes_at(&left, at, 1)[0])
        })
        .collect();
    assert_eq!(seen.len(), 8, "any subset of the batch in flight may land");
}

#[test]
fn a_durable_write_in_flight_may_be_lost() {
    let medium = CrashMedium::new(LEN);
    medium.cut_after(0);
    assert!(medium.write_durable(&[WriteExtent { offset: 0, data: &[1; 1024] }]).is_err());
    let mut rng = Rng::new(6);
    let landed: HashSet<usize> = (0..200).map(|_| sectors_of(&medium.after_cut(&mut rng), 1).len()).collect();
    assert_eq!(landed, HashSet::from([0, 1, 2]));
}

#[test]
fn a_sync_in_flight_makes_any_subset_durable() {
    let medium = CrashMedium::new(LEN);
    (0..4).for_each(|i| medium.write_at(i * 4096, &[1; 512]).unwrap());
    medium.cut_after(0);
    assert!(medium.sync().is_err());
    let mut rng = Rng::new(7);
    let landed: HashSet<Vec<u64>> =
        (0..500).map(|_| sectors_of(&medium.after_cut_with(LossPolicy::TearInFlight, &mut rng), 1)).collect();
    assert_eq!(landed.len(), 16);
}

#[test]
fn ignored_syncs_and_durable_writes_make_nothing_durable() {
    let mut rng = Rng::new(8);
    let medium = CrashMedium::new(LEN);
    let medium_syncs = |at: u64, expected: &[u64], rng: &mut Rng| {
        medium.write_at(at * 512, &[1; 512]).unwrap();
        medium.sync().unwrap();
        assert_eq!(sectors_of(&medium.after_cut_with(LossPolicy::DropAll, rng), 1), expected);
    };
    medium_syncs(0, &[0], &mut rng);
    medium.ignore_syncs(true);
    medium_syncs(1, &[0], &mut rng);
    medium.ignore_syncs(false);
    medium_syncs(2, &[0, 1, 2], &mut rng);
    assert_eq!(medium.syncs(), 3);
    for (sector, expected) in [(16, &[0, 1, 2, 16]), (18, &[0, 1, 2, 16])] {
        medium.write_durable(&[WriteExtent { offset: sector * 512, data: &[1; 512] }]).unwrap();
        assert_eq!(sectors_of(&medium.after_cut_with(LossPolicy::DropAll, &mut rng), 1), expected);
        medium.ignore_durable_writes(true);
    }
}

#[test]
fn lengths_change_in_order_and_truncated_bytes_do_not_come_back() {
    let medium = CrashMedium::from_image(vec![7; 4096]);
    medium.set_len(8192).unwrap();
    medium.write_at(4096, &[1; 4096]).unwrap();
    medium.set_len(4096).unwrap();
    medium.set_len(8192).unwrap();
    let mut rng = Rng::new(9);
    for _ in 0..300 {
        let left = medium.after_cut(&mut rng);
        assert!([4096, 8192].contains(&left.len()));
        assert_eq!(bytes_at(&left, 0, 4096), [7; 4096]);
    }
    assert_eq!(medium.after_cut_with(LossPolicy::Reverse, &mut rng), medium.image());

    // A durable write past the durable length, or over an unsynced shrink, makes the length
    // durable.
    medium.write_durable(&[WriteExtent { offset: 6000, data: &[2; 10] }]).unwrap();
    medium.set_len(5000).unwrap();
    medium.set_len(8192).unwrap();
    medium.write_durable(&[WriteExtent { offset: 6000, data: &[3; 10] }]).unwrap();
    for _ in 0..300 {
        let left = medium.after_cut(&mut rng);
        assert_eq!(left.len(), 8192);
        assert_eq!(bytes_at(&left, 6000, 10), [3; 10]);
        assert_eq!(bytes_at(&left, 4096, 512), [0; 512]);
    }
}

#[test]
fn accesses_past_the_end_are_refused_and_not_counted() {
    let medium = CrashMedium::new(100);
    assert!(medium.write_at(99, &[0; 2]).is_err());
    assert!(medium.discard(u64::MAX, 2).is_err());
    assert!(medium.read_at(100, &mut [0]).is_err());
    assert_eq!((medium.ops(), medium.unsynced()), (0, 0));
}

/// Runs a random workload. Returns the medium and, for each sector, the values that it may hold
/// after a cut.
fn workload(seed: u64, cut_after: u64) -> (CrashMedium, HashMap<u64, HashSet<u8>>) {
    let mut rng = Rng::new(seed);
    let medium = CrashMedium::new(LEN);
    medium.cut_after(cut_after);
    let mut allowed: HashMap<u64, HashSet<u8>> = (0..LEN / 512).map(|s| (s, HashSet::from([0]))).collect();
    let mut current: HashMap<u64, u8> = HashMap::new();
    for step in 0..200u64 {
        let value = (step % 255) as u8 + 1;
        let first = rng.below(LEN / 512);
        let sectors = first..(first + 1 + rng.below(12)).min(LEN / 512);
        let (offset, data) = (first * 512, vec![value; (sectors.end - first) as usize * 512]);
        let extent = [WriteExtent { offset, data: &data }];
        let (done, value, durable) = match rng.below(10) {
            0 => (medium.sync(), value, false),
            1 => (medium.discard(offset, data.len() as u64), 0, false),
            2 | 3 => (medium.write_durable(&extent), value, true),
            _ => (medium.write(&extent), value, false),
        };
        let synced = medium.unsynced() == 0 && !durable && done.is_ok();
        if synced {
            current.iter().for_each(|(s, v)| drop(allowed.insert(*s, HashSet::from([*v]))));
            continue;
        }
        for s in sectors {
            if durable && done.is_ok() {
                allowed.insert(s, HashSet::from([value]));
            } else {
                allowed.entry(s).or_default().insert(value);
            }
            current.insert(s, value);
        }
        if done.is_err() {
            break;
        }
    }
    (medium, allowed)
}

#[test]
fn every_sector_holds_its_last_durable_version_or_a_later_one() {
    for seed in 0..6 {
        let mut rng = Rng::new(1000 + seed);
        for cut in 0..200 {
            let (medium, allowed) = workload(seed, cut);
            for _ in 0..3 {
                let flat = medium.after_cut(&mut rng).to_vec();
                for (s, sector) in flat.chunks(512).enumerate() {
                    assert!(sector.iter().all(|b| *b == sector[0]), "seed {seed} cut {cut} sector {s} torn");
                    let may = &allowed[&(s as u64)];
                    assert!(
                        may.contains(&sector[0]),
                        "seed {seed} cut {cut} sector {s}: {} {may:?}",
                        sector[0]
                    );
                }
            }
        }
    }
}

#[test]
fn same_seed_same_digest() {
    let run = |seed| {
        let (medium, _) = workload(seed, 120);
        let mut rng = Rng::new(seed);
        let left: Vec<u64> = (0..20).map(|_| medium.after_cut(&mut rng).digest()).collect();
        (medium.digest(), left)
    };
    assert_eq!(run(11), run(11));
    assert_ne!(run(11).0, run(12).0);
}

#[test]
fn many_cuts_of_a_large_image_are_cheap() {
    let mut rng = Rng::new(13);
    let base = MediumImage::from(rng.bytes(8 << 20));
    let mut digest = 0u64;
    for _ in 0..500 {
        let medium = CrashMedium::from_image(base.clone());
        for _ in 0..20 {
            medium.write_at(rng.below(2048) * 4096, &[5; 4096]).unwrap();
        }
        medium.sync().unwrap();
        medium.write_at(rng.below(2048) * 4096, &[6; 4096]).unwrap();
        let left = medium.after_cut(&mut rng);
        digest ^= left.changed_pages(&base).len() as u64;
        assert!((1..=21).contains(&left.changed_pages(&base).len()));
    }
    assert!(digest < 32);
}
