//! The map of a rescue: what of the image was read, in the form of the map files of GNU ddrescue, which its tools read.
//!
//! A line gives position and size of an area in bytes, and `+` for one that was read or never written, `-` for one that is lost. What
//! no line speaks of yet was not tried: so a map that was cut short with the rescue says no more than is true.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

/// Bytes before they are written.
const GATHERED: usize = 1 << 16;

/// What became of an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Area {
    /// It is in the image.
    Rescued,
    /// It could not be read, or did not verify.
    Lost,
}

impl Area {
    fn mark(self) -> char {
        match self {
            Area::Rescued => '+',
            Area::Lost => '-',
        }
    }
}

/// A map file that is being written.
pub(crate) struct MapFile {
    file: File,
    /// Where the status line is, which is written again at the end.
    status_at: u64,
    gathered: String,
    /// The area that is growing: position, size, and what became of it.
    area: Option<(u64, u64, Area)>,
    /// Where the next area begins.
    end: u64,
}

impl MapFile {
    /// Begins the map in an empty file.
    pub(crate) fn begin(mut file: File) -> io::Result<MapFile> {
        let head = format!(
            "# Mapfile. Created by lacuna version {}\n# current_pos  current_status  current_pass\n",
            env!("CARGO_PKG_VERSION")
        );
        let table = "#      pos        size  status\n";
        let text = format!("{head}{}{table}", status(0, '?'));
        file.write_all(text.as_bytes())?;
        Ok(MapFile { file, status_at: head.len() as u64, gathered: String::new(), area: None, end: 0 })
    }

    /// Adds the next `size` bytes. Those that were rescued are in the image by now.
    pub(crate) fn add(&mut self, size: u64, became: Area) -> io::Result<()> {
        let at = self.end;
        self.end += size;
        match &mut self.area {
            Some((_, grown, same)) if *same == became => {
                *grown += size;
                Ok(())
            }
            _ => {
                let before = self.area.replace((at, size, became));
                before.map_or(Ok(()), |before| self.put(before))
            }
        }
    }

    /// Ends the map: all of the disk was tried.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.area.take().map_or(Ok(()), |last| self.put(last))?;
        self.flush()?;
        self.file.write_all_at(status(self.end, '+').as_bytes(), self.status_at)?;
        self.file.sync_all()
    }

    fn put(&mut self, (at, size, became): (u64, u64, Area)) -> io::Result<()> {
        let line = format!("0x{at:010X}  0x{size:010X}  {}\n", became.mark());
        self.gathered.push_str(&line);
        if self.gathered.len() < GATHERED { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = self.file.write_all(self.gathered.as_bytes());
        self.gathered.clear();
        written
    }
}

/// The line that says how far it is: as long whatever it says.
fn status(position: u64, phase: char) -> String {
    format!("0x{position:016X}     {phase}               1\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(areas: &[(u64, Area)]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        let mut map = MapFile::begin(File::create(&path).unwrap()).unwrap();
        areas.iter().for_each(|(size, became)| map.add(*size, *became).unwrap());
        map.finish().unwrap();
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn neighbours_of_one_kind_are_one_line() {
        use Area::{Lost, Rescued};
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
        assert_eq!(map(&[]).lines().filter(|line| !line.starts_with('#')).count(), 1);
    }

    #[test]
    fn a_map_that_was_cut_short_speaks_of_nothing_that_was_not_tried() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        let mut map = MapFile::begin(File::create(&path).unwrap()).unwrap();
        for _ in 0..4000 {
            map.add(4096, Area::Rescued).unwrap();
            map.add(4096, Area::Lost).unwrap();
        }
        drop(map);
        let text = std::fs::read_to_string(path).unwrap();
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
}
