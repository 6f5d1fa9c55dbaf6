//! An independent reader of the file of a chip. It finds the content of each logical erase block
//! from `docs/format/nand.md` alone.

use lacuna_testkit::format_page::{FormatPage, number};
use std::collections::BTreeMap;

/// The logical erase blocks of a chip.
pub(crate) struct Lebs {
    /// Bytes of a page.
    pub(crate) page: usize,
    /// Bytes of a logical erase block.
    pub(crate) leb_len: usize,
    /// Number of logical erase blocks.
    pub(crate) count: u32,
    /// The mapped ones: physical erase block and content.
    pub(crate) mapped: BTreeMap<u32, (u32, Vec<u8>)>,
    /// Erasures of each physical erase block, from its state and from its header.
    pub(crate) erasures: Vec<(u64, Option<u64>)>,
}

impl Lebs {
    /// Reads the file of a chip.
    pub(crate) fn read(file: &[u8]) -> Lebs {
        let doc = FormatPage::read("nand");
        let head = doc.fields("Head").assert_len(4096);
        assert_eq!(head.get(file, "magic"), b"lacnand\0");
        assert_eq!(head.number(file, "version"), 1);
        head.assert_zeros(file);
        let [page, pages, blocks] = ["page", "pages", "blocks"].map(|name| head.number(file, name) as usize);
        let state = doc.fields("State of a PEB").assert_len(16);
        let content = (head.byte_len() + blocks * state.byte_len()).next_multiple_of(4096);
        assert_eq!(file.len(), content + blocks * pages * page);
        assert!(file[head.byte_len() + blocks * state.byte_len()..content].iter().all(|byte| *byte == 0));
        let mut lebs =
            Lebs { page, leb_len: (pages - 2) * page, count: 0, mapped: BTreeMap::new(), erasures: vec![] };
        let mut newest: BTreeMap<u32, u64> = BTreeMap::new();
        for peb in 0..blocks {
            let state_at = &file[head.byte_len() + peb * state.byte_len()..][..state.byte_len()];
            let bytes: Vec<u8> =
                file[content + peb * pages * page..][..pages * page].iter().map(|b| !b).collect();
            let erase = header(&doc, "Erase header", b"LEC1", &bytes[..page]);
            let said = erase.as_ref().map(|header| header["erasures"]);
            lebs.erasures.push((state.number(state_at, "erasures"), said));
            if state.number(state_at, "flags") == 1 {
                continue;
            }
            let Some(erase) = erase else { continue };
            lebs.count = erase["lebs"] as u32;
            let Some(volume) = header(&doc, "Volume header", b"LVI1", &bytes[page..2 * page]) else {
                continue;
            };
            let held = &bytes[2 * page..];
            let copied = volume["copied"] as usize;
            let complete = volume["replaces"] == 0
                || u64::from(crc32fast::hash(&held[..copied])) == volume["copied checksum"];
            let leb = volume["leb"] as u32;
            if complete && newest.get(&leb).is_none_or(|sequence| *sequence < volume["sequence"]) {
                newest.insert(leb, volume["sequence"]);
                lebs.mapped.insert(leb, (peb as u32, held.to_vec()));
            }
        }
        lebs
    }

    /// The content of a logical erase block.
    pub(crate) fn content(&self, leb: u32) -> Vec<u8> {
        assert!(leb < self.count);
        self.mapped.get(&leb).map_or_else(|| vec![0xff; self.leb_len], |(_, content)| content.clone())
    }
}

/// The fields of a header, if the page has one.
fn header(
    doc: &FormatPage,
    heading: &str,
    magic: &[u8; 4],
    page: &[u8],
) -> Option<BTreeMap<&'static str, u64>> {
    const NAMES: [&str; 9] =
        ["lebs", "erasures", "image", "leb", "sequence", "replaces", "copied", "copied checksum", "checksum"];
    let fields = doc.fields(heading);
    let sum = fields["checksum"].clone();
    if fields.get(page, "magic") != magic
        || number(&page[sum.clone()]) != u64::from(crc32fast::hash(&page[..sum.start]))
    {
        return None;
    }
    fields.assert_zeros(page);
    assert!(page[fields.byte_len()..].iter().all(|byte| *byte == 0xff));
    let named: Vec<String> = doc.tables(heading).pop()?.into_iter().map(|row| row[2].clone()).collect();
    let known = NAMES.into_iter().filter(|name| named.iter().any(|field| field == name));
    Some(known.map(|name| (name, fields.number(page, name))).collect())
}
