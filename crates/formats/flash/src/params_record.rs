//! The encoding of the parameters in the header. A test compares it with `docs/format/flash.md`.

use crate::params::Params;
use lacuna_contracts::{Error, Kind, LeReader, LeWriter, Result};
use lacuna_nand::FlashGeometry;

/// Bytes of the parameters in the header.
pub const PARAMS_LEN: usize = 40;
/// The version of the format.
pub const VERSION: u32 = 1;

impl Params {
    /// Encodes the parameters for the header.
    pub fn encode(&self) -> [u8; PARAMS_LEN] {
        let mut bytes = [0; PARAMS_LEN];
        let mut record = LeWriter(&mut bytes);
        record.u32(0, VERSION);
        record.u32(4, u32::from(self.key_len));
        record.u64(8, self.blocks);
        record.u32(16, self.flash.page);
        record.u32(20, self.flash.leb_len);
        record.u32(24, self.flash.lebs);
        record.u64(28, self.most_blocks);
        bytes
    }

    /// Decodes the parameters of a header.
    ///
    /// Errors: [`Kind::NotFound`] for a version unknown to this build, [`Kind::Corrupt`] for
    /// impossible parameters.
    pub fn parse(bytes: &[u8]) -> Result<Params> {
        let corrupt = |found: String| {
            Error::new(Kind::Corrupt, "the parameters of the disk are invalid")
                .found(found)
                .hint("restore the header from a backup")
        };
        let bytes: &[u8; PARAMS_LEN] =
            bytes.try_into().map_err(|_| corrupt(format!("{} bytes", bytes.len())))?;
        let record = LeReader(bytes);
        let version = record.u32(0);
        if version != VERSION {
            return Err(Error::new(Kind::NotFound, "cannot use this disk on flash")
                .found(format!("version {version} of its format"))
                .expected(format!("version {VERSION}"))
                .hint("use a version of lacuna that knows it"));
        }
        let key_len =
            u8::try_from(record.u32(4)).map_err(|_| corrupt(format!("keys of {} bytes", record.u32(4))))?;
        if bytes[36..].iter().any(|byte| *byte != 0) {
            return Err(corrupt("bytes that are not zero where they should be".into()));
        }
        let flash = FlashGeometry { page: record.u32(16), leb_len: record.u32(20), lebs: record.u32(24) };
        let params = Params { blocks: record.u64(8), most_blocks: record.u64(28), key_len, flash };
        params.layout().map_err(|e| e.with_kind(Kind::Corrupt))?;
        Ok(params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_round_trip_and_altered_ones_are_refused() {
        let flash = FlashGeometry { page: 2048, leb_len: 124 * 1024, lebs: 1000 };
        let params = Params::fitting(flash, 32, 70).unwrap();
        let bytes = params.encode();
        assert_eq!(Params::parse(&bytes).unwrap(), params);
        assert_eq!(Params::parse(&bytes[..39]).unwrap_err().kind(), Kind::Corrupt);
        for (at, value, kind) in
            [(0, 2, Kind::NotFound), (4, 24, Kind::Corrupt), (16, 3, Kind::Corrupt), (38, 1, Kind::Corrupt)]
        {
            let mut altered = bytes;
            altered[at] = value;
            assert_eq!(Params::parse(&altered).unwrap_err().kind(), kind, "{at}");
        }
        let none = Params { flash: FlashGeometry { page: 0, ..flash }, ..params };
        assert_eq!(Params::parse(&none.encode()).unwrap_err().kind(), Kind::Corrupt);
    }
}
