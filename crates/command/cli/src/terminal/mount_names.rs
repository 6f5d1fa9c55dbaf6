//! The names that the options of `open` have for mount(8) and fstab. Messages of the mount helper
//! give these names, because the user typed no other.

use std::sync::OnceLock;

/// Options that mount(8) has under another name, with that name.
const RENAMED: [(&str, &str); 2] = [("read-only", "ro"), ("key-file", "keyfile")];

/// The options of `open`, in a process that mount(8) runs.
static OPTIONS: OnceLock<Vec<OpenOption>> = OnceLock::new();

/// An option of `open`.
pub(crate) struct OpenOption {
    /// The name after the two hyphens.
    pub long: String,
    pub takes_value: bool,
    /// Whether it is also a mount option.
    pub is_for_mount: bool,
}

/// Makes messages name these options as mount(8) does.
pub(crate) fn use_for(options: Vec<OpenOption>) {
    // The program is called once.
    let _first = OPTIONS.set(options);
}

/// Whether this process is a mount helper.
pub(crate) fn are_used() -> bool {
    OPTIONS.get().is_some()
}

/// The mount option for a long option of `open`.
pub(crate) fn of_long(long: &str) -> String {
    let renamed = RENAMED.iter().find(|(option, _)| *option == long);
    renamed.map_or_else(|| long.replace('-', "_"), |(_, name)| (*name).to_owned())
}

/// The long option of `open` for the name of a mount option, which may have hyphens too.
pub(crate) fn to_long(name: &str) -> String {
    let renamed = RENAMED.iter().find(|(_, mount)| *mount == name);
    renamed.map_or_else(|| name.replace('_', "-"), |(option, _)| (*option).to_owned())
}

/// A message with the names that the user of this process knows.
pub(crate) fn in_message(text: String) -> String {
    match OPTIONS.get() {
        Some(options) => renamed(&text, options),
        None => text,
    }
}

/// The message with mount options in the place of options of `open`. Commands in backquotes keep
/// theirs.
fn renamed(text: &str, options: &[OpenOption]) -> String {
    let part = |(at, part): (usize, &str)| match at % 2 {
        1 if !part.starts_with("--") => part.to_owned(),
        quoted => renamed_in(part, quoted == 1, options),
    };
    text.split('`').enumerate().map(part).collect::<Vec<_>>().join("`")
}

/// [`renamed`] for the text between two backquotes, or outside of them.
fn renamed_in(part: &str, is_quoted: bool, options: &[OpenOption]) -> String {
    let (mut out, mut rest) = (String::with_capacity(part.len()), part);
    while let Some(at) = rest.find("--") {
        let (before, found) = rest.split_at(at);
        out.push_str(before);
        let of_flag = |c: char| c == '-' || c.is_ascii_lowercase() || c.is_ascii_digit();
        let (flag, after) = found.split_at(found.find(|c| !of_flag(c)).unwrap_or(found.len()));
        rest = after;
        let is_word = !out.ends_with(char::is_alphanumeric);
        // A message that names the command of the option means that command.
        let option = options.iter().find(|option| is_word && option.long == flag[2..] && after != " of ");
        let Some(option) = option else {
            out.push_str(flag);
            continue;
        };
        let value = if option.takes_value { value_at(after) } else { "" };
        rest = &after[value.len()..];
        if option.is_for_mount {
            out.push_str(&of_long(&option.long));
            if let Some(value) = value.get(1..) {
                out.push('=');
                out.push_str(value.trim_matches(['<', '>']));
            }
        } else {
            out.push_str(flag);
            out.push_str(value);
            if !is_quoted {
                out.push_str(" of `lacuna open`");
            }
        }
    }
    out + rest
}

/// The value at the beginning of the text after an option, with the space or the `=` before it;
/// empty if the next word belongs to the sentence. Values in messages are numbers, have a digit in
/// them, or stand for a value, such as PATH.
fn value_at(after: &str) -> &str {
    let Some(word) = after.strip_prefix([' ', '=']) else { return "" };
    let len = word.find(|c: char| c.is_whitespace() || ",;:()'\"".contains(c)).unwrap_or(word.len());
    let is_value = after.starts_with('=')
        || word.starts_with(|c: char| c == '<' || c.is_ascii_uppercase())
        || word[..len].contains(|c: char| c.is_ascii_digit());
    if is_value { &after[..=len] } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_options_of_mount() {
        let option = |(long, takes_value, is_for_mount): (&str, bool, bool)| OpenOption {
            long: long.to_owned(),
            takes_value,
            is_for_mount,
        };
        let options = [
            ("read-only", false, true),
            ("key-file", true, true),
            ("askpass", true, true),
            ("idle-timeout", true, true),
            ("cover", true, true),
            ("key-fd", true, false),
            ("mkfs", true, false),
            ("level", true, false),
        ]
        .map(option);
        for (text, expected) in [
            ("cannot use --idle-timeout here", "cannot use idle_timeout here"),
            (
                "invalid value 'x' for '--idle-timeout <TIME>': no",
                "invalid value 'x' for 'idle_timeout=TIME': no",
            ),
            (
                "give --key-file PATH, --key-fd N or --askpass CMD",
                "give keyfile=PATH, --key-fd N of `lacuna open` or askpass=CMD",
            ),
            ("each with its own --key-file", "each with its own keyfile"),
            ("open it with --read-only, or unmount it", "open it with ro, or unmount it"),
            ("no cover by itself (--cover 0)", "no cover by itself (cover=0)"),
            ("on a new level give --mkfs ext4", "on a new level give --mkfs ext4 of `lacuna open`"),
            ("`--level 1` mounts it, `--read-only` too", "`--level 1` mounts it, `ro` too"),
        ] {
            assert_eq!(renamed(text, &options), expected);
        }
        // Commands, options that are named with their command, and options of other programs.
        for text in [
            "`lacuna key add DISK --key-file PATH`; give --key-file of `lacuna check`",
            "give a container the device with `--device /dev/fuse`; `blockdev --read-only`",
            "/mnt/a--read-only, --, --read-only-too",
        ] {
            assert_eq!(renamed(text, &options), text);
        }
    }

    #[test]
    fn names_lead_back_to_their_options() {
        for (long, name) in [("key-file", "keyfile"), ("read-only", "ro"), ("idle-timeout", "idle_timeout")] {
            assert_eq!((of_long(long).as_str(), to_long(name).as_str()), (name, long));
        }
        assert_eq!(to_long("key_file"), "key-file");
        // Without the helper, messages stay as they are.
        assert_eq!(in_message("give --read-only".to_owned()), "give --read-only");
    }
}
