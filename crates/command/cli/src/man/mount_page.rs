//! The manual page of `mount.lacuna` and `umount.lacuna`, which are not verbs of the command line.

use crate::man::text::{self, entries, paragraphs};
use clap_mangen::roff::{Roff, bold, italic, roman};

/// File name of the page.
pub(crate) const FILE: &str = "mount.lacuna.8";

/// Name of the page's text.
const TEXT: &str = "mount.lacuna";

/// The page.
pub(crate) fn page() -> String {
    let mut roff = Roff::new();
    roff.control("TH", ["mount.lacuna", "8", "", &format!("lacuna {}", env!("CARGO_PKG_VERSION")), ""]);
    write_paragraphs(&mut roff, "NAME");
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([
        bold("mount.lacuna"),
        italic(" LOCATION DIRECTORY"),
        roman(" [-sfnvrw] [-o "),
        italic("OPTIONS"),
        roman("]"),
    ]);
    roff.control("br", []);
    roff.text([bold("umount.lacuna"), italic(" DIRECTORY"), roman(" [-flnrv]")]);
    write_paragraphs(&mut roff, "DESCRIPTION");
    for title in ["OPTIONS", "FLAGS", "EXIT STATUS", "FILES", "EXAMPLES"] {
        text::write_list(&mut roff, title, entries(TEXT, title));
    }
    write_paragraphs(&mut roff, "SEE ALSO");
    roff.render()
}

fn write_paragraphs(page: &mut Roff, title: &str) {
    page.control("SH", [title]);
    for (at, paragraph) in paragraphs(TEXT, title).into_iter().enumerate() {
        if at > 0 {
            page.control("PP", []);
        }
        page.text([roman(paragraph)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount_helper::options::MountOptions;

    #[test]
    fn options_of_the_page_are_taken() {
        // An option that needs a unit, and options that are refused.
        let apart = ["credential=NAME", "remount", "any other"];
        let entries = entries(TEXT, "OPTIONS");
        assert!(entries.len() > 10, "{entries:?}");
        for (names, _) in entries.iter().filter(|(names, _)| !apart.contains(names)) {
            let options = MountOptions::parse([names.replace(", ", ",").as_str()].into_iter()).unwrap();
            assert!(options.fs_options.is_empty(), "{names}: {:?}", options.fs_options);
        }
        assert!(page().contains(".SH EXAMPLES"));
    }
}
