//! The classes of files of EINT, section 7.1, sampled from this system: text, objects, executables,
//! images, compressed.

use lacuna_contracts::{Error, Result};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

/// Smaller files are left out: they have one block, most of it padding.
const LEAST_FILE: u64 = 4096;
/// Files are padded to a multiple of this length.
const PADDED: usize = 4096;
/// Directories that are not sampled.
const SKIPPED: [&str; 3] = ["target", ".git", "proc"];

/// A class of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileClass {
    Text,
    Objects,
    Executables,
    Images,
    Compressed,
}

impl FileClass {
    pub(crate) const ALL: [FileClass; 5] = [
        FileClass::Text,
        FileClass::Objects,
        FileClass::Executables,
        FileClass::Images,
        FileClass::Compressed,
    ];
    /// The classes of Figure 12.
    pub(crate) const LOW_ENTROPY: [FileClass; 3] =
        [FileClass::Text, FileClass::Objects, FileClass::Executables];
    /// The classes of Figure 13.
    pub(crate) const HIGH_ENTROPY: [FileClass; 2] = [FileClass::Images, FileClass::Compressed];

    pub(crate) fn name(self) -> &'static str {
        ["text", "objects", "executables", "images", "compressed"][self as usize]
    }

    /// The rule for the files of a class.
    pub(crate) fn rule(self) -> &'static str {
        [
            ".txt .tex .c .h .cpp .java .ps .pdf",
            ".so* .a .o",
            "ELF programs in bin, sbin, libexec",
            ".jpg .jpeg, and .png .gif .webp",
            ".gz .tgz .bz2 .xz .zst .zip .whl .crate",
        ][self as usize]
    }

    /// The class of a file by its path.
    fn of(path: &Path) -> Option<FileClass> {
        let name = path.file_name()?.to_str()?;
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("");
        match extension {
            "txt" | "tex" | "c" | "h" | "cpp" | "java" | "ps" | "pdf" => Some(FileClass::Text),
            "so" | "a" | "o" => Some(FileClass::Objects),
            "jpg" | "jpeg" | "png" | "gif" | "webp" => Some(FileClass::Images),
            "gz" | "tgz" | "bz2" | "xz" | "zst" | "zip" | "whl" | "crate" => Some(FileClass::Compressed),
            _ if name.contains(".so.") => Some(FileClass::Objects),
            _ => {
                let place = path.parent()?.file_name()?.to_str()?;
                matches!(place, "bin" | "sbin" | "libexec").then_some(FileClass::Executables)
            }
        }
    }
}

/// The measured files of a class.
pub(crate) struct ClassSample {
    pub class: FileClass,
    /// Contents of the files, padded with zeros to whole blocks.
    pub files: Vec<Vec<u8>>,
    /// Sizes of the files without padding.
    pub sizes: Vec<u64>,
    /// Files of the class on the system, and their bytes.
    pub found: (u64, u64),
}

impl ClassSample {
    pub(crate) fn bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    /// The first files that fit into `most` bytes in all; a part of the first file if none fits.
    pub(crate) fn within(&self, most: u64) -> ClassSample {
        let mut left = most;
        let mut fewer =
            ClassSample { class: self.class, files: Vec::new(), sizes: Vec::new(), found: self.found };
        for (file, size) in self.files.iter().zip(&self.sizes) {
            if *size <= left {
                left -= size;
                fewer.sizes.push(*size);
                fewer.files.push(file.clone());
            }
        }
        if let (true, Some(first)) = (fewer.files.is_empty(), self.files.first()) {
            let part = first.len().min(most as usize / PADDED * PADDED);
            fewer.sizes.push(part as u64);
            fewer.files.push(first[..part].to_vec());
        }
        fewer
    }

    /// Blocks of `block_size` bytes.
    pub(crate) fn blocks(&self, block_size: usize) -> impl Iterator<Item = &[u8]> {
        self.files.iter().flat_map(move |file| file.chunks_exact(block_size))
    }
}

/// Collects up to `most` bytes of each class from the system's directories. If there are more, the
/// files with the least hashes of their paths are taken, so that the same system gives the same
/// sample.
pub(crate) fn collect(most: u64) -> Result<Vec<ClassSample>> {
    let mut found: Vec<Vec<(u64, PathBuf, u64)>> = vec![Vec::new(); FileClass::ALL.len()];
    let home = std::env::var_os("HOME").map(PathBuf::from);
    for root in ["/usr", "/opt"].into_iter().map(PathBuf::from).chain(home) {
        walk(&root, 0, &mut |class, path, size| {
            let mut hasher = DefaultHasher::new();
            path.hash(&mut hasher);
            found[class as usize].push((hasher.finish(), path.to_owned(), size));
        });
    }
    FileClass::ALL.into_iter().zip(found).map(|(class, files)| sample(class, files, most)).collect()
}

fn sample(class: FileClass, mut files: Vec<(u64, PathBuf, u64)>, most: u64) -> Result<ClassSample> {
    files.sort_unstable();
    let found = (files.len() as u64, files.iter().map(|(.., size)| size).sum());
    let mut sample = ClassSample { class, files: Vec::new(), sizes: Vec::new(), found };
    let mut bytes = 0;
    for (_, path, size) in files {
        // A file may have at most half of the bytes of a class.
        if size > most / 2 || bytes + size > most {
            continue;
        }
        let Ok(mut content) = std::fs::read(&path) else { continue };
        if class == FileClass::Executables && !content.starts_with(b"\x7fELF") {
            continue;
        }
        bytes += size;
        sample.sizes.push(content.len() as u64);
        content.resize(content.len().next_multiple_of(PADDED), 0);
        sample.files.push(content);
    }
    if sample.files.is_empty() {
        let what = format!("no files of the class {} on this system", class.name());
        return Err(Error::new(lacuna_contracts::Kind::NotFound, what).expected(class.rule()));
    }
    Ok(sample)
}

/// Visits regular files of at least [`LEAST_FILE`] bytes below `dir`; links are not followed.
fn walk(dir: &Path, depth: u32, each: &mut dyn FnMut(FileClass, &Path, u64)) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        let path = entry.path();
        if kind.is_dir() {
            let name = entry.file_name();
            if depth < 24 && !SKIPPED.iter().any(|skipped| name == *skipped) {
                walk(&path, depth + 1, each);
            }
        } else if kind.is_file()
            && let Some(class) = FileClass::of(&path)
            && let Ok(metadata) = entry.metadata()
            && metadata.len() >= LEAST_FILE
        {
            each(class, &path, metadata.len());
        }
    }
}
