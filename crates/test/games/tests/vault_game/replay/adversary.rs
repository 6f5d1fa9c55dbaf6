//! The adversary's changes to the folder of a vault: it replaces, swaps, truncates, deletes or
//! rolls back any backing file or part of one, alone or all together.

use super::{BLOCK, VaultGame};
use lacuna_sim::{FolderImage, MediumImage};

impl VaultGame {
    /// Makes one change.
    pub(super) fn alter(&mut self) {
        let folder = self.world.folder.clone();
        let now = folder.snapshot();
        let names: Vec<String> = now.names().map(str::to_owned).collect();
        let Some(name) = (!names.is_empty()).then(|| self.rng.pick(&names).clone()) else { return };
        let old = self
            .snapshots
            .get(self.rng.below(self.snapshots.len() as u64 + 1) as usize)
            .map(|seen| seen.image.clone());
        let content = |image: &FolderImage, name: &str| image.files.get(name).map(bytes_of);
        let mut image = now.clone();
        let other = self.rng.pick(&names).clone();
        let (page, from) = (self.rng.below(400) as usize, self.rng.below(400) as usize);
        match (self.rng.below(9), old) {
            (0, Some(old)) => folder.restore(&old),
            (1 | 2, Some(old)) => folder.replace_file(&name, old.files.get(&name)),
            (3, Some(old)) => {
                // One page of the file, or the page with this number in all files.
                let all = self.rng.chance(1, 4);
                for name in names.iter().filter(|other| all || **other == name) {
                    let (Some(mut bytes), Some(older)) = (content(&now, name), content(&old, name)) else {
                        continue;
                    };
                    copy_page(&mut bytes, page, &older, page);
                    folder.replace_file(name, Some(&MediumImage::from(bytes)));
                }
            }
            (4, _) => {
                let (one, two) = (now.files.get(&name).cloned(), now.files.get(&other).cloned());
                folder.replace_file(&name, two.as_ref());
                folder.replace_file(&other, one.as_ref());
            }
            (5, _) => {
                image.alter(&name, |bytes| bytes.truncate(bytes.len() / 8192 * 4096));
                folder.replace_file(&name, image.files.get(&name));
            }
            (6, _) => folder.replace_file(&name, None),
            (7, _) => {
                let source = content(&now, &other).unwrap_or_default();
                image.alter(&name, |bytes| copy_page(bytes, page, &source, from));
                folder.replace_file(&name, image.files.get(&name));
            }
            _ => {
                let at = self.rng.next_u64() as usize;
                image.alter(&name, |bytes| {
                    if !bytes.is_empty() {
                        let at = at % bytes.len();
                        bytes[at] ^= 1 << (at % 8);
                    }
                });
                folder.replace_file(&name, image.files.get(&name));
            }
        }
    }
}

fn bytes_of(image: &MediumImage) -> Vec<u8> {
    let mut copy = FolderImage::default();
    copy.files.insert("file".into(), image.clone());
    let mut bytes = vec![];
    copy.alter("file", |all| bytes.clone_from(all));
    bytes
}

/// Copies one page over another, if both files have pages.
fn copy_page(to: &mut [u8], page: usize, from: &[u8], source: usize) {
    let (pages, sources) = (to.len() / BLOCK, from.len() / BLOCK);
    if pages > 0 && sources > 0 {
        let (page, source) = (page % pages * BLOCK, source % sources * BLOCK);
        to[page..page + BLOCK].copy_from_slice(&from[source..source + BLOCK]);
    }
}
