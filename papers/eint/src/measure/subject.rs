//! The measured schemes: the five file systems of EINT, section 7.1, as reference schemes, and the
//! schemes of vault files.

use crate::node_cache::{ListCache, NodeCache, TableCache};
use crate::random_access::Integrity;
use crate::reference_blocks::ReferenceBlocks;
use crate::reference_comp::ReferenceComp;
use crate::reference_counters::CounterIntervals;
use crate::reference_keys::ReferenceKeys;
use crate::reference_mt::ReferenceMt;
use crate::reference_rand::{ReferenceRand, tweak};
use lacuna_contracts::{Budget, Result, Secret};
use lacuna_integrity::{Choice, FailedBlock, FileKeys, ProtectedFile, Scheme, Session, Untrusted};
use std::sync::Arc;

/// The master key of all file keys.
const MASTER: [u8; 32] = [0x6d; 32];

/// A measured scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MeasuredScheme {
    /// AES-256-XTS under Figure 3, without integrity ("AES - no integrity").
    Aes,
    /// HCTR2 under authentic counters, without integrity ("CMC - no integrity").
    Wide,
    /// The reference of MT-EINT ("AES-Merkle").
    ReferenceMt,
    /// The reference of RAND-EINT ("CMC-Entropy").
    ReferenceRand,
    /// The reference of COMP-EINT ("AES-Compression").
    ReferenceComp,
    /// A file of the vault.
    File(Choice),
}

/// The cache algorithms of section 7.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheKind {
    /// A doubly linked list.
    List,
    /// A hash table with a counter.
    Table,
}

/// One file of a subject.
pub trait MeasuredFile {
    /// Writes whole blocks; blocks between the end and `first` become zeros.
    fn write(&mut self, us: &dyn Untrusted, first: u64, plain: &[u8]) -> Result<()>;
    /// Reads and checks whole blocks.
    fn read(&self, us: &dyn Untrusted, first: u64, plain: &mut [u8]) -> Result<()>;
    /// Length in blocks.
    fn blocks(&self) -> u64;
    /// Commits to US, and continues as after a reopen, with empty caches.
    fn close(&mut self, us: &dyn Untrusted) -> Result<()>;
    /// Shortens the file.
    fn truncate(&mut self, us: &dyn Untrusted, blocks: u64) -> Result<()>;
}

impl MeasuredScheme {
    /// The file systems of the paper's Table 4, in its order.
    pub const PAPER: [MeasuredScheme; 5] = [
        MeasuredScheme::Aes,
        MeasuredScheme::Wide,
        MeasuredScheme::ReferenceMt,
        MeasuredScheme::ReferenceRand,
        MeasuredScheme::ReferenceComp,
    ];

    /// The schemes of vault files as users have them, and encryption alone.
    pub const FILES: [MeasuredScheme; 5] = [
        MeasuredScheme::File(Choice::Fixed(Scheme::None)),
        MeasuredScheme::File(Choice::Fixed(Scheme::Mt)),
        MeasuredScheme::File(Choice::Fixed(Scheme::Rand)),
        MeasuredScheme::File(Choice::Fixed(Scheme::Comp)),
        MeasuredScheme::File(Choice::Auto),
    ];

    /// The name for tables.
    pub fn name(self) -> &'static str {
        match self {
            MeasuredScheme::Aes => "XTS, no integrity",
            MeasuredScheme::Wide => "HCTR2, no integrity",
            MeasuredScheme::ReferenceMt => "reference MT",
            MeasuredScheme::ReferenceRand => "reference RAND",
            MeasuredScheme::ReferenceComp => "reference COMP",
            MeasuredScheme::File(Choice::Fixed(Scheme::None)) => "vault none",
            MeasuredScheme::File(Choice::Fixed(Scheme::Mt)) => "vault mt",
            MeasuredScheme::File(Choice::Fixed(Scheme::Rand)) => "vault rand",
            MeasuredScheme::File(Choice::Fixed(Scheme::Comp)) => "vault comp",
            MeasuredScheme::File(Choice::Auto) => "vault auto",
        }
    }

    /// A new file with this number, without blocks.
    pub fn file(
        self,
        number: u64,
        block_size: usize,
        cache: Option<(CacheKind, usize)>,
    ) -> Box<dyn MeasuredFile> {
        let cache = cache.map(|(kind, bytes)| -> Box<dyn NodeCache> {
            match kind {
                CacheKind::List => Box::new(ListCache::new(bytes)),
                CacheKind::Table => Box::new(TableCache::new(bytes)),
            }
        });
        let master = Secret::copy_from(&MASTER);
        let keys = || ReferenceKeys::derive(&master, number);
        let plain = |wide| {
            let file = ReferenceBlocks { keys: keys(), size: block_size };
            Unprotected { file, counters: CounterIntervals::default(), wide }
        };
        match self {
            MeasuredScheme::Aes => Box::new(plain(false)),
            MeasuredScheme::Wide => Box::new(plain(true)),
            MeasuredScheme::ReferenceMt => {
                Box::new(Reference(ReferenceMt::with_cache(keys(), block_size, cache), block_size))
            }
            MeasuredScheme::ReferenceRand => {
                Box::new(Reference(ReferenceRand::with_cache(keys(), block_size, cache), block_size))
            }
            MeasuredScheme::ReferenceComp => {
                Box::new(Reference(ReferenceComp::with_cache(keys(), block_size, cache), block_size))
            }
            MeasuredScheme::File(choice) => {
                let keys = FileKeys::derive(&master, number);
                let mut file =
                    ProtectedFile::init_with_block_size(keys.clone(), choice, Session(1), block_size);
                file.set_budget(BUDGET);
                Box::new(Protected { keys, file, session: 1 })
            }
        }
    }
}

/// Budget for the caches of one file.
const BUDGET: Budget = Budget::bytes(4 << 20);

/// Encryption with write counters, without integrity.
struct Unprotected {
    file: ReferenceBlocks,
    counters: CounterIntervals,
    wide: bool,
}

impl MeasuredFile for Unprotected {
    fn write(&mut self, us: &dyn Untrusted, first: u64, plain: &[u8]) -> Result<()> {
        let size = self.file.size;
        let end = self.blocks();
        if first > end {
            self.write(us, end, &vec![0; (first - end) as usize * size])?;
        }
        let mut sealed = vec![0; plain.len()];
        let mut cipher = self.file.cipher();
        let blocks = plain.chunks_exact(size).zip(sealed.chunks_exact_mut(size));
        for (block, (plain, sealed)) in (first..).zip(blocks) {
            self.counters.update(block)?;
            let counter = self.counters.get(block);
            if self.wide {
                self.file.keys.wide().encrypt(&tweak(block, counter), plain, sealed);
            } else {
                cipher.encrypt(block, counter, plain, sealed);
            }
        }
        us.write_blocks(first, &sealed)
    }

    fn read(&self, us: &dyn Untrusted, first: u64, plain: &mut [u8]) -> Result<()> {
        us.read_blocks(first, plain)?;
        let mut cipher = self.file.cipher();
        for (block, bytes) in (first..).zip(plain.chunks_exact_mut(self.file.size)) {
            let counter = self.counters.get(block);
            if self.wide {
                self.file.keys.wide().decrypt_in_place(&tweak(block, counter), bytes);
            } else {
                cipher.decrypt_in_place(block, counter, bytes);
            }
        }
        Ok(())
    }

    fn blocks(&self) -> u64 {
        self.counters.blocks()
    }

    fn close(&mut self, _: &dyn Untrusted) -> Result<()> {
        Ok(())
    }

    fn truncate(&mut self, _: &dyn Untrusted, blocks: u64) -> Result<()> {
        while self.blocks() > blocks {
            self.counters.delete_last();
        }
        Ok(())
    }
}

/// A reference scheme, and the size of its blocks.
struct Reference<I>(I, usize);

impl<I: Integrity> MeasuredFile for Reference<I> {
    fn write(&mut self, us: &dyn Untrusted, first: u64, plain: &[u8]) -> Result<()> {
        let end = self.0.blocks();
        if first > end {
            self.0.append(us, &vec![0; (first - end) as usize * self.1])?;
        }
        let old = (self.0.blocks() - first).min((plain.len() / self.1) as u64);
        let (old, new) = plain.split_at(old as usize * self.1);
        if !old.is_empty() {
            self.0.update(us, first, old)?;
        }
        if new.is_empty() { Ok(()) } else { self.0.append(us, new) }
    }

    fn read(&self, us: &dyn Untrusted, first: u64, plain: &mut [u8]) -> Result<()> {
        self.0.check(us, first, plain).map_err(|FailedBlock { error, .. }| error)
    }

    fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    /// Figure 2 updates US with every operation, and the caches are too small to matter.
    fn close(&mut self, _: &dyn Untrusted) -> Result<()> {
        Ok(())
    }

    fn truncate(&mut self, us: &dyn Untrusted, blocks: u64) -> Result<()> {
        while self.0.blocks() > blocks {
            self.0.delete(us)?;
        }
        Ok(())
    }
}

/// A file with a scheme of the vault.
struct Protected {
    keys: Arc<FileKeys>,
    file: ProtectedFile,
    session: u64,
}

impl MeasuredFile for Protected {
    fn write(&mut self, us: &dyn Untrusted, first: u64, plain: &[u8]) -> Result<()> {
        self.file.update(us, first, plain)
    }

    fn read(&self, us: &dyn Untrusted, first: u64, plain: &mut [u8]) -> Result<()> {
        self.file.check(us, first, plain).map_err(|FailedBlock { error, .. }| error)
    }

    fn blocks(&self) -> u64 {
        self.file.blocks()
    }

    fn close(&mut self, us: &dyn Untrusted) -> Result<()> {
        while self.file.convert_if_better(us)? {}
        let trusted = self.file.commit(us)?;
        self.session += 1;
        self.file = ProtectedFile::open(self.keys.clone(), &trusted, Session(self.session), BUDGET)?;
        Ok(())
    }

    fn truncate(&mut self, us: &dyn Untrusted, blocks: u64) -> Result<()> {
        self.file.resize(us, blocks)
    }
}
