//! The constants of a format.

use crate::backing::BackingKind;
use lacuna_header::FormatId;

/// The constants of a format.
#[derive(Clone, Copy, Debug)]
pub struct FormatInfo {
    /// Its number in headers. The number determines whether disks of the format may have levels
    /// ([`FormatId::has_levels`]).
    pub id: FormatId,
    /// Its name, for display and for programs.
    pub name: &'static str,
    /// The backing of its disks.
    pub rests_on: BackingKind,
    /// Whether its disks erase deleted data, and can be purged.
    pub forgets: bool,
    /// Whether its disks use large blocks of memory while they are open.
    pub large_memory: bool,
    /// A summary in one line, without a full stop.
    pub summary: &'static str,
    /// The backings on which [`create`](crate::create()) makes its disks. Empty for a format that
    /// `create` does not accept: vaults have a function of their own, and a disk of the format
    /// sealed that is made in a pool gets the format sealed on objects.
    pub made_on: &'static [BackingKind],
    /// The settings of [`Shape`](crate::Shape) that it accepts, by field name; all other settings
    /// are refused.
    pub settings: &'static [&'static str],
}

impl FormatInfo {
    /// The constants of a format without special properties, with disks made on their own backing.
    pub const fn of(id: FormatId, name: &'static str, rests_on: BackingKind) -> FormatInfo {
        FormatInfo {
            id,
            name,
            rests_on,
            forgets: false,
            large_memory: false,
            summary: "",
            made_on: match rests_on {
                BackingKind::File => &[BackingKind::File],
                BackingKind::Directory => &[BackingKind::Directory],
                BackingKind::Flash => &[BackingKind::Flash],
                BackingKind::Pool => &[BackingKind::Pool],
            },
            settings: &[],
        }
    }

    /// Whether its disks may have levels.
    pub const fn has_levels(&self) -> bool {
        self.id.has_levels()
    }

    /// Whether it is the format of vaults, which are file systems in a directory and not disks.
    pub const fn is_of_vaults(&self) -> bool {
        matches!(self.rests_on, BackingKind::Directory)
    }

    /// Whether the medium of the header also holds the data of a disk.
    pub const fn has_data_beside_header(&self) -> bool {
        matches!(self.rests_on, BackingKind::File)
    }

    /// Whether another client of a cluster can take over a disk.
    pub const fn is_shared(&self) -> bool {
        matches!(self.rests_on, BackingKind::Pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::FORMATS;

    #[test]
    fn what_a_format_rests_on_says_what_it_is_of() {
        let is = |question: fn(&FormatInfo) -> bool| {
            let infos = FORMATS.iter().map(|format| format.info()).filter(question);
            infos.map(|info| info.name).collect::<Vec<_>>()
        };
        assert_eq!(is(FormatInfo::is_of_vaults), ["vault"]);
        assert_eq!(is(FormatInfo::is_shared), ["sealed on objects"]);
        assert_eq!(is(FormatInfo::has_data_beside_header), ["sealed", "deniable", "oblivious"]);
    }
}
