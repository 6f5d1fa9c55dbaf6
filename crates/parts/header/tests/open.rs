//! Opening: levels, wrong passphrases, damaged, altered, missing and old copies.

mod fixture;

use fixture::*;
use lacuna_contracts::Kind;
use lacuna_crypto::SeededRandom;
use lacuna_header::{
    FormatId, HEADER_AREA, HEADER_LEN, HeaderBackup, MISSING_AFTER_GROWTH, NewHeader, NewHeaderSpec, open,
    read_public, repair, update_params,
};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sim::{Fault, FaultMedium, OpKind};
use std::sync::Arc;

#[test]
fn a_created_header_opens() {
    let medium = MemoryMedium::new(room());
    let made = make(&medium, &[&["zero"], &["one", "uno"], &["two"]], 1).unwrap();
    assert_eq!((made.level, made.master_keys.len(), made.header.generation), (2, 3, 1));
    for (passphrase, level) in [("zero", 0), ("one", 1), ("uno", 1), ("two", 2)] {
        let opened = open(&medium, &secrets(&[passphrase])).unwrap();
        assert_eq!(opened.level, level);
        assert_eq!(keys(&opened), keys(&made)[..=usize::from(level)]);
        assert_eq!(opened.header, made.header);
        assert!(opened.notes.is_empty(), "{:?}", opened.notes);
    }
    let (public, notes) = read_public(&medium).unwrap();
    assert_eq!(public, made.header);
    assert_eq!((public.format, &public.params[..]), (FormatId::DENIABLE, &b"some parameters"[..]));
    assert!(notes.is_empty());
}

#[test]
fn the_copies_are_alike_and_the_rest_of_their_places_is_zero() {
    let medium = MemoryMedium::from_bytes(vec![0xaa; room() as usize]);
    make(&medium, &[&["zero"]], 2).unwrap();
    let bytes = medium.snapshot();
    let [a, b, c] = copies().map(|at| at as usize);
    for copy in [b, c] {
        assert!(bytes[a..a + HEADER_LEN] == bytes[copy..copy + HEADER_LEN]);
    }
    assert!(bytes[a + HEADER_LEN..b].iter().all(|x| *x == 0));
    assert!(bytes[b + HEADER_LEN..HEADER_AREA as usize].iter().all(|x| *x == 0));
    assert!(bytes[HEADER_AREA as usize..c].iter().all(|x| *x == 0xaa));
    assert!(bytes[c + HEADER_LEN..].iter().all(|x| *x == 0));
}

#[test]
fn the_deepest_passphrase_decides_and_wrong_ones_are_refused() {
    let medium = disk(&[&["zero"], &["one"]], 3);
    assert_eq!(level_of(&medium, &["zero", "one"]), Ok(1));
    assert_eq!(level_of(&medium, &["one", "zero"]), Ok(1));
    assert_eq!(level_of(&medium, &["one", "one"]), Ok(1));
    assert_eq!(level_of(&medium, &[]), Err(Kind::Usage));
    for wrong in ["", "zer", "zero\n", "Zero", "three"] {
        let error = open(&medium, &secrets(&[wrong])).err().unwrap();
        assert_eq!((error.kind(), error.to_string().as_str()), (Kind::Passphrase, "wrong passphrase"));
    }
    let error = open(&medium, &secrets(&["zero", "typo"])).err().unwrap();
    assert_eq!(error.kind(), Kind::Passphrase);
    assert!(error.to_string().contains("of the 2 passphrases given, number 2 opens nothing"), "{error}");
}

#[test]
fn all_eight_slots_can_be_used_and_no_more() {
    let many = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let medium = disk(&[&many], 4);
    for passphrase in many {
        assert_eq!(level_of(&medium, &[passphrase]), Ok(0));
    }
    let levels: Vec<&[&str]> = many.iter().map(std::slice::from_ref).collect();
    let medium = disk(&levels, 5);
    for (level, passphrase) in many.iter().enumerate() {
        assert_eq!(level_of(&medium, &[passphrase]), Ok(level as u8));
    }
    let blank = MemoryMedium::new(room());
    for bad in [&[&many[..], &["i"]][..], &[], &[&[]], &[&["a"], &[]], &[&[], &["a"]], &[&["a"], &["b", "a"]]]
    {
        assert_eq!(make(&blank, bad, 6).err().unwrap().kind(), Kind::Usage);
    }
    assert!(blank.snapshot().iter().all(|b| *b == 0), "a refused creation writes nothing");
}

#[test]
fn creation_refuses_small_media_and_long_parameters() {
    let small = MemoryMedium::new(HEADER_AREA - 1);
    assert_eq!(make(&small, &[&["zero"]], 7).err().unwrap().kind(), Kind::Usage);
    let levels = [secrets(&["zero"])];
    let new = NewHeaderSpec {
        format: FormatId(7),
        params: vec![0; 1025],
        end: HEADER_AREA,
        cost: cost(),
        levels: &levels,
        uuid: None,
    };
    assert_eq!(NewHeader::build(new, &SeededRandom::new(8)).err().unwrap().kind(), Kind::Usage);
}

/// Every byte near the ends of the fields, and a sample of the rest.
fn sampled_bytes() -> impl Iterator<Item = usize> {
    (0..120).chain((120..HEADER_LEN - 64).step_by(89)).chain(HEADER_LEN - 64..HEADER_LEN)
}

#[test]
fn a_flip_in_one_copy_is_detected_and_the_other_is_used() {
    let good = disk(&[&["zero"], &["one"]], 9).snapshot();
    let [a, b, c] = copies();
    for (copy, used) in [(a, "copy B was used"), (b, "copy A was used"), (c, "copy A was used")] {
        for at in sampled_bytes() {
            let mut bytes = good.clone();
            copy_at(&mut bytes, copy)[at] ^= 1 << (at % 8);
            let medium = MemoryMedium::from_bytes(bytes.clone());
            let opened = open(&medium, &secrets(&["one"])).unwrap();
            assert_eq!(opened.level, 1);
            assert_eq!(opened.notes.len(), 1, "byte {at}");
            assert!(opened.notes[0].contains(used), "byte {at}: {}", opened.notes[0]);
            assert!(medium.snapshot() == bytes, "opening writes nothing");
            assert_eq!(level_of(&medium, &["wrong"]), Err(Kind::Passphrase));
        }
    }
    let mut bytes = good;
    copy_at(&mut bytes, b)[5000] ^= 1;
    let (_, notes) = read_public(&MemoryMedium::from_bytes(bytes)).unwrap();
    assert_eq!(notes, ["header copy B is damaged; copy A was used"]);
}

#[test]
fn a_flip_in_all_copies_is_an_error_of_the_right_kind() {
    let good = disk(&[&["zero"]], 10).snapshot();
    for at in sampled_bytes() {
        let mut bytes = good.clone();
        copies().into_iter().for_each(|copy| copy_at(&mut bytes, copy)[at] ^= 1);
        let expected = match at {
            0..=7 => Kind::NotFound,
            // Version 0 never existed and is damage; any other is unknown to this build.
            9..=11 => Kind::Other,
            _ => Kind::Corrupt,
        };
        assert_eq!(level_of(&MemoryMedium::from_bytes(bytes), &["zero"]), Err(expected), "byte {at}");
    }
}

#[test]
fn damage_and_absence_give_different_errors() {
    let good = disk(&[&["zero"]], 11).snapshot();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        open(&MemoryMedium::from_bytes(bytes), &secrets(&["zero"])).map(|u| u.notes)
    };
    let error = with(&|b| b.fill(0)).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().starts_with("not a lacuna disk"), "{error}");
    let error = with(&|b| {
        b[100] ^= 1;
        copies()[1..].iter().for_each(|copy| copy_at(b, *copy).fill(0));
    })
    .unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains("copy B: no header"), "{error}");
    let error = with(&|b| {
        copies().into_iter().for_each(|copy| copy_at(b, copy)[8] = 3);
    })
    .unwrap_err();
    assert!(error.to_string().contains("header version 3"), "{error}");
    let notes = with(&|b| b[8] = 3).unwrap();
    assert!(notes[0].starts_with("header copy A has the unknown version 3"), "{notes:?}");
    let notes = with(&|b| b[..HEADER_LEN].fill(0)).unwrap();
    assert!(notes[0].starts_with("header copy A is missing"), "{notes:?}");
}

#[test]
fn media_of_every_length_open_or_fail_cleanly() {
    let good = disk(&[&["zero"]], 12).snapshot();
    let [_, b, c] = copies().map(|at| at as usize);
    let end = good.len();
    let lengths =
        [0, 1, 7, 8, 12, 100, HEADER_LEN - 1, HEADER_LEN, b, b + HEADER_LEN, c, c + HEADER_LEN, end - 1, end];
    for len in lengths {
        let found = open(&MemoryMedium::from_bytes(good[..len].to_vec()), &secrets(&["zero"]));
        match found {
            Ok(opened) => {
                assert!(len >= HEADER_LEN);
                let missing = usize::from(len < b + HEADER_LEN) + usize::from(len < end);
                assert_eq!(opened.notes.len(), missing, "length {len}: {:?}", opened.notes);
            }
            Err(error) if len < 8 => assert_eq!(error.kind(), Kind::NotFound),
            Err(error) => assert_eq!((error.kind(), len < HEADER_LEN), (Kind::Corrupt, true), "length {len}"),
        }
    }
}

#[test]
fn one_whole_copy_is_enough() {
    let good = disk(&[&["zero"], &["one"]], 19).snapshot();
    let all = copies();
    for gone in [vec![0], vec![1], vec![2], vec![0, 1], vec![0, 2], vec![1, 2]] {
        for with in [0, 0xa5] {
            let mut bytes = good.clone();
            gone.iter().for_each(|copy| copy_at(&mut bytes, all[*copy]).fill(with));
            let medium = MemoryMedium::from_bytes(bytes);
            let mut opened = open(&medium, &secrets(&["one"])).unwrap();
            assert_eq!((opened.level, opened.notes.len()), (1, gone.len()));
            repair(&medium, &mut opened).unwrap();
            assert!(opened.notes.is_empty() && medium.snapshot() == good, "{gone:?}");
        }
    }
}

#[test]
fn a_backup_restores_a_header_without_copies() {
    let medium = disk(&[&["zero"], &["one"]], 20);
    let good = medium.snapshot();
    let (backup, notes) = HeaderBackup::take(medium.len(), &|at, buf| medium.read_at(at, buf)).unwrap();
    assert!(notes.is_empty() && backup.bytes()[..] == good[..HEADER_LEN]);
    let backup = HeaderBackup::parse(backup.bytes()).unwrap();
    assert_eq!(backup.open(&secrets(&["one"])).unwrap().level, 1);
    assert_eq!(backup.open(&secrets(&["two"])).err().unwrap().kind(), Kind::Passphrase);
    let mut ruined = good.clone();
    copies().into_iter().for_each(|copy| copy_at(&mut ruined, copy).fill(0xff));
    let medium = MemoryMedium::from_bytes(ruined);
    assert_eq!(level_of(&medium, &["zero"]), Err(Kind::NotFound));
    backup.restore(&medium).unwrap();
    assert!(medium.snapshot() == good);
    for bad in [&good[..HEADER_LEN - 1], &good[..=HEADER_LEN], &good[HEADER_LEN..2 * HEADER_LEN], b""] {
        assert!(matches!(HeaderBackup::parse(bad).err().unwrap().kind(), Kind::NotFound | Kind::Corrupt));
    }
}

#[test]
fn alterations_under_a_right_digest_are_corruption_not_a_wrong_passphrase() {
    let good = disk(&[&["zero"]], 13).snapshot();
    // The parameters, the generation and the format: public fields that no slot key depends on.
    for at in [field("parameters").offset, field("generation").offset, field("format").offset] {
        let mut bytes = good.clone();
        let alter = |bytes: &mut Vec<u8>, copy| {
            copy_at(bytes, copy)[at] ^= 4;
            redigest(copy_at(bytes, copy));
        };
        let [a, b, c] = copies();
        alter(&mut bytes, a);
        let opened = open(&MemoryMedium::from_bytes(bytes.clone()), &secrets(&["zero"])).unwrap();
        assert!(opened.notes[0].contains("copy B was used"), "{:?}", opened.notes);
        alter(&mut bytes, b);
        let opened = open(&MemoryMedium::from_bytes(bytes.clone()), &secrets(&["zero"])).unwrap();
        assert!(opened.notes[1].contains("copy C was used"), "{:?}", opened.notes);
        assert_eq!((opened.header.generation, opened.notes.len()), (1, 2));
        alter(&mut bytes, c);
        let error = open(&MemoryMedium::from_bytes(bytes), &secrets(&["zero"])).err().unwrap();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.to_string().contains("MAC"), "{error}");
    }
    // A slot or the salt is altered in the preferred copy alone: the other copies still open.
    for at in [field("salt").offset, field("key slots").offset] {
        let mut bytes = good.clone();
        for slot in 0..8 {
            bytes[at + if at == 2048 { slot * 1024 } else { 0 }] ^= 1;
        }
        bytes[at] ^= 2;
        redigest(&mut bytes[..HEADER_LEN]);
        let opened = open(&MemoryMedium::from_bytes(bytes), &secrets(&["zero"])).unwrap();
        assert_eq!(opened.notes, ["header copy A was altered; copy B was used"]);
    }
}

#[test]
fn an_absurd_cost_is_refused_before_the_derivation() {
    let mut bytes = disk(&[&["zero"]], 14).snapshot();
    for copy in copies() {
        copy_at(&mut bytes, copy)[field("argon2 memory").range()].fill(0xff);
        redigest(copy_at(&mut bytes, copy));
    }
    assert_eq!(level_of(&MemoryMedium::from_bytes(bytes), &["zero"]), Err(Kind::Corrupt));
}

#[test]
fn parameters_change_without_a_passphrase_and_the_newer_copy_wins() {
    let medium = disk(&[&["zero"], &["one"]], 15);
    let before = medium.snapshot();
    let mut opened = open(&medium, &secrets(&["zero"])).unwrap();
    update_params(&mut opened, &medium, b"new".to_vec(), HEADER_AREA + 4096).unwrap();
    update_params(&mut opened, &medium, b"newer".to_vec(), HEADER_AREA + 4096).unwrap();
    let after = medium.snapshot();
    let slots = field("key slots").range();
    assert!(before[slots.clone()] == after[slots]);
    let reopened = open(&medium, &secrets(&["one"])).unwrap();
    assert_eq!((reopened.level, reopened.header.generation), (1, 3));
    assert_eq!(reopened.header.params, b"newer");
    assert!(reopened.notes.is_empty());
    assert_eq!(
        update_params(&mut opened, &medium, vec![0; 1025], HEADER_AREA + 4096).unwrap_err().kind(),
        Kind::Usage
    );
    assert_eq!(open(&medium, &secrets(&["zero"])).unwrap().header.params, b"newer");

    for (old, letter) in copies().into_iter().zip(["A", "B", "C"]) {
        let bad = format!("header copy {letter} is older");
        let mut mixed = after.clone();
        copy_at(&mut mixed, old).copy_from_slice(&before[old as usize..][..HEADER_LEN]);
        let medium = MemoryMedium::from_bytes(mixed);
        let mut opened = open(&medium, &secrets(&["zero"])).unwrap();
        assert_eq!(opened.header.params, b"newer");
        assert!(opened.notes[0].starts_with(&bad), "{:?}", opened.notes);
        update_params(&mut opened, &medium, b"healed".to_vec(), HEADER_AREA + 4096).unwrap();
        assert!(opened.notes.is_empty());
        assert!(open(&medium, &secrets(&["zero"])).unwrap().notes.is_empty());
    }
}

#[test]
fn the_public_header_serializes_to_plain_json() {
    let medium = disk(&[&["zero"]], 16);
    let (public, _) = read_public(&medium).unwrap();
    assert_eq!(
        serde_json::to_value(&public).unwrap(),
        serde_json::json!({
            "version": 1,
            "uuid": "01234567-89ab-cdef-0123-456789abcdef",
            "format": "deniable",
            "generation": 1,
            "kdf": { "algorithm": "argon2id", "memory_kib": 8, "passes": 1, "lanes": 1 },
        })
    );
    assert_eq!(FormatId(9).to_string(), "unknown-9");
}

#[test]
fn one_unreadable_copy_does_not_stop_the_other() {
    let medium = FaultMedium::new(Arc::new(disk(&[&["zero"]], 17)));
    let bad_sectors = |range| Fault::FailRange { op: OpKind::Read, range, error: Kind::Io };
    medium.add(bad_sectors(0..512));
    let opened = open(&medium, &secrets(&["zero"])).unwrap();
    assert!(opened.notes[0].contains("copy A cannot be read (the medium failed"), "{:?}", opened.notes);
    medium.add(bad_sectors(0..room()));
    assert_eq!(level_of(&medium, &["zero"]), Err(Kind::Io));
}

#[test]
fn copy_c_is_never_written_into_the_disk() {
    let mut medium = disk(&[&["zero"]], 21).snapshot();
    // Cut short, so that the place of copy C lies before the end of the data, and then inside the
    // data.
    medium.truncate((HEADER_AREA + 70_000) as usize);
    let medium = MemoryMedium::from_bytes(medium);
    let before = medium.snapshot();
    let mut opened = open(&medium, &secrets(&["zero"])).unwrap();
    assert!(opened.notes[0].starts_with("header copy C is missing"), "{:?}", opened.notes);
    update_params(&mut opened, &medium, b"new".to_vec(), HEADER_AREA + 4096).unwrap();
    repair(&medium, &mut opened).unwrap();
    assert!(medium.snapshot()[HEADER_AREA as usize..] == before[HEADER_AREA as usize..]);
    assert_eq!(open(&medium, &secrets(&["zero"])).unwrap().header.params, b"new");
    let short = MemoryMedium::new(HEADER_AREA + 70_000);
    assert_eq!(make(&short, &[&["zero"]], 22).err().unwrap().kind(), Kind::Usage);
}

#[test]
fn a_note_tells_a_medium_that_grew_from_one_that_was_cut_short() {
    let good = disk(&[&["zero"]], 25).snapshot();
    let note = |bytes: Vec<u8>| {
        let medium = MemoryMedium::from_bytes(bytes);
        let mut notes = open(&medium, &secrets(&["zero"])).unwrap().notes;
        assert_eq!((notes.len(), read_public(&medium).unwrap().1), (1, notes.clone()));
        notes.remove(0)
    };
    let missing =
        |rest: &str| format!("header copy C is missing at the end of the medium{rest}; copy A was used");
    assert_eq!(note(good[..good.len() - 1].to_vec()), missing(", which was cut short"));
    let mut destroyed = good.clone();
    copy_at(&mut destroyed, copies()[2]).fill(0);
    assert_eq!(note(destroyed), missing(""));
    for more in [65_536, 1 << 20] {
        let longer = note([&good[..], &vec![0; more]].concat());
        assert_eq!(longer, missing(", which is longer than the disk"));
        assert!(longer.contains(MISSING_AFTER_GROWTH));
    }
    // The place of the copy stays the same.
    let medium = MemoryMedium::from_bytes([&good[..], &[0; 4096]].concat());
    assert!(open(&medium, &secrets(&["zero"])).unwrap().notes.is_empty());
}

#[test]
fn an_end_beyond_all_media_is_a_medium_cut_short() {
    let mut bytes = disk(&[&["zero"]], 26).snapshot();
    for copy in copies() {
        copy_at(&mut bytes, copy)[field("end of data").range()].fill(0xff);
        redigest(copy_at(&mut bytes, copy));
    }
    let (_, notes) = read_public(&MemoryMedium::from_bytes(bytes)).unwrap();
    assert!(notes[0].contains("which was cut short"), "{notes:?}");
}

#[test]
fn the_last_copy_of_another_disk_is_ignored() {
    let former = disk(&[&["former"]], 23);
    let mut opened = open(&former, &secrets(&["former"])).unwrap();
    for _ in 0..3 {
        update_params(&mut opened, &former, b"former".to_vec(), HEADER_AREA + 4096).unwrap();
    }
    let last = former.snapshot()[copies()[2] as usize..][..HEADER_LEN].to_vec();
    let medium = MemoryMedium::new(room());
    let levels = [secrets(&["present"])];
    let new = NewHeaderSpec {
        format: FormatId::DENIABLE,
        params: vec![],
        cost: cost(),
        levels: &levels,
        end: HEADER_AREA,
        uuid: None,
    };
    NewHeader::build(new, &SeededRandom::new(24)).unwrap().write(&medium, |_| Ok(())).unwrap();
    medium.write_at(copies()[2], &last).unwrap();
    let mut opened = open(&medium, &secrets(&["present"])).unwrap();
    assert!(opened.notes[0].starts_with("header copy C is missing"), "{:?}", opened.notes);
    assert_eq!(read_public(&medium).unwrap().0.uuid, opened.header.uuid);
    repair(&medium, &mut opened).unwrap();
    assert!(open(&medium, &secrets(&["present"])).unwrap().notes.is_empty());
}
