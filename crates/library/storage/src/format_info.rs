//! The constants of a format.

use crate::backing::BackingKind;
use lacuna_header::FormatId;

/// The constants of a format.
#[derive(Clone, Copy, Debug)]
pub struct FormatInfo {
    /// The number that stands for it in headers. It decides whether disks of the format may have
    /// levels ([`FormatId::has_levels`]).
    pub id: FormatId,
    /// Its name, for people and programs.
    pub name: &'static str,
    /// What its disks rest on.
    pub rests_on: BackingKind,
    /// Whether its disks forget what was deleted, and can be purged.
    pub forgets: bool,
    /// Whether its disks keep large blocks of memory for as long as they are open.
    pub large_memory: bool,
    /// The format in one line, without a full stop.
    pub summary: &'static str,
    /// What [`create`](crate::create()) makes its disks on. Nothing of a format that `create` is
    /// not asked for: vaults have a function of their own, and the disk that is made for the format
    /// sealed in a pool is one of the format sealed on objects.
    pub made_on: &'static [BackingKind],
    /// The settings of [`Shape`](crate::Shape) that it has, by the names of the fields; others are
    /// refused.
    pub settings: &'static [&'static str],
}

impl FormatInfo {
    /// Those of a format that has nothing special, and whose disks are made on what they rest on.
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

    /// Whether its disks may have levels, however many there are.
    pub const fn has_levels(&self) -> bool {
        self.id.has_levels()
    }

    /// Whether it is of vaults, which are file systems in a directory, and not of disks.
    pub const fn is_of_vaults(&self) -> bool {
        matches!(self.rests_on, BackingKind::Directory)
    }

    /// Whether the medium of the header holds the data of a disk as well.
    pub const fn has_data_beside_header(&self) -> bool {
        matches!(self.rests_on, BackingKind::File)
    }

    /// Whether another client of a cluster can take a disk over.
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
