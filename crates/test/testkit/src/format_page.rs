//! Reads the tables of a page in `docs/format/`, for second readers. A *second reader* is test code
//! that implements the format from its page, and shares only the primitives of `crypto` with the
//! engine.

use lacuna_contracts::Secret;
use lacuna_crypto::{AesBlock, Cipher, GcmKey, Hctr2Key, XtsKey, derive};
use std::ops::{Index, Range};
use std::path::Path;

/// The cells of the rows of a table, without the header.
pub type Rows = Vec<Vec<String>>;

/// A page.
pub struct FormatPage(String);

impl FormatPage {
    /// The page of this name.
    ///
    /// # Panics
    ///
    /// If there is none. All functions of this module panic if the page lacks an item, because the
    /// module is for tests.
    pub fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../../docs/format/{name}.md"));
        FormatPage(std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    /// Whether the page contains this text.
    pub fn contains(&self, words: &str) -> bool {
        self.0.contains(words)
    }

    /// The tables under a heading.
    pub fn tables(&self, heading: &str) -> Vec<Rows> {
        let section = self.0.split("\n## ").find(|section| section.lines().next() == Some(heading));
        let section = section.unwrap_or_else(|| panic!("no section {heading}"));
        let cells = |line: &str| line.trim_matches('|').split('|').map(|c| c.trim().to_string()).collect();
        let table = |part: &str| part.lines().skip(2).map(cells).collect();
        section.split("\n\n").filter(|part| part.starts_with('|')).map(table).collect()
    }

    /// The rows of all tables under a heading.
    pub fn rows(&self, heading: &str) -> Rows {
        self.tables(heading).concat()
    }

    /// The second cell of the row with this first cell.
    pub fn value_of(&self, heading: &str, name: &str) -> String {
        let rows = self.rows(heading);
        rows.into_iter().find(|row| row[0] == name).unwrap_or_else(|| panic!("no {name}")).swap_remove(1)
    }

    /// Like [`FormatPage::value_of`], as a number.
    pub fn number(&self, heading: &str, name: &str) -> u64 {
        self.value_of(heading, name).parse().unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// The number with this name under the heading "Constants".
    pub fn constant(&self, name: &str) -> u64 {
        self.number("Constants", name)
    }

    /// The fields in the last table under a heading.
    pub fn fields(&self, heading: &str) -> Fields {
        let rows = self.tables(heading).pop().unwrap_or_else(|| panic!("no table under {heading}"));
        Fields::from_rows(heading, &rows)
    }
}

/// The fields of a structure, by name. They are contiguous.
pub struct Fields {
    heading: String,
    fields: Vec<(String, Range<usize>)>,
}

impl Fields {
    fn from_rows(heading: &str, rows: &Rows) -> Fields {
        let (mut end, mut fields) = (0, Vec::<(String, Range<usize>)>::new());
        for row in rows {
            let number =
                |cell: &str| cell.parse::<usize>().unwrap_or_else(|e| panic!("{heading}, {cell}: {e}"));
            assert_eq!(number(&row[0]), end, "{heading}: {}", row[2]);
            let start = end;
            end += number(&row[1]);
            let known = fields.iter().any(|(name, _)| *name == row[2]);
            assert!(!known || row[2].starts_with("zero"), "{heading}: {} stands twice", row[2]);
            fields.push((row[2].clone(), start..end));
        }
        Fields { heading: heading.to_owned(), fields }
    }

    /// Asserts the length of the structure in bytes.
    pub fn assert_len(self, len: usize) -> Self {
        assert_eq!(self.byte_len(), len, "{}", self.heading);
        self
    }

    /// The length of the structure in bytes.
    pub fn byte_len(&self) -> usize {
        self.fields.last().map_or(0, |(_, range)| range.end)
    }

    /// The bytes of a field.
    pub fn get<'a>(&self, bytes: &'a [u8], name: &str) -> &'a [u8] {
        &bytes[self[name].clone()]
    }

    /// The number in a field.
    pub fn number(&self, bytes: &[u8], name: &str) -> u64 {
        number(self.get(bytes, name))
    }

    /// Asserts that all fields named `zero` contain zeros.
    pub fn assert_zeros(&self, bytes: &[u8]) {
        for (name, range) in self.fields.iter().filter(|(name, _)| name.starts_with("zero")) {
            assert!(bytes[range.clone()].iter().all(|b| *b == 0), "{name}");
        }
    }
}

impl Index<&str> for Fields {
    type Output = Range<usize>;

    fn index(&self, name: &str) -> &Range<usize> {
        let mut found = self.fields.iter().filter(|(field, _)| field == name);
        let (_, range) = found.next().unwrap_or_else(|| panic!("no field {name}"));
        assert!(found.next().is_none(), "{name} stands twice");
        range
    }
}

/// The little-endian number in at most eight bytes.
pub fn number(bytes: &[u8]) -> u64 {
    let mut number = [0; 8];
    number[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(number)
}

/// A block of a `sealed` disk on the medium.
pub struct SealedBlock<'a> {
    /// The number of the block on the disk.
    pub block: u64,
    /// Its ciphertext.
    pub data: &'a [u8],
    /// Its metadata.
    pub meta: &'a [u8],
    /// The data that `gcm` authenticates in addition to the address.
    pub bound: &'a [u8],
}

impl SealedBlock<'_> {
    /// Decrypts the block as the pages of `sealed` specify.
    pub fn decrypt(
        &self,
        page: &FormatPage,
        cipher: Cipher,
        master: &Secret<32>,
        uuid: &[u8; 16],
    ) -> Vec<u8> {
        let SealedBlock { block, data, meta, bound } = *self;
        let mut plain = vec![0; data.len()];
        let address = u128::from(block).to_le_bytes();
        match cipher {
            Cipher::XtsRandom => {
                let iv = page.fields("Metadata of xts-random").assert_len(16);
                let iv: [u8; 16] = iv.get(meta, "iv").try_into().expect("16 bytes");
                let binder = AesBlock::new(&derive(master, "sealed xts-random tweak", uuid));
                let mut tweak = binder.encrypt(iv);
                tweak.iter_mut().zip(address).for_each(|(t, a)| *t ^= a);
                let key = XtsKey::new(&derive(master, "sealed xts-random", uuid)).unwrap();
                key.session().decrypt(&binder.encrypt(tweak), data, &mut plain);
            }
            Cipher::Gcm => {
                let fields = page.fields("Metadata of gcm").assert_len(32);
                let own = derive(master, "sealed gcm", uuid);
                let key = GcmKey::new(&derive(&own, "segment", &(block / 1024).to_le_bytes())).unwrap();
                let nonce = fields.get(meta, "nonce").try_into().expect("12 bytes");
                let tag = fields.get(meta, "tag").try_into().expect("16 bytes");
                let associated = [&block.to_le_bytes(), bound].concat();
                key.open(nonce, &associated, data, tag, &mut plain).unwrap();
            }
            Cipher::Xts => {
                let key = XtsKey::new(&derive(master, "sealed xts", uuid)).unwrap();
                key.session().decrypt(&address, data, &mut plain);
            }
            Cipher::Hctr2 => {
                let key = Hctr2Key::new(&derive(master, "sealed hctr2", uuid)).unwrap();
                key.decrypt(&address, data, &mut plain);
            }
        }
        plain
    }
}
