//! Reads the map of earlier runs of a rescue: the areas of the image.
//!
//! Invariants: a truncated line is ignored, and so is a map with truncated first lines. A map of
//! another disk or image, and a file that is not a map, is refused with its name. Every area that
//! the map does not list as rescued is missing, whatever its status.

use crate::verbs::rescue::map::{self, MADE_BY};
use lacuna_storage::{BLOCK_SIZE, Error, Hint, Kind, Result, Setting, printable, shell_word};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Maximum length of a line of a map, in bytes.
const LONGEST: u64 = 256;
/// Maximum length of a file that may be the beginning of a map, in bytes.
const MAX_TORN_LEN: usize = 1 << 16;
/// Suffix of the map of a later run, until that map is complete.
pub(crate) const OF_LATER_RUN: &str = "new";

/// Whether a file holds only a prefix of the first lines of a map, as a power cut leaves it:
/// trailing bytes of that prefix may be zeros. `of`: the lines of a map of this disk and this
/// image.
pub(crate) fn is_torn(file: &File, of: &[String; 2]) -> io::Result<bool> {
    let len = file.metadata()?.len();
    if len > MAX_TORN_LEN as u64 {
        return Ok(false);
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0)?;
    let written = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    if bytes[written..].iter().any(|byte| *byte != 0) {
        return Ok(false);
    }
    // The version may differ, and so may the text after these prefixes.
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

/// Iterates over the areas of a disk.
pub(crate) struct RescueAreas {
    /// The map with the areas, until its end is reached.
    map: Option<MapReader>,
    /// Start of the next area.
    at: u64,
    /// Length of the disk.
    len: u64,
}

impl RescueAreas {
    /// The areas of a disk of `len` bytes. Without a map the whole disk is missing.
    pub(crate) fn of(map: Option<MapReader>, len: u64) -> RescueAreas {
        RescueAreas { map, at: 0, len }
    }

    /// The range of the next area in bytes, and whether it is in the image. `None` at the end of
    /// the disk.
    ///
    /// Errors: [`Kind::Usage`] for a file that is not a map, and errors of the system.
    pub(crate) fn next_area(&mut self) -> Result<Option<(Range<u64>, bool)>> {
        while let Some(map) = &mut self.map {
            match map.next_area()? {
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

/// A reader of a map.
pub(crate) struct MapReader {
    lines: BufReader<File>,
    path: PathBuf,
    /// Total length of the complete lines read so far, in bytes.
    read: u64,
    /// End of the last area that was read.
    end: u64,
    /// Length of the disk in bytes.
    len: u64,
}

impl MapReader {
    /// Opens a map. `of`: the lines of a map of this disk, which has `len` bytes, and of this
    /// image.
    ///
    /// Errors: [`Kind::Usage`] for a map of another disk or image, and for a file that is not a map
    /// of `lacuna rescue`.
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
                // The status line. The areas give the progress, so its content is ignored.
                Some(_) => return Ok(map),
                None => return Err(map.refused().found("a map without a status")),
            }
        }
    }

    /// Completes a truncated map with the areas of the map `before` it. If a crash interrupts this,
    /// the map is again a truncated one.
    ///
    /// Errors: those of [`RescueAreas::next_area`].
    pub(crate) fn complete(mut self, before: MapReader) -> Result<()> {
        while self.next_area()?.is_some() {}
        let path = self.path;
        let failed = |e: io::Error| Error::io(format!("cannot write to {}", path.display()), &e);
        let mut file = self.lines.into_inner();
        // Removes a truncated last line.
        file.set_len(self.read).map_err(failed)?;
        file.seek(SeekFrom::Start(self.read)).map_err(failed)?;
        let mut areas = RescueAreas { map: Some(before), at: self.end, len: self.len };
        let mut out = BufWriter::new(&file);
        while let Some((bytes, is_there)) = areas.next_area()? {
            let status = if is_there { '+' } else { '?' };
            let line = map::line(bytes.start, bytes.end - bytes.start, status);
            out.write_all(line.as_bytes()).map_err(failed)?;
        }
        out.flush().map_err(failed)?;
        file.sync_all().map_err(failed)
    }

    /// The end of the next area, and whether it is in the image.
    fn next_area(&mut self) -> Result<Option<(u64, bool)>> {
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

    /// The next complete line.
    fn line(&mut self) -> Result<Option<String>> {
        let mut line = Vec::new();
        let read = self.lines.by_ref().take(LONGEST).read_until(b'\n', &mut line);
        read.map_err(|e| Error::io(format!("cannot read {}", self.path.display()), &e))?;
        let Some(whole) = line.strip_suffix(b"\n") else { return Ok(None) };
        self.read += line.len() as u64;
        Ok(Some(String::from_utf8_lossy(whole).into_owned()))
    }

    fn refused(&self) -> Error {
        let error = Error::new(Kind::Usage, format!("cannot continue with the map {}", self.path.display()));
        if self.path.extension().is_some_and(|end| end == OF_LATER_RUN) {
            return error.hint(format!(
                "if a run that was cut short left it, `rm {}` and give the command again: what {} calls rescued stays so",
                shell_word(&self.path),
                self.path.with_extension("").display()
            ));
        }
        error.hint(
            Hint::from("choose another target, or begin anew and overwrite this one with ")
                .setting(Setting("force")),
        )
    }
}

/// Parses the line of an area: its start, its end, and whether it is in the image.
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
    use crate::verbs::rescue::map::{AreaStatus, MapFile};

    const BLOCK: u64 = BLOCK_SIZE as u64;
    const LEN: u64 = 10 * BLOCK;

    fn of() -> [String; 2] {
        ["# Disk: one", "# Image: one"].map(str::to_owned)
    }

    /// A map with these areas, in blocks, followed by the text `more`.
    fn written(dir: &tempfile::TempDir, name: &str, areas: &[(u64, AreaStatus)], more: &str) -> PathBuf {
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
        let mut areas = RescueAreas::of(map, LEN);
        let mut all = Vec::new();
        while let Some((bytes, is_there)) = areas.next_area()? {
            all.push((bytes.start / BLOCK..bytes.end / BLOCK, is_there));
        }
        Ok(all)
    }

    #[test]
    fn areas_without_a_rescued_status_are_missing() {
        use AreaStatus::{Lost, Rescued};
        assert_eq!(all(None).unwrap(), [(0..10, false)]);
        let dir = tempfile::tempdir().unwrap();
        // A truncated line is ignored.
        let cut = written(&dir, "cut", &[(2, Rescued), (1, Lost), (3, Rescued)], "0x0000006000  0x00000010");
        let expected = [(0..2, true), (2..3, false), (3..6, true), (6..10, false)];
        assert_eq!(all(reader(&cut).ok()).unwrap(), expected);
        let whole = "# more\n0x0000006000  0x0000001000  /\n0x0000007000  0x0000003000  +\n";
        let whole = written(&dir, "whole", &[(2, Rescued), (1, Lost), (3, Rescued)], whole);
        let expected = [(0..2, true), (2..3, false), (3..6, true), (6..7, false), (7..10, true)];
        assert_eq!(all(reader(&whole).ok()).unwrap(), expected);
        // A newer map that is truncated takes precedence, and is completed.
        let newer = written(&dir, "newer", &[(4, Rescued), (1, Lost)], "0x0000005000  0x00");
        reader(&newer).unwrap().complete(reader(&whole).unwrap()).unwrap();
        let expected = [(0..4, true), (4..5, false), (5..6, true), (6..7, false), (7..10, true)];
        assert_eq!(all(reader(&newer).ok()).unwrap(), expected);
        // A map without areas, and a map that is complete already.
        let first = written(&dir, "first", &[], "");
        reader(&first).unwrap().complete(reader(&newer).unwrap()).unwrap();
        assert_eq!(all(reader(&first).ok()).unwrap(), expected);
        let before = std::fs::read(&first).unwrap();
        reader(&first).unwrap().complete(reader(&cut).unwrap()).unwrap();
        assert_eq!(std::fs::read(&first).unwrap(), before);
    }

    #[test]
    fn a_foreign_map_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let kind = |more: &str| {
            let path = written(&dir, "map", &[(2, AreaStatus::Rescued)], more);
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
        // The length of a line is bounded.
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
    fn a_map_with_truncated_first_lines_is_ignored() {
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
            // The bytes after the cut may be zeros.
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
        assert!(
            !torn(&[&words.as_bytes()[..20], &[0; 20], b"mine"].concat()) && !torn(&[0; MAX_TORN_LEN + 1])
        );
    }
}
