//! What to do about an error, in words that name settings by type: a program reads the library's names of them, and a
//! command puts its options there.

use std::borrow::Cow;
use std::fmt;

/// Something that a program sets when it uses the library, and a person with an option of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Setting {
    /// The user's name in the Ceph cluster.
    CephId,
    /// Ceph's configuration file.
    CephConf,
    /// What trying a passphrase costs.
    Cost,
    /// How long something hidden waits for cover.
    CoverTimeout,
    /// Whether what is there already may be overwritten.
    Force,
    /// How many slots a stripe of a `deniable` disk has.
    Geometry,
    /// Where the metadata of blocks is kept.
    Layout,
    /// The type of the file system that is made on a blank disk.
    Mkfs,
    /// More options for mounting.
    MountOptions,
    /// The namespace in the pool.
    Namespace,
    /// Whether an older header may be brought back.
    Older,
    /// Whether a file system is made over data of no known kind.
    Overwrite,
    /// Whether a disk is mounted as a file alone.
    Raw,
    /// Whether writes are refused.
    ReadOnly,
    /// Whether the header of another disk may be overwritten.
    Replace,
    /// The length of a disk.
    Size,
    /// Whether another client is shut out of a disk that it has open.
    Steal,
    /// How long an answer of the cluster may take.
    Timeout,
    /// The way in which a file system is mounted.
    Via,
}

/// Gives names to settings.
pub type Naming = fn(Setting) -> Cow<'static, str>;

impl Setting {
    /// As the library shows it: its name in quotes.
    pub fn quoted(self) -> Cow<'static, str> {
        format!("`{}`", self.name()).into()
    }

    /// What the library calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Setting::CephId => "ceph_id",
            Setting::CephConf => "ceph_conf",
            Setting::Cost => "cost",
            Setting::CoverTimeout => "cover_timeout",
            Setting::Force => "force",
            Setting::Geometry => "geometry",
            Setting::Layout => "layout",
            Setting::Mkfs => "mkfs",
            Setting::MountOptions => "mount_options",
            Setting::Namespace => "namespace",
            Setting::Older => "older",
            Setting::Overwrite => "overwrite",
            Setting::Raw => "raw",
            Setting::ReadOnly => "read_only",
            Setting::Replace => "replace",
            Setting::Size => "size",
            Setting::Steal => "steal",
            Setting::Timeout => "timeout",
            Setting::Via => "via",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Cow<'static, str>),
    Setting(Setting),
}

/// A sentence that says what to do.
///
/// ```
/// use lacuna_core::{Advice, Setting};
/// let advice = Advice::from("open it without ").setting(Setting::ReadOnly);
/// assert_eq!(advice.to_string(), "open it without `read_only`");
/// assert_eq!(advice.named(|_| "--read-only".into()), "open it without --read-only");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advice(Vec<Part>);

impl Advice {
    /// Goes on with the name of a setting.
    pub fn setting(mut self, setting: Setting) -> Advice {
        self.0.push(Part::Setting(setting));
        self
    }

    /// Goes on with these words.
    pub fn text(mut self, text: impl Into<Cow<'static, str>>) -> Advice {
        self.0.push(Part::Text(text.into()));
        self
    }

    /// The sentence, with the names that `name` gives to settings.
    pub fn named(&self, name: impl Fn(Setting) -> Cow<'static, str>) -> String {
        let word = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Setting(setting) => name(*setting),
        };
        self.0.iter().map(word).collect()
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.named(Setting::quoted))
    }
}

impl From<&'static str> for Advice {
    fn from(text: &'static str) -> Advice {
        Advice::default().text(text)
    }
}

impl From<String> for Advice {
    fn from(text: String) -> Advice {
        Advice::default().text(text)
    }
}
