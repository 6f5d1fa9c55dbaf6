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
    pub backing_kind: BackingKind,
    /// Whether its disks erase deleted data, and can be purged.
    pub can_purge: bool,
    /// Whether its disks keep large blocks of memory while they are open.
    pub uses_large_memory: bool,
    /// Whether its disks hold acknowledged writes in memory that outlives a server, where a keeper
    /// holds it.
    pub keeps_writes: bool,
    /// A summary in one line, without a full stop.
    pub summary: &'static str,
    /// The backings on which [`create`](crate::create()) makes its disks. Empty for a format that
    /// `create` does not accept: vaults have a function of their own, and a disk of the format
    /// sealed that is made in a pool gets the format sealed on objects.
    pub creatable_on: &'static [BackingKind],
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
            backing_kind: rests_on,
            can_purge: false,
            uses_large_memory: false,
            keeps_writes: false,
            summary: "",
            creatable_on: match rests_on {
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
    pub const fn is_vault(&self) -> bool {
        matches!(self.backing_kind, BackingKind::Directory)
    }

    /// Whether the medium of the header also holds the data of a disk.
    pub const fn has_data_beside_header(&self) -> bool {
        matches!(self.backing_kind, BackingKind::File)
    }

    /// Whether its disks are in a pool of a cluster, where a client library allocates memory for
    /// the data of each request.
    pub const fn is_in_pool(&self) -> bool {
        matches!(self.backing_kind, BackingKind::Pool)
    }

    /// Whether another client of a cluster can take over a disk.
    pub const fn can_be_taken_over(&self) -> bool {
        matches!(self.backing_kind, BackingKind::Pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::FORMATS;

    #[test]
    fn the_backing_kind_determines_the_properties_of_a_format() {
        let is = |question: fn(&FormatInfo) -> bool| {
            let infos = FORMATS.iter().map(|format| format.info()).filter(question);
            infos.map(|info| info.name).collect::<Vec<_>>()
        };
        assert_eq!(is(FormatInfo::is_vault), ["vault"]);
        assert_eq!(is(FormatInfo::is_in_pool), ["sealed on objects"]);
        assert_eq!(is(FormatInfo::can_be_taken_over), ["sealed on objects"]);
        assert_eq!(is(FormatInfo::has_data_beside_header), ["sealed", "deniable", "oblivious"]);
    }
}
