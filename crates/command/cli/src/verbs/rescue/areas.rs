//! What earlier runs of a rescue left: the areas that their map names.
//!
//! Invariants: a line that was cut short counts as none, and so does a map whose first lines were;
//! a map of another disk or image, and what is no map, is refused by name. What the map does not
//! call rescued is missing, whatever else it calls it.

use crate::verbs::rescue::map::{self, MADE_BY};
use lacuna_storage::{Advice, BLOCK_SIZE, Error, Kind, Result, Setting, printable, shell_word};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of the longest line that a map has.
const LONGEST: u64 = 256;
/// Bytes of the longest file that is taken for the beginning of a map.
const BEGUN: usize = 1 << 16;
/// How the name of the map of a later run ends, until that map is whole.
pub(crate) const OF_LATER_RUN: &str = "new";

/// Whether a file holds no more than a part of the first lines of a map, as a power cut leaves it:
/// some of their bytes may be zeros, and all after them. `of`: the lines that a map of this disk
/// and of this image has.
pub(crate) fn is_torn(file: &File, of: &[String; 2]) -> io::Result<bool> {
    let len = file.metadata()?.len();
    if len > BEGUN as u64 {
        return Ok(false);
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0)?;
    let written = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    if bytes[written..].iter().any(|byte| *byte != 0) {
        return Ok(false);
    }
    // The version may be another one, and what follows the lines as well.
    let mut lines = bytes[..written].split_inclusive(|byte| *byte == b'\n');
    let begins = [MADE_BY, &of[0], &of[1]].iter().all(|begin| {
        let line = lines.next().unwrap_or(&[]);
        let shown = line.strip_suffix(b"\n").unwrap_or(line);
        shown.starts_with(begin.as_bytes())
            || (line.len() == shown.len() && begin.as_bytes().starts_with(line))
    });
    let has_status = lines.any(|line| !line.starts_with(b"#") && line.ends_with(b"\n"));
    Ok(begins && !has_status)
}

/// The areas of a disk, one after the other.
pub(crate) struct Areas {
    /// The map that tells of them, until it ends.
    map: Option<MapReader>,
    /// Where the next area begins.
    at: u64,
    /// Where the disk ends.
    len: u64,
}

impl Areas {
    /// Those of a disk of `len` bytes. Without a map all is missing.
    pub(crate) fn of(map: Option<MapReader>, len: u64) -> Areas {
        Areas { map, at: 0, len }
    }

    /// The bytes of the next area, and whether it is in the image. None at the end of the disk.
    ///
    /// Errors: [`Kind::Usage`] for what is no map, and what the system reports.
    pub(crate) fn following(&mut self) -> Result<Option<(Range<u64>, bool)>> {
        while let Some(map) = &mut self.map {
            match map.following()? {
                Some((end, _)) if end <= self.at => {}
                Some((end, is_there)) => return Ok(Some((self.up_to(end), is_there))),
                None => self.map = None,
            }
        }
        Ok((self.at < self.len).then(|| (self.up_to(self.len), false)))
    }

    fn up_to(&mut self, end: u64) -> Range<u64> {
        std::mem::replace(&mut self.at, end)..end
    }
}

/// A map that is read.
pub(crate) struct MapReader {
    lines: BufReader<File>,
    path: PathBuf,
    /// Bytes of the whole lines that were read.
    read: u64,
    /// Where the areas end that were read.
    end: u64,
    /// Bytes of the disk.
    len: u64,
}

impl MapReader {
    /// The map in a file. `of`: the lines that a map of this disk, which has `len` bytes, and of
    /// this image has.
    ///
    /// Errors: [`Kind::Usage`] for another one, and for what is no map of `lacuna rescue`.
    pub(crate) fn of(file: File, path: &Path, of: &[String; 2], len: u64) -> Result<MapReader> {
        let mut map = MapReader { lines: BufReader::new(file), path: path.to_owned(), read: 0, end: 0, len };
        if !map.line()?.is_some_and(|line| line.starts_with(MADE_BY)) {
            return Err(map.refused().found("a file that is no map of `lacuna rescue`"));
        }
        for expected in of {
            let found = map.line()?;
            if found.as_ref() != Some(expected) {
                let words = |line: &str| printable(line.trim_start_matches(['#', ' '])).into_owned();
                let found = found.map_or_else(|| "its end".to_owned(), |line| words(&line));
                return Err(map
                    .refused()
                    .found(format!("a map of another disk or image: `{found}`"))
                    .expected(format!("`{}`", words(expected))));
            }
        }
        loop {
            match map.line()? {
                Some(line) if line.starts_with('#') => {}
                // The line of the status: how far the run came is told by the areas.
                Some(_) => return Ok(map),
                None => return Err(map.refused().found("a map without a status")),
            }
        }
    }

    /// Completes a map that ends early, from there on by the one `before` it. Whenever that is cut
    /// short, it has ended early again.
    ///
    /// Errors: those of [`Areas::following`].
    pub(crate) fn complete(mut self, before: MapReader) -> Result<()> {
        while self.following()?.is_some() {}
        let path = self.path;
        let failed = |e: io::Error| Error::io(format!("cannot write to {}", path.display()), &e);
        let mut file = self.lines.into_inner();
        // A line that was cut short goes.
        file.set_len(self.read).map_err(failed)?;
        file.seek(SeekFrom::Start(self.read)).map_err(failed)?;
        let mut areas = Areas { map: Some(before), at: self.end, len: self.len };
        let mut out = BufWriter::new(&file);
        while let Some((bytes, is_there)) = areas.following()? {
            let status = if is_there { '+' } else { '?' };
            let line = map::line(bytes.start, bytes.end - bytes.start, status);
            out.write_all(line.as_bytes()).map_err(failed)?;
        }
        out.flush().map_err(failed)?;
        file.sync_all().map_err(failed)
    }

    /// Where the next area ends, and whether it is in the image.
    fn following(&mut self) -> Result<Option<(u64, bool)>> {
        loop {
            let Some(line) = self.line()? else { return Ok(None) };
            if line.starts_with('#') {
                continue;
            }
            let Some((at, end, is_there)) = area(&line) else {
                return Err(self.refused().found(format!("the line {:?}", printable(&line))));
            };
            if at != self.end || end > self.len || !end.is_multiple_of(BLOCK_SIZE as u64) {
                let found = format!("an area from byte {at} to {end}");
                let expected = format!("areas of whole blocks, one after the other, up to byte {}", self.len);
                return Err(self.refused().found(found).expected(expected));
            }
            self.end = end;
            return Ok(Some((end, is_there)));
        }
    }

    /// The next line that is whole.
    fn line(&mut self) -> Result<Option<String>> {
        let mut line = Vec::new();
        let read = self.lines.by_ref().take(LONGEST).read_until(b'\n', &mut line);
        read.map_err(|e| Error::io(format!("cannot read {}", self.path.display()), &e))?;
        let Some(whole) = line.strip_suffix(b"\n") else { return Ok(None) };
        self.read += line.len() as u64;
        Ok(Some(String::from_utf8_lossy(whole).into_owned()))
    }

    fn refused(&self) -> Error {
        let error = Error::new(Kind::Usage, format!("cannot go on by {}", self.path.display()));
        if self.path.extension().is_some_and(|end| end == OF_LATER_RUN) {
            return error.remedy(format!(
                "if a run that was cut short left it, `rm {}` and give the command again: what {} calls rescued stays so",
                shell_word(&self.path),
                self.path.with_extension("").display()
            ));
        }
        error.remedy(
            Advice::from("choose another target, or begin anew and overwrite this one with ")
                .setting(Setting("force")),
        )
    }
}

/// Where an area begins and ends, and whether it is in the image: what a line says, if it says
/// that.
fn area(line: &str) -> Option<(u64, u64, bool)> {
    let mut words = line.split_whitespace();
    let (at, size, status) = (number(words.next()?)?, number(words.next()?)?, words.next()?);
    let is_known = words.next().is_none() && ["?", "*", "/", "-", "+"].contains(&status);
    let end = at.checked_add(size).filter(|end| *end > at)?;
    is_known.then_some((at, end, status == "+"))
}

fn number(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::rescue::map::{Area, MapFile};

    const BLOCK: u64 = BLOCK_SIZE as u64;
    const LEN: u64 = 10 * BLOCK;

    fn of() -> [String; 2] {
        ["# Disk: one", "# Image: one"].map(str::to_owned)
    }

    /// A map with these areas, in blocks, and `more` after it.
    fn written(dir: &tempfile::TempDir, name: &str, areas: &[(u64, Area)], more: &str) -> PathBuf {
        let path = dir.path().join(name);
        let mut map = MapFile::begin(File::create(&path).unwrap(), &of()).unwrap();
        areas.iter().for_each(|(blocks, became)| map.add(blocks * BLOCK, *became));
        map.save().unwrap();
        drop(map);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text + more).unwrap();
        path
    }

    fn reader(path: &Path) -> Result<MapReader> {
        let file = File::options().read(true).write(true).open(path).unwrap();
        MapReader::of(file, path, &of(), LEN)
    }

    fn all(map: Option<MapReader>) -> Result<Vec<(Range<u64>, bool)>> {
        let mut areas = Areas::of(map, LEN);
        let mut all = Vec::new();
        while let Some((bytes, is_there)) = areas.following()? {
            all.push((bytes.start / BLOCK..bytes.end / BLOCK, is_there));
        }
        Ok(all)
    }

    #[test]
    fn what_the_map_does_not_call_rescued_is_missing() {
        use Area::{Lost, Rescued};
        assert_eq!(all(None).unwrap(), [(0..10, false)]);
        let dir = tempfile::tempdir().unwrap();
        // A line that was cut short counts as none.
        let cut = written(&dir, "cut", &[(2, Rescued), (1, Lost), (3, Rescued)], "0x0000006000  0x00000010");
        let expected = [(0..2, true), (2..3, false), (3..6, true), (6..10, false)];
        assert_eq!(all(reader(&cut).ok()).unwrap(), expected);
        let whole = "# more\n0x0000006000  0x0000001000  /\n0x0000007000  0x0000003000  +\n";
        let whole = written(&dir, "whole", &[(2, Rescued), (1, Lost), (3, Rescued)], whole);
        let expected = [(0..2, true), (2..3, false), (3..6, true), (6..7, false), (7..10, true)];
        assert_eq!(all(reader(&whole).ok()).unwrap(), expected);
        // A newer one that was cut short comes first, and is completed.
        let newer = written(&dir, "newer", &[(4, Rescued), (1, Lost)], "0x0000005000  0x00");
        reader(&newer).unwrap().complete(reader(&whole).unwrap()).unwrap();
        let expected = [(0..4, true), (4..5, false), (5..6, true), (6..7, false), (7..10, true)];
        assert_eq!(all(reader(&newer).ok()).unwrap(), expected);
        // As early as can be, and where there is nothing to add.
        let first = written(&dir, "first", &[], "");
        reader(&first).unwrap().complete(reader(&newer).unwrap()).unwrap();
        assert_eq!(all(reader(&first).ok()).unwrap(), expected);
        let before = std::fs::read(&first).unwrap();
        reader(&first).unwrap().complete(reader(&cut).unwrap()).unwrap();
        assert_eq!(std::fs::read(&first).unwrap(), before);
    }

    #[test]
    fn what_is_no_map_of_it_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let kind = |more: &str| {
            let path = written(&dir, "map", &[(2, Area::Rescued)], more);
            all(Some(reader(&path).unwrap())).map_err(|e| e.kind())
        };
        for line in [
            "nonsense\n",
            "0x0000003000  0x0000001000  +\n",
            "0x0000001000  0x0000001000  +\n",
            "0x0000002000  0x0000000000  +\n",
            "0x0000002000  0x0000000200  +\n",
            "0x0000002000  0x0000009000  +\n",
            "0x0000002000  0xFFFFFFFFFFFFF000  +\n",
            "0x0000002000  0x0000001000  !\n",
            "0x0000002000  0x0000001000\n",
        ] {
            assert_eq!(kind(line), Err(Kind::Usage), "{line:?}");
        }
        // Nothing is read without end.
        let long = "0".repeat(4 * LONGEST as usize);
        assert_eq!(kind(&long), Ok(vec![(0..2, true), (2..10, false)]));

        let path = written(&dir, "map", &[], "");
        let text = std::fs::read_to_string(&path).unwrap();
        for (from, to) in [("lacuna", "ddrescue"), ("Disk: one", "Disk: two"), ("Image: one", "Image: two")] {
            std::fs::write(&path, text.replace(from, to)).unwrap();
            let refused = reader(&path).err().unwrap();
            assert_eq!(refused.kind(), Kind::Usage);
            assert!(refused.to_string().contains("map"), "{refused}");
        }
        std::fs::write(&path, "").unwrap();
        assert!(reader(&path).is_err());
    }

    #[test]
    fn a_map_whose_first_lines_are_cut_short_counts_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(&dir, "map.new", &[], "");
        let text = std::fs::read(&path).unwrap();
        let status = text.windows(3).position(|bytes| bytes == b"\n0x").unwrap() + 1;
        let head = status + text[status..].iter().position(|byte| *byte == b'\n').unwrap();
        let torn = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            is_torn(&File::open(&path).unwrap(), &of()).unwrap()
        };
        for len in 0..text.len() {
            assert_eq!(torn(&text[..len]), len <= head, "{len}");
            // What was cut off, and more, may be zeros.
            assert_eq!(torn(&[&text[..len], &[0; 5000]].concat()), len <= head, "{len}");
        }
        let words = String::from_utf8(text).unwrap();
        for mine in
            ["mine", "# Mapfile", &words[..60].replace("lacuna", "ddrescue"), &words.replace("one", "two")]
        {
            let is_begun = mine == "# Mapfile";
            assert_eq!(torn(mine.as_bytes()), is_begun, "{mine}");
            let refused = reader(&path).err().unwrap().to_string();
            assert!(refused.contains("map.new` and give the command again"), "{refused}");
        }
        assert!(!torn(&[&words.as_bytes()[..20], &[0; 20], b"mine"].concat()) && !torn(&[0; BEGUN + 1]));
    }
}
