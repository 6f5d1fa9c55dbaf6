//! The format of the header is fixed: a golden header opens, a seed produces the same bytes,
//! `header.md` agrees with the code, and a Python program written from that page alone reads the
//! golden header.

mod fixture;

use fixture::*;
use lacuna_crypto::{Argon2Cost as Cost, SeededRandom};
use lacuna_header::layout::{Field, HEADER_FIELDS, SLOT_FIELDS};
use lacuna_header::{
    COPY_B, FormatId, HEADER_AREA, HEADER_LEN, NewHeader, NewHeaderSpec, OpenHeader, TAIL_AREA, Uuid, open,
};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_testkit::format_page::FormatPage;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// The golden header.
const GOLDEN: &str = "header-v1.bin";
/// SHA-256 of the header that [`build`] makes, which is the golden header.
const HEADER_SHA256: &str = "c60998b4db2914bcc4fc96130cb3a95a34d71180eb42fbc3a5d5fcb7bec44614";
/// SHA-256 of its three master keys, one after the other.
const KEYS_SHA256: &str = "f225f6bf785e276628c4ee34b377b4857cac2e7770518d547fc6b653378e300b";
/// The ID of its disk, whichever level is opened.
const ID: &str = "b28dc16da7b557b74ebcea23ff33bb38";

const PASSPHRASES: [(&str, u8); 4] =
    [("level zero", 0), ("level zero again", 0), ("level one", 1), ("level two", 2)];

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, b| text + &format!("{b:02x}"))
}

fn build(medium: &MemoryMedium) -> OpenHeader {
    let levels =
        [secrets(&["level zero", "level zero again"]), secrets(&["level one"]), secrets(&["level two"])];
    let new = NewHeaderSpec {
        format: FormatId::SEALED,
        params: b"golden parameters".to_vec(),
        end: HEADER_AREA,
        cost: cost(),
        levels: &levels,
        uuid: Some(Uuid(std::array::from_fn(|i| i as u8))),
    };
    NewHeader::build(new, &SeededRandom::new(1)).unwrap().write(medium, |_| Ok(())).unwrap()
}

fn keys_digest(unlocked: &OpenHeader) -> String {
    hex(&Sha256::digest(keys(unlocked).concat()))
}

#[test]
fn a_seed_gives_the_same_header_for_ever() {
    let medium = MemoryMedium::new(room());
    let made = build(&medium);
    let bytes = medium.snapshot();
    assert_eq!(hex(&Sha256::digest(&bytes[..HEADER_LEN])), HEADER_SHA256);
    assert!(bytes[..HEADER_LEN] == std::fs::read(directory().join(GOLDEN)).unwrap()[..]);
    assert_eq!(keys_digest(&made), KEYS_SHA256);
}

#[test]
fn the_golden_header_opens() {
    let golden = std::fs::read(directory().join(GOLDEN)).unwrap();
    assert_eq!(golden.len(), HEADER_LEN);
    let medium = MemoryMedium::new(room());
    copies().into_iter().for_each(|copy| medium.write_at(copy, &golden).unwrap());
    for (passphrase, level) in PASSPHRASES {
        let opened = open(&medium, &secrets(&[passphrase])).unwrap();
        assert_eq!(opened.level, level);
        assert!(opened.notes.is_empty(), "{:?}", opened.notes);
        assert_eq!(opened.header.params, b"golden parameters");
        assert_eq!(opened.id().to_string(), ID);
        assert_eq!(opened.header.uuid.to_string(), "00010203-0405-0607-0809-0a0b0c0d0e0f");
        if level == 2 {
            assert_eq!(keys_digest(&opened), KEYS_SHA256);
        }
    }
}

/// Makes the golden file of a new header version. Refuses to overwrite an existing one.
#[test]
#[ignore = "writes a golden file; only for a new header version"]
fn write_the_golden_header() {
    use std::io::Write;
    let medium = MemoryMedium::new(room());
    build(&medium);
    let mut file = std::fs::File::create_new(directory().join(GOLDEN)).unwrap();
    file.write_all(&medium.snapshot()[..HEADER_LEN]).unwrap();
}

/// Offset, length and name of the fields in the table under a heading.
fn table(page: &FormatPage, heading: &str) -> Vec<(usize, usize, String)> {
    let number = |cell: &str| cell.parse().unwrap();
    let rows = page.rows(heading);
    rows.iter().map(|row| (number(&row[0]), number(&row[1]), row[2].clone())).collect()
}

#[test]
fn the_page_and_the_code_agree() {
    let code = |fields: &[Field]| -> Vec<(usize, usize, String)> {
        fields.iter().map(|f| (f.offset, f.len, f.name.to_string())).collect()
    };
    let page = FormatPage::read("header");
    assert_eq!(table(&page, "Header"), code(&HEADER_FIELDS));
    assert_eq!(table(&page, "Key slot"), code(&SLOT_FIELDS));
    for number in [HEADER_LEN as u64, COPY_B, HEADER_AREA, TAIL_AREA] {
        assert!(page.contains(&number.to_string()), "{number}");
    }
    for number in [u64::from(Cost::MAX_MEMORY_KIB), Cost::MAX_WORK_KIB] {
        assert!(page.contains(&number.to_string()), "{number}");
    }
    assert!(page.contains(&format!("1 to {};", Cost::MAX_PASSES)));
    assert!(page.contains(&format!("1 to {} |", Cost::MAX_LANES)));
}

#[test]
fn a_reader_written_from_the_page_alone_agrees() {
    for (passphrase, level) in PASSPHRASES {
        let args = [directory().join(GOLDEN).into(), passphrase.into()];
        let Some(text) = lacuna_testkit::python_reader(&directory().join("read_header.py"), &args) else {
            return;
        };
        assert!(text.starts_with(&format!("level {level}\n")), "{text}");
        assert!(text.contains(&format!("\nid {ID}\n")), "{text}");
        if level == 2 {
            assert!(text.contains(KEYS_SHA256), "{text}");
        }
    }
}
