//! Header version 1 as it is for ever: a golden header that must open, bytes that must come out of a seed, a page
//! that must tell the truth, and a second reader that knows only the page.

mod fixture;

use fixture::*;
use lacuna_crypto::SeededRandom;
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_volume::layout::{Field, HEADER_FIELDS, SLOT_FIELDS};
use lacuna_volume::{
    COPY_A, COPY_B, CreateHeader, FormatId, HEADER_AREA, HEADER_LEN, NewHeader, Unlocked, Uuid, open,
};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// SHA-256 of the header that [`build`] makes, which is the golden header.
const HEADER_SHA256: &str = "0b396c77be8b5a94b3e96b38d43fb798dc3f2bec502986a116c48bc2712fe5e0";
/// SHA-256 of its three master keys, one after the other.
const KEYS_SHA256: &str = "f225f6bf785e276628c4ee34b377b4857cac2e7770518d547fc6b653378e300b";

const PASSPHRASES: [(&str, u8); 4] =
    [("level zero", 0), ("level zero again", 0), ("level one", 1), ("level two", 2)];

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn build(medium: &MemoryMedium) -> Unlocked {
    let levels =
        [secrets(&["level zero", "level zero again"]), secrets(&["level one"]), secrets(&["level two"])];
    let new = CreateHeader {
        format: FormatId::SEALED,
        params: b"golden parameters".to_vec(),
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
    let medium = MemoryMedium::new(HEADER_AREA);
    let made = build(&medium);
    let bytes = medium.snapshot();
    assert_eq!(hex(&Sha256::digest(&bytes[..HEADER_LEN])), HEADER_SHA256);
    assert_eq!(keys_digest(&made), KEYS_SHA256);
}

#[test]
fn the_golden_header_opens() {
    let golden = std::fs::read(directory().join("header-v1.bin")).unwrap();
    assert_eq!(golden.len(), HEADER_LEN);
    let medium = MemoryMedium::new(HEADER_AREA);
    medium.write_at(COPY_A, &golden).unwrap();
    medium.write_at(COPY_B, &golden).unwrap();
    for (passphrase, level) in PASSPHRASES {
        let opened = open(&medium, &secrets(&[passphrase])).unwrap();
        assert_eq!(opened.level, level);
        assert!(opened.notes.is_empty());
        assert_eq!(opened.header.params, b"golden parameters");
        assert_eq!(opened.header.uuid.to_string(), "00010203-0405-0607-0809-0a0b0c0d0e0f");
        if level == 2 {
            assert_eq!(keys_digest(&opened), KEYS_SHA256);
        }
    }
}

/// Makes the golden file of a new header version. Refuses to touch one that exists.
#[test]
#[ignore = "writes a golden file; only for a new header version"]
fn write_the_golden_header() {
    use std::io::Write;
    let medium = MemoryMedium::new(HEADER_AREA);
    build(&medium);
    let path = directory().join("header-v1.bin");
    let mut file = std::fs::File::create_new(path).unwrap();
    file.write_all(&medium.snapshot()[..HEADER_LEN]).unwrap();
}

/// The rows `| offset | length | name | ...` of the table under a heading.
fn table(page: &str, heading: &str) -> Vec<(usize, usize, String)> {
    let section = page.split("\n## ").find(|s| s.starts_with(heading)).unwrap();
    let rows = section.lines().filter_map(|line| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        Some((cells.next()?.parse().ok()?, cells.next()?.parse().ok()?, cells.next()?.to_string()))
    });
    rows.collect()
}

#[test]
fn the_page_and_the_code_agree() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/format/header.md");
    let page = std::fs::read_to_string(path).unwrap();
    let code = |fields: &[Field]| -> Vec<(usize, usize, String)> {
        fields.iter().map(|f| (f.offset, f.len, f.name.to_string())).collect()
    };
    assert_eq!(table(&page, "Header"), code(&HEADER_FIELDS));
    assert_eq!(table(&page, "Key slot"), code(&SLOT_FIELDS));
    for number in [HEADER_LEN as u64, COPY_B, HEADER_AREA] {
        assert!(page.contains(&number.to_string()), "{number}");
    }
    use lacuna_crypto::Argon2Cost as Cost;
    for number in [u64::from(Cost::MAX_MEMORY_KIB), Cost::MAX_WORK_KIB] {
        assert!(page.contains(&number.to_string()), "{number}");
    }
    assert!(page.contains(&format!("1 to {};", Cost::MAX_PASSES)));
    assert!(page.contains(&format!("1 to {} |", Cost::MAX_LANES)));
}

#[test]
fn a_reader_written_from_the_page_alone_agrees() {
    for (passphrase, level) in PASSPHRASES {
        let args = [directory().join("header-v1.bin").into(), passphrase.into()];
        let Some(text) = lacuna_sim::python_reader(&directory().join("read_header.py"), &args) else {
            return;
        };
        assert!(text.starts_with(&format!("level {level}\n")), "{text}");
        if level == 2 {
            assert!(text.contains(KEYS_SHA256), "{text}");
        }
    }
}
