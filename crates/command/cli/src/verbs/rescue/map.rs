//! The map of a rescue: the areas of the image, in the format of GNU ddrescue's map files, so that
//! its tools can read them.
//!
//! A line gives the position and the size of an area in bytes, and its status: `+` for read or
//! never written, `-` for lost, `?` for an area that another run has to read. Areas without a line
//! were not tried, so a truncated map is still correct. The first lines identify the disk and the
//! image, so that a map is not used with another disk or image.

use lacuna_storage::DiskId;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::UNIX_EPOCH;

/// Bytes of new lines after which a map is saved.
const SAVE_AFTER_TEXT: usize = 1 << 15;
/// Bytes of the disk after which a map is saved.
const SAVE_AFTER_BYTES: u64 = 64 << 20;

/// The beginning of a map, without the version.
pub(crate) const MADE_BY: &str = "# Mapfile. Created by lacuna version ";

/// The disk that is rescued.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RescuedDisk {
    /// The ID of the disk.
    pub(crate) id: DiskId,
    /// The level; 0 on a disk without levels.
    pub(crate) level: u8,
    /// Length in bytes.
    pub(crate) len: u64,
}

impl RescuedDisk {
    /// The lines of a map that identify the disk and the image. An image file is identified by its
    /// inode number and its creation time.
    pub(crate) fn lines(&self, image: &Metadata) -> [String; 2] {
        let RescuedDisk { id, level, len } = self;
        // A file system may not store the creation time: then the number alone counts.
        let made = image.created().and_then(|made| made.duration_since(UNIX_EPOCH).map_err(io::Error::other));
        let made = made.map_or(0, |made| made.as_nanos());
        [
            format!("# Disk: ID {id}, level {level}, {len} bytes"),
            format!("# Image: file {}, made at {made}", image.ino()),
        ]
    }
}

/// Status of an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AreaStatus {
    /// In the image.
    Rescued,
    /// Could not be read, or did not verify.
    Lost,
}

impl AreaStatus {
    fn mark(self) -> char {
        match self {
            AreaStatus::Rescued => '+',
            AreaStatus::Lost => '-',
        }
    }
}

/// A map file that is being written.
pub(crate) struct MapFile {
    file: File,
    /// Position of the status line, which is rewritten at the end.
    status_at: u64,
    gathered: String,
    /// The area that is growing: position, size and status.
    area: Option<(u64, u64, AreaStatus)>,
    /// Start of the next area.
    end: u64,
    /// Value of `end` when the map was saved last.
    saved: u64,
}

impl MapFile {
    /// Begins the map in an empty file. `of`: its lines on the disk and the image.
    pub(crate) fn begin(mut file: File, of: &[String; 2]) -> io::Result<MapFile> {
        let [disk, image] = of;
        let version = env!("CARGO_PKG_VERSION");
        let head =
            format!("{MADE_BY}{version}\n{disk}\n{image}\n# current_pos  current_status  current_pass\n");
        let table = "#      pos        size  status\n";
        let text = format!("{head}{}{table}", status(0, '?'));
        file.write_all(text.as_bytes())?;
        let status_at = head.len() as u64;
        Ok(MapFile { file, status_at, gathered: String::new(), area: None, end: 0, saved: 0 })
    }

    /// Adds the next `size` bytes.
    pub(crate) fn add(&mut self, size: u64, became: AreaStatus) {
        let at = self.end;
        self.end += size;
        match &mut self.area {
            Some((_, grown, same)) if *same == became => *grown += size,
            _ => {
                self.put();
                self.area = Some((at, size, became));
            }
        }
    }

    /// Whether the map should be saved, so that a crash loses little work.
    pub(crate) fn is_due(&self) -> bool {
        self.gathered.len() >= SAVE_AFTER_TEXT || self.end - self.saved >= SAVE_AFTER_BYTES
    }

    /// Writes the new lines. Their rescued areas must be durable in the image before.
    pub(crate) fn save(&mut self) -> io::Result<()> {
        self.put();
        self.saved = self.end;
        let written = self.file.write_all(self.gathered.as_bytes());
        self.gathered.clear();
        written
    }

    /// Completes the map: the whole disk was tried.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.save()?;
        self.file.write_all_at(status(self.end, '+').as_bytes(), self.status_at)?;
        self.file.sync_all()
    }

    /// Formats the growing area as a line.
    fn put(&mut self) {
        if let Some((at, size, became)) = self.area.take() {
            self.gathered.push_str(&line(at, size, became.mark()));
        }
    }
}

/// The line of an area.
pub(crate) fn line(at: u64, size: u64, status: char) -> String {
    format!("0x{at:010X}  0x{size:010X}  {status}\n")
}

/// The status line, which has a fixed length.
fn status(position: u64, phase: char) -> String {
    format!("0x{position:016X}     {phase}               1\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(dir: &tempfile::TempDir) -> MapFile {
        let of = ["# Disk: one", "# Image: one"].map(str::to_owned);
        MapFile::begin(File::create(dir.path().join("map")).unwrap(), &of).unwrap()
    }

    fn map(areas: &[(u64, AreaStatus)]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let mut map = begin(&dir);
        areas.iter().for_each(|(size, became)| map.add(*size, *became));
        map.finish().unwrap();
        std::fs::read_to_string(dir.path().join("map")).unwrap()
    }

    #[test]
    fn adjacent_areas_of_one_status_are_one_line() {
        use AreaStatus::{Lost, Rescued};
        let text = map(&[(4096, Rescued), (8192, Rescued), (4096, Lost), (4096, Lost), (1 << 41, Rescued)]);
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                "0x0000020000005000     +               1",
                "0x0000000000  0x0000003000  +",
                "0x0000003000  0x0000002000  -",
                "0x0000005000  0x20000000000  +",
            ]
        );
        assert!(text.starts_with("# Mapfile. Created by lacuna version "), "{text}");
        assert!(text.contains("\n# Disk: one\n# Image: one\n"), "{text}");
        assert_eq!(map(&[]).lines().filter(|line| !line.starts_with('#')).count(), 1);
    }

    #[test]
    fn a_truncated_map_lists_only_tried_areas() {
        let dir = tempfile::tempdir().unwrap();
        let mut map = begin(&dir);
        for _ in 0..4000 {
            map.add(4096, AreaStatus::Rescued);
            map.add(4096, AreaStatus::Lost);
            if map.is_due() {
                map.save().unwrap();
            }
        }
        drop(map);
        let text = std::fs::read_to_string(dir.path().join("map")).unwrap();
        let mut end = 0;
        for line in text.lines().filter(|line| !line.starts_with('#')).skip(1) {
            let number = |at: usize| {
                u64::from_str_radix(line.split_whitespace().nth(at).unwrap().trim_start_matches("0x"), 16)
                    .unwrap()
            };
            assert_eq!(number(0), end);
            end += number(1);
        }
        assert!(end > 4096 && end < 8000 * 4096, "{end}");
        assert!(text.contains("0x0000000000000000     ?               1"), "{text}");
    }

    /// A single long area is saved too.
    #[test]
    fn a_map_without_losses_is_saved_too() {
        let dir = tempfile::tempdir().unwrap();
        let mut map = begin(&dir);
        map.add(SAVE_AFTER_BYTES - 4096, AreaStatus::Rescued);
        assert!(!map.is_due());
        map.add(4096, AreaStatus::Rescued);
        assert!(map.is_due());
        map.save().unwrap();
        assert!(!map.is_due());
        drop(map);
        let text = std::fs::read_to_string(dir.path().join("map")).unwrap();
        assert!(text.ends_with("0x0000000000  0x0004000000  +\n"), "{text}");
    }
}
