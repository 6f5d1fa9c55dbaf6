//! Properties that follow from the parameters of a disk in any format.

use crate::format::Params;
use crate::human_size;
use lacuna_contracts::{Action, BLOCK_SIZE, Error, Hint, Kind, Result, shell_word};
use lacuna_header::{HEADER_LEN, Location, medium_len};

impl dyn Params + '_ {
    /// Whether the format has levels, regardless of the number of levels.
    pub fn has_levels(&self) -> bool {
        self.format().info().has_levels()
    }

    /// Whether they belong to a vault, which is not a disk.
    pub fn is_vault(&self) -> bool {
        self.format().info().is_vault()
    }

    /// Whether the medium of the header also holds the data.
    pub fn has_data_beside_header(&self) -> bool {
        self.format().info().has_data_beside_header()
    }

    /// Whether the disk can grow, and its medium is extended then.
    pub fn grows_on_medium(&self) -> bool {
        let disk = self.describe();
        self.has_data_beside_header() && disk.max_size > disk.size
    }

    /// The least length of a medium for the disk and all copies of its header.
    pub fn medium_len(&self) -> u64 {
        medium_len(self.end())
    }

    /// Refuses a file or device of `len` bytes at `location` that is shorter than the disk; the
    /// error gives the former length.
    pub fn check_length(&self, len: u64, location: &Location) -> Result<()> {
        if len >= self.end() {
            return Ok(());
        }
        if len == HEADER_LEN as u64 && !location.is_block_device() {
            return Err(Error::new(Kind::Corrupt, format!("{location} is not a disk"))
                .found("a file as long as a backup of a header")
                .expected("the disk of that header")
                .hint(
                    Hint::from(Action("header::check"))
                        .text(" tests a backup, ")
                        .action(Action("header::restore"))
                        .text(" takes it; if it was a disk, restore the disk from a backup"),
                ));
        }
        let whole = self.medium_len();
        let zeros = "the remaining data be read; missing data reads as zeros, which `check` does not report";
        let longer = if location.is_block_device() {
            format!("a longer device, of {whole} bytes with the same beginning, lets {zeros}")
        } else {
            format!("`truncate -s {whole} {}` lets {zeros}", shell_word(location.to_string()))
        };
        Err(Error::new(Kind::Corrupt, format!("{location} was cut short by {} bytes", whole - len))
            .found(format!("{len} bytes"))
            .expected(format!("at least {} bytes", self.end()))
            .hint(
                Hint::from("restore it whole from a backup; if there is none, ")
                    .action(Action("rescue"))
                    .text(format!(" copies the remaining data, or {longer}")),
            ))
    }

    /// Refuses a number of levels, including level 0, above the format's maximum.
    pub fn check_levels(&self, levels: usize) -> Result<()> {
        let most = 1 + self.describe().hidden_sizes.map_or(0, |sizes| sizes.len());
        if levels <= most {
            return Ok(());
        }
        Err(Error::new(Kind::Usage, "too many levels")
            .found(format!("{levels} levels"))
            .expected(format!("at most {most} on a disk of this format and shape, level 0 among them")))
    }

    /// Refuses a new number of blocks. Errors: [`Kind::Usage`] for fewer blocks than the disk has,
    /// or more than it can have.
    pub(crate) fn check_growth(&self, blocks: u64) -> Result<()> {
        let wanted = blocks.saturating_mul(BLOCK_SIZE as u64);
        let refused =
            || Error::new(Kind::Usage, "cannot resize the disk").found(format!("a size of {wanted} bytes"));
        if self.is_vault() {
            return Err(
                refused().expected("a disk: a vault has no size, it grows and shrinks with its files")
            );
        }
        let disk = self.describe();
        if wanted < disk.size {
            return Err(refused()
                .expected(format!("at least its present size, {} bytes", disk.size))
                .hint("a disk cannot shrink: create a smaller one and copy your data"));
        }
        if wanted > disk.max_size {
            let (most, limit) = (disk.max_size, disk.max_size_reason);
            return Err(refused()
                .expected(format!("at most {} ({most} bytes): {limit}", human_size(most)))
                .hint("create a larger disk and copy your data"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_crypto::Cipher;
    use lacuna_sealed::Params as SealedParams;
    use lacuna_sealed_objects::{ObjectLayout, ObjectParams};

    #[test]
    fn a_disk_grows_within_its_map_and_never_shrinks() {
        let flat = SealedParams::plan(Cipher::Gcm, 16384, None).unwrap();
        let old: &dyn Params = &flat;
        let most = old.describe().max_size / BLOCK_SIZE as u64;
        for good in [16384, 50_000, most] {
            old.check_growth(good).unwrap();
            let grown = SealedParams::parse(&old.resized_to(good).encode()).unwrap();
            assert_eq!(grown, SealedParams { blocks: good, ..flat });
        }
        for bad in [16383, most + 1, u64::MAX / BLOCK_SIZE as u64] {
            assert_eq!(old.check_growth(bad).unwrap_err().kind(), Kind::Usage);
        }
        let objects = ObjectParams::plan(Cipher::Gcm, ObjectLayout::Kv, 5000).unwrap();
        let (objects, most): (&dyn Params, u64) = (&objects, 1 << 32);
        assert!(objects.check_growth(most).is_ok());
        for bad in [4999, most + 1, u64::MAX / BLOCK_SIZE as u64] {
            assert_eq!(objects.check_growth(bad).unwrap_err().kind(), Kind::Usage);
        }
        assert!(old.grows_on_medium() && !objects.grows_on_medium());
        assert!(!old.resized_to(old.describe().max_size / BLOCK_SIZE as u64).grows_on_medium());
    }
}
