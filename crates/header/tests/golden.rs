//! Header versions as they are for ever: golden headers that must open, bytes that must come out of a seed, pages that
//! must tell the truth, and second readers that know only the pages.

mod fixture;

use fixture::*;
use lacuna_crypto::{Argon2Cost as Cost, SeededRandom};
use lacuna_header::layout::{Field, HEADER_FIELDS, HEADER_FIELDS_V1, SLOT_FIELDS};
use lacuna_header::{
    COPY_A, COPY_B, CreateHeader, FormatId, HEADER_AREA, HEADER_LEN, Keyring, NewHeader, TAIL_AREA, Unlocked,
    Uuid, change_keys, open, update_params,
};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sim::format_page::FormatPage;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// The golden headers, oldest first.
const GOLDEN: [&str; 2] = ["header-v1.bin", "header-v2.bin"];
/// SHA-256 of the header that [`build`] makes, which is the newest golden header.
const HEADER_SHA256: &str = "4ec266d40dd68b5313cda484fa99ffa3d7f00700376baf13eb3444217ea90c8f";
/// SHA-256 of their three master keys, one after the other.
const KEYS_SHA256: &str = "f225f6bf785e276628c4ee34b377b4857cac2e7770518d547fc6b653378e300b";
/// The ID of their disk, whichever level is opened.
const ID: &str = "b28dc16da7b557b74ebcea23ff33bb38";

const PASSPHRASES: [(&str, u8); 4] =
    [("level zero", 0), ("level zero again", 0), ("level one", 1), ("level two", 2)];

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, b| text + &format!("{b:02x}"))
}

fn build(medium: &MemoryMedium) -> Unlocked {
    let levels =
        [secrets(&["level zero", "level zero again"]), secrets(&["level one"]), secrets(&["level two"])];
    let new = CreateHeader {
        format: FormatId::SEALED,
        params: b"golden parameters".to_vec(),
        end: HEADER_AREA,
        cost: cost(),
        levels: &levels,
        uuid: Some(Uuid(std::array::from_fn(|i| i as u8))),
    };
    NewHeader::build(new, &SeededRandom::new(1)).unwrap().write(medium, |_| Ok(())).unwrap()
}

fn keys_digest(unlocked: &Unlocked) -> String {
    hex(&Sha256::digest(keys(unlocked).concat()))
}

#[test]
fn a_seed_gives_the_same_header_for_ever() {
    let medium = MemoryMedium::new(room());
    let made = build(&medium);
    let bytes = medium.snapshot();
    assert_eq!(hex(&Sha256::digest(&bytes[..HEADER_LEN])), HEADER_SHA256);
    assert_eq!(keys_digest(&made), KEYS_SHA256);
}

/// A medium that holds a golden header in the places of its version.
fn golden(name: &str) -> MemoryMedium {
    let golden = std::fs::read(directory().join(name)).unwrap();
    assert_eq!(golden.len(), HEADER_LEN);
    let medium = MemoryMedium::new(room());
    let places = if golden[8] == 1 { vec![COPY_A, COPY_B] } else { copies().to_vec() };
    places.into_iter().for_each(|copy| medium.write_at(copy, &golden).unwrap());
    medium
}

#[test]
fn golden_headers_open() {
    for name in GOLDEN {
        let medium = golden(name);
        for (passphrase, level) in PASSPHRASES {
            let opened = open(&medium, &secrets(&[passphrase])).unwrap();
            assert_eq!(opened.level, level);
            assert!(opened.notes.is_empty(), "{name}: {:?}", opened.notes);
            assert_eq!(opened.header.params, b"golden parameters");
            assert_eq!(opened.id().to_string(), ID);
            assert_eq!(opened.header.uuid.to_string(), "00010203-0405-0607-0809-0a0b0c0d0e0f");
            if level == 2 {
                assert_eq!(keys_digest(&opened), KEYS_SHA256);
            }
        }
    }
}

#[test]
fn a_header_of_version_1_stays_one() {
    let medium = golden(GOLDEN[0]);
    let before = medium.snapshot();
    let mut opened = open(&medium, &secrets(&["level two"])).unwrap();
    assert!(!opened.header.keeps_others());
    update_params(&mut opened, &medium, b"other parameters".to_vec(), HEADER_AREA).unwrap();
    let ring = Keyring::from_opened(&opened, secrets(&["level two"])).unwrap();
    change_keys(&medium, &mut opened, &ring, cost(), &SeededRandom::new(3)).unwrap();
    let after = medium.snapshot();
    // Where copy C would be lies what belongs to the disk.
    assert!(before[HEADER_AREA as usize..] == after[HEADER_AREA as usize..]);
    let opened = open(&medium, &secrets(&["level two"])).unwrap();
    assert_eq!((opened.header.version, opened.header.generation), (1, 3));
    assert!(opened.notes.is_empty() && opened.header.params == b"other parameters");
}

/// Makes the golden file of a new header version. Refuses to touch one that exists.
#[test]
#[ignore = "writes a golden file; only for a new header version"]
fn write_the_golden_header() {
    use std::io::Write;
    let medium = MemoryMedium::new(room());
    build(&medium);
    let path = directory().join(GOLDEN[GOLDEN.len() - 1]);
    let mut file = std::fs::File::create_new(path).unwrap();
    file.write_all(&medium.snapshot()[..HEADER_LEN]).unwrap();
}

/// Offset, length and name of the fields in the table under a heading.
fn table(page: &FormatPage, heading: &str) -> Vec<(usize, usize, String)> {
    let number = |cell: &str| cell.parse().unwrap();
    let rows = page.rows(heading);
    rows.iter().map(|row| (number(&row[0]), number(&row[1]), row[2].clone())).collect()
}

#[test]
fn the_pages_and_the_code_agree() {
    let code = |fields: &[Field]| -> Vec<(usize, usize, String)> {
        fields.iter().map(|f| (f.offset, f.len, f.name.to_string())).collect()
    };
    for (name, fields) in [("header-v1", &HEADER_FIELDS_V1[..]), ("header", &HEADER_FIELDS[..])] {
        let page = FormatPage::read(name);
        assert_eq!(table(&page, "Header"), code(fields), "{name}");
        assert_eq!(table(&page, "Key slot"), code(&SLOT_FIELDS), "{name}");
        for number in [HEADER_LEN as u64, COPY_B, HEADER_AREA] {
            assert!(page.says(&number.to_string()), "{name}: {number}");
        }
        for number in [u64::from(Cost::MAX_MEMORY_KIB), Cost::MAX_WORK_KIB] {
            assert!(page.says(&number.to_string()), "{name}: {number}");
        }
        assert!(page.says(&format!("1 to {};", Cost::MAX_PASSES)));
        assert!(page.says(&format!("1 to {} |", Cost::MAX_LANES)));
        assert!(name == "header-v1" || page.says(&TAIL_AREA.to_string()));
    }
}

#[test]
fn readers_written_from_the_pages_alone_agree() {
    for (golden, reader) in GOLDEN.into_iter().zip(["read_header_v1.py", "read_header.py"]) {
        for (passphrase, level) in PASSPHRASES {
            let args = [directory().join(golden).into(), passphrase.into()];
            let Some(text) = lacuna_sim::python_reader(&directory().join(reader), &args) else {
                return;
            };
            assert!(text.starts_with(&format!("level {level}\n")), "{text}");
            assert!(text.contains(&format!("\nid {ID}\n")), "{text}");
            if level == 2 {
                assert!(text.contains(KEYS_SHA256), "{text}");
            }
        }
    }
}
