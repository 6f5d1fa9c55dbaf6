//! Reads the parameters of a disk as `docs/format/flash.md` describes them, and computes its areas.

use lacuna_testkit::format_page::FormatPage;

/// First LEB and number of LEBs of each area, and lengths that follow from them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ParsedAreas {
    pub(crate) keys: (u32, u32),
    pub(crate) checkpoints: (u32, u32),
    pub(crate) log: (u32, u32),
    pub(crate) page_keys: u64,
    pub(crate) leb_keys: u64,
    pub(crate) index_pages: u64,
}

/// The fields of the parameters.
pub(crate) struct ParsedParams {
    pub(crate) key_len: u64,
    pub(crate) blocks: u64,
    pub(crate) most_blocks: u64,
    pub(crate) page: u64,
    pub(crate) leb_len: u64,
    pub(crate) lebs: u64,
}

impl ParsedParams {
    pub(crate) fn read(bytes: &[u8]) -> ParsedParams {
        let fields = FormatPage::read("flash").fields("Parameters").assert_len(bytes.len());
        fields.assert_zeros(bytes);
        assert_eq!(fields.number(bytes, "version"), 1);
        let value = |name: &str| fields.number(bytes, name);
        ParsedParams {
            key_len: value("key length"),
            blocks: value("blocks"),
            most_blocks: value("most blocks"),
            page: value("page"),
            leb_len: value("leb length"),
            lebs: value("lebs"),
        }
    }

    /// The areas, computed as in the section of that name.
    pub(crate) fn areas(&self) -> ParsedAreas {
        let doc = FormatPage::read("flash");
        let leb = self.leb_len / self.page * self.page;
        let header = doc.constant("copies of the header") * doc.constant("header bytes").div_ceil(leb);
        let page_keys = (self.page - 16) / self.key_len;
        let leb_keys = leb / self.page * page_keys;
        let index_pages = self.most_blocks.div_ceil(doc.constant("fanout"));
        let m = (self.most_blocks / 64).max(128);
        let n = (self.most_blocks / 8).max(m);
        let lebs_for = |more: u64| (self.most_blocks + more).div_ceil(leb_keys);
        let keys = (self.lebs * self.key_len / 4000).max(lebs_for(m)).min(lebs_for(n)).max(2);
        let left = self.lebs - header - keys;
        let checkpoint =
            self.page + 64 + 8 * keys + 8 * index_pages + 12 * left + keys * 2 * (1 + leb_keys.div_ceil(8));
        let checkpoint = checkpoint.div_ceil(leb);
        let log = header + keys + 2 * checkpoint;
        let pair = |a: u64, b: u64| (a as u32, b as u32);
        ParsedAreas {
            keys: pair(header, keys),
            checkpoints: pair(header + keys, checkpoint),
            log: pair(log, self.lebs - log),
            page_keys,
            leb_keys,
            index_pages,
        }
    }
}
