//! A page that people and programs write together: each program replaces its own part, between two markers.

/// Replaces the part between `begin` and `end` by what `write` makes of the old one; a page without one gets it
/// at its end.
pub(crate) fn replace(page: &str, begin: &str, end: &str, write: impl FnOnce(&str) -> String) -> String {
    let (before, old, after) = split(page, begin, end);
    format!("{before}{begin}\n{}{end}{after}", write(old))
}

/// What stands before, in and after the part.
fn split<'p>(page: &'p str, begin: &str, end: &str) -> (&'p str, &'p str, &'p str) {
    if let Some((before, rest)) = page.split_once(begin)
        && let Some((part, after)) = rest.split_once(end)
    {
        return (before, part, after);
    }
    (page, "", "\n")
}

/// The rows of the table below this heading, up to the next one.
pub(crate) fn rows(part: &str, heading: &str) -> Vec<String> {
    let table = part.split_once(heading).map_or("", |(_, table)| table);
    table
        .lines()
        .take_while(|line| !line.starts_with('#'))
        .filter(|line| line.starts_with('|'))
        .skip(2)
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_part_is_replaced() {
        let new = |page| replace(page, "<b>", "<e>", |old| format!("{}!\n", old.trim()));
        assert_eq!(
            new("# Mine\n\n<b>\nold\n<e>\n\nmore of mine\n"),
            "# Mine\n\n<b>\nold!\n<e>\n\nmore of mine\n"
        );
        assert_eq!(new("no markers\n"), "no markers\n<b>\n!\n<e>\n");
        assert_eq!(new("half <b>\n"), "half <b>\n<b>\n!\n<e>\n");
    }

    #[test]
    fn rows_are_those_below_the_head() {
        let part = "| a table |\n### History\n\n| head |\n| --- |\n| one |\n| two |\n\n### Other\n\n| x |\n";
        assert_eq!(rows(part, "### History"), ["| one |", "| two |"]);
        assert!(rows("nothing yet", "### History").is_empty());
    }
}
