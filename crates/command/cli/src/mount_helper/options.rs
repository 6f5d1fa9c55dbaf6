//! The options of `mount -t lacuna -o …`: options of `open`, options of the mounted file system,
//! and options for mount(8), fstab and systemd only.

use crate::args::Cli;
use crate::terminal::mount_names::{self, OpenOption};
use clap::{Arg, CommandFactory};
use lacuna_storage::{Error, Kind, Result};
use std::path::Path;

/// Options of `open` that are refused as mount options: they would create a file system, or there
/// is another way to give them.
const NOT_FOR_MOUNT: [&str; 7] = ["mkfs", "force", "mount-options", "level", "key-fd", "help", "json"];

/// Options of mount.lacuna that are not those of `open`.
const OWN: [&str; 5] = ["keyfile", "credential", "level1", "level2", "level3"];
/// The fewest letters of an option of lacuna that an unknown option is compared with: file systems
/// have options that look like shorter ones.
const COMPARED: usize = 4;
/// An option of lacuna with this number of letters may have two wrong ones, a shorter one has one.
const LONG: usize = 8;

/// Options between mount(8), libmount and systemd, which helpers ignore.
const IGNORED: [&str; 15] = [
    "defaults",
    "auto",
    "noauto",
    "user",
    "users",
    "nouser",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "comment",
    "helper",
    "uhelper",
    "loop",
    // The default of every mount; libmount adds it for users.
    "symfollow",
];

/// A parsed list of mount options.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct MountOptions {
    /// Options of `open`.
    pub open_args: Vec<String>,
    /// Mount points of the hidden levels, starting at level 1.
    pub level_mountpoints: Vec<String>,
    /// Options that are passed to the file system.
    pub fs_options: Vec<String>,
    /// Whether the mount is read-only.
    pub read_only: bool,
    /// Whether the disk is mounted as a file.
    pub raw: bool,
    /// Whether an option gives a source of the passphrase.
    pub has_key_source: bool,
}

impl MountOptions {
    /// Parses lists of options. Commas within double quotes do not separate.
    ///
    /// Errors: [`Kind::Usage`] for an option that is not supported.
    pub(crate) fn parse<'l>(lists: impl Iterator<Item = &'l str>) -> Result<MountOptions> {
        let known = open_options();
        let mut options = MountOptions::default();
        for option in lists.flat_map(split) {
            let (name, value) = option.split_once('=').map_or((&option[..], None), |(n, v)| (n, Some(v)));
            options.take(name, value, &known)?;
        }
        Ok(options)
    }

    fn take(&mut self, name: &str, value: Option<&str>, known: &[OpenOption]) -> Result<()> {
        if IGNORED.contains(&name) || name.starts_with("x-") || name.starts_with("X-") {
            return Ok(());
        }
        let long = mount_names::to_long(name);
        match (name, value) {
            ("remount", _) => return Err(no_remount()),
            ("rw", None) => {
                self.read_only = false;
                return Ok(());
            }
            ("level1" | "level2" | "level3", Some(at)) => return self.level(name, at),
            ("credential", Some(name)) => {
                self.has_key_source = true;
                self.open_args.push(format!("--key-file={}", credential(name)?));
                return Ok(());
            }
            _ => {}
        }
        if NOT_FOR_MOUNT.contains(&&long[..]) {
            return Err(refused(name)
                .expected("options that mount an existing file system")
                .hint(format!("leave it out; `lacuna open` has it as --{long}")));
        }
        let Some(option) = known.iter().find(|option| option.is_for_mount && option.long == long) else {
            if let Some(meant) = meant(name, known) {
                return Err(refused(name)
                    .expected("an option of lacuna or of the file system")
                    .hint(format!("did you mean {meant}?")));
            }
            self.fs_options.push(match value {
                // The kernel splits its list at commas too.
                Some(value) if value.contains(',') => format!("{name}=\"{value}\""),
                Some(value) => format!("{name}={value}"),
                None => name.to_owned(),
            });
            return Ok(());
        };
        let takes = option.takes_value;
        if takes != value.is_some() {
            return Err(refused(name).expected(if takes { "a value after =" } else { "no value" }));
        }
        self.read_only |= long == "read-only";
        self.raw |= long == "raw";
        self.has_key_source |= ["key-file", "askpass"].contains(&&long[..]);
        if long != "read-only" {
            self.open_args.push(match value {
                Some(value) => format!("--{long}={value}"),
                None => format!("--{long}"),
            });
        }
        Ok(())
    }

    /// The ID that the disk or vault must have, if the options give one.
    pub(crate) fn expected(&self) -> Option<&str> {
        self.open_args.iter().find_map(|word| word.strip_prefix("--expect="))
    }

    fn level(&mut self, name: &str, at: &str) -> Result<()> {
        self.level_mountpoints.push(at.to_owned());
        if name == format!("level{}", self.level_mountpoints.len()) {
            return Ok(());
        }
        Err(refused(name).expected(format!("the options level1 to {name}, in this order")))
    }
}

/// The option of lacuna, in the form of fstab, that an unknown one misspells.
fn meant(name: &str, known: &[OpenOption]) -> Option<String> {
    let known = known.iter().filter(|option| option.is_for_mount);
    let known = known.map(|option| option.long.replace('-', "_"));
    let all = OWN.iter().map(|own| (*own).to_owned()).chain(known);
    let wrong = |option: &String| strsim::damerau_levenshtein(option, name);
    let most = |option: &String| 1 + usize::from(option.len() >= LONG);
    all.filter(|option| option.len() >= COMPARED && wrong(option) <= most(option)).min_by_key(wrong)
}

fn refused(name: &str) -> Error {
    Error::new(Kind::Usage, "cannot mount").found(format!("the option {name}"))
}

fn no_remount() -> Error {
    Error::new(Kind::Other, "cannot remount a disk of lacuna")
        .expected("options that can be changed while it is open")
        .hint(
            "unmount it and mount it again; options of the file system itself change with `mount -i -o remount,OPTIONS \
             DIRECTORY`",
        )
}

/// The path of a credential that systemd passes to the unit.
fn credential(name: &str) -> Result<String> {
    let plain = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
    match std::env::var("CREDENTIALS_DIRECTORY") {
        Ok(dir) if plain => Ok(Path::new(&dir).join(name).display().to_string()),
        Ok(_) => Err(refused("credential").expected("the name of a credential, without slashes")),
        Err(_) => Err(refused("credential")
            .expected("to be run by a unit of systemd that has credentials, which sets CREDENTIALS_DIRECTORY")
            .hint("give LoadCredentialEncrypted= in the unit, or mount with keyfile=PATH")),
    }
}

/// The long options of `open`.
pub(crate) fn open_options() -> Vec<OpenOption> {
    let cli = Cli::command();
    let open = cli.find_subcommand("open").map(|open| open.get_arguments().collect::<Vec<&Arg>>());
    let option = |arg: &Arg| {
        let long = arg.get_long()?;
        let (takes_value, is_for_mount) = (arg.get_action().takes_values(), !NOT_FOR_MOUNT.contains(&long));
        Some(OpenOption { long: long.to_owned(), takes_value, is_for_mount })
    };
    open.into_iter().flatten().filter_map(option).collect()
}

/// The options of a list, without the quotes around values.
fn split(list: &str) -> Vec<String> {
    let (mut options, mut option, mut quoted) = (Vec::new(), String::new(), false);
    for letter in list.chars() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => options.push(std::mem::take(&mut option)),
            other => option.push(other),
        }
    }
    options.push(option);
    options.retain(|option| !option.is_empty());
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<MountOptions> {
        MountOptions::parse([list].into_iter())
    }

    #[test]
    fn mount_options_are_sorted_by_recipient() {
        let list = "rw,noauto,nofail,_netdev,user,x-systemd.automount,X-mount.mkdir,keyfile=/a,cache=1M,write_through,\
                    noatime,commit=30,ceph_conf=\"/a,b\",level1=/b,level2=/c";
        let options = parse(list).unwrap();
        assert_eq!(options.open_args, ["--key-file=/a", "--cache=1M", "--write-through", "--ceph-conf=/a,b"]);
        assert_eq!(options.fs_options, ["noatime", "commit=30"]);
        assert_eq!(options.level_mountpoints, ["/b", "/c"]);
        assert!(options.has_key_source && !options.read_only && !options.raw);
        let options = parse("ro,raw,foreground").unwrap();
        assert!(options.read_only && options.raw && !options.has_key_source);
        assert_eq!(options.open_args, ["--raw", "--foreground"]);
        assert_eq!(parse(",").unwrap(), MountOptions::default());
        let options = parse("cache=1M,expect=9564c49adcf33557307745630aa5f7ce").unwrap();
        assert_eq!(options.expected(), Some("9564c49adcf33557307745630aa5f7ce"));
        assert!(options.fs_options.is_empty() && parse("ro").unwrap().expected().is_none());
        let quoted = "context=\"system_u:object_r:tmp_t:s0:c1,c2\"";
        assert_eq!(parse(&format!("{quoted},symfollow,noexec")).unwrap().fs_options, [quoted, "noexec"]);
        assert!(parse("rw,ro").unwrap().read_only && !parse("ro,rw").unwrap().read_only);
    }

    #[test]
    fn unsupported_options_are_refused() {
        for list in ["keyfile", "raw=1", "level2=/c", "level1=/a,level3=/b", "credential=x"] {
            assert_eq!(parse(list).unwrap_err().kind(), Kind::Usage, "{list}");
        }
        let e = parse("remount,ro").unwrap_err().to_string();
        assert!(e.contains("cannot remount") && e.contains("unmount it and mount it again"), "{e}");
        for list in ["mkfs=ext4", "force", "key_fd=3", "json", "level=1", "mount_options=noatime"] {
            let e = parse(list).unwrap_err();
            assert!(e.kind() == Kind::Usage && e.to_string().contains("leave it out"), "{list}");
        }
    }

    #[test]
    fn a_misspelt_option_is_not_passed_to_the_file_system() {
        for (option, meant) in [
            ("keyfil=/k", "keyfile"),
            ("keyfiel=/k", "keyfile"),
            ("credentail=k", "credential"),
            ("level4=/c", "level1"),
            ("cach=1M", "cache"),
            ("idle_timout=5m", "idle_timeout"),
            ("write-trough", "write_through"),
            ("allowother", "allow_other"),
        ] {
            let e = parse(option).unwrap_err();
            let said = e.to_string();
            assert!(e.kind() == Kind::Usage && said.ends_with(&format!("did you mean {meant}?")), "{said}");
        }
        // Options of mount(8) and of file systems.
        let passed = "async,sync,atime,noatime,dirsync,relatime,lazytime,exec,noexec,dev,nodev,suid,nosuid,acl,noacl,barrier,\
                      nobarrier,commit=5,data=ordered,dax,delalloc,discard,nodiscard,errors=remount-ro,grpid,iversion,mand,\
                      norecovery,nouid32,quota,usrquota,resuid=1,resgid=1,sb=1,stripe=8,user_xattr,compress=zstd,degraded,\
                      device=/dev/a,space_cache=v2,ssd,subvol=a,subvolid=5,thread_pool=4,uid=1,gid=1,umask=22,fmask=1,dmask=1,\
                      codepage=437,iocharset=utf8,utf8,quiet,inode64,inode32,allocsize=1m,logbufs=8,logbsize=64k,largeio,\
                      nodiratime,nosymfollow,context=a,sunit=1,swidth=1,wsync,mode=lfs,active_logs=6,extent_cache,inline_data";
        let count = passed.split(',').count();
        assert_eq!(parse(passed).unwrap().fs_options.len(), count);
    }
}
