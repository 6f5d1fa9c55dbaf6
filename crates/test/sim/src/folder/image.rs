//! All files of a simulated folder at one moment.

use crate::{MediumImage, operation::RunDigest};
use std::collections::BTreeMap;

/// Names and contents. Copies share pages, so a snapshot is cheap.
#[derive(Clone, Default)]
pub struct FolderImage {
    /// Contents by name.
    pub files: BTreeMap<String, MediumImage>,
}

impl FolderImage {
    /// Names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Changes bytes of a file with `change`, which gets the whole content. False if there is no
    /// such file.
    pub fn alter(&mut self, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let Some(file) = self.files.get_mut(name) else { return false };
        let mut bytes = file.to_vec();
        change(&mut bytes);
        *file = MediumImage::from(bytes);
        true
    }

    /// A digest of names and contents.
    pub fn digest(&self) -> u64 {
        let mut digest = RunDigest::new();
        for (name, image) in &self.files {
            digest.add_bytes(name.as_bytes());
            digest.add_word(image.digest());
        }
        digest.0
    }
}
