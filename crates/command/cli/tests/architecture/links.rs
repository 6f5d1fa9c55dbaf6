//! Links of documents lead to files and headings that exist, the index of documents names every
//! page, and the front page is short.

use crate::language::prose;
use crate::workspace::{root, texts};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The maximum length of the front page in bytes.
const FRONT_PAGE_MOST: usize = 7 << 10;

/// The targets of the links in a page, without links to other hosts.
fn links(page: &str) -> Vec<String> {
    let page = prose(page);
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    targets.filter(|target| !target.contains("://")).map(str::to_owned).collect()
}

/// The anchors of the headings of a page, as GitHub makes them: a repeated heading gets a number.
fn anchors(page: &str) -> BTreeSet<String> {
    let page = prose(page);
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let titles = headings.filter_map(|line| line.trim_start_matches('#').strip_prefix(' '));
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchor = |title: &str| {
        let is_kept = |c: &char| c.is_alphanumeric() || "-_ ".contains(*c);
        let name = title.trim().to_lowercase().chars().filter(is_kept).collect::<String>().replace(' ', "-");
        let count = counts.entry(name.clone()).or_default();
        *count += 1;
        if *count == 1 { name } else { format!("{name}-{}", *count - 1) }
    };
    titles.map(&mut anchor).collect()
}

/// The links of a page in `folder` that lead nowhere. `has_file` tells whether a path exists, and
/// `page_at` gives the text of a page.
fn broken(
    folder: &Path,
    page: &str,
    has_file: impl Fn(&Path) -> bool,
    page_at: impl Fn(&Path) -> Option<String>,
) -> Vec<String> {
    let is_broken = |target: &String| {
        let (path, anchor) = target.split_once('#').unwrap_or((target.as_str(), ""));
        let path = folder.join(path);
        if target.starts_with('#') {
            return !anchors(page).contains(anchor);
        }
        !has_file(&path)
            || !anchor.is_empty() && !page_at(&path).is_some_and(|page| anchors(&page).contains(anchor))
    };
    links(page).into_iter().filter(is_broken).collect()
}

#[test]
fn links_of_documents_lead_to_files_and_headings() {
    let root = root();
    let documents = texts(&root, ".md");
    assert!(documents.iter().map(|(_, text)| links(text).len()).sum::<usize>() > 200);
    let mut found = Vec::new();
    for (document, text) in &documents {
        let path = root.join(document);
        let folder = path.parent().unwrap();
        let broken = broken(folder, text, Path::exists, |page| std::fs::read_to_string(page).ok());
        found.extend(broken.into_iter().map(|target| format!("{document}: {target}")));
    }
    assert_eq!(found, [""; 0]);
}

#[test]
fn the_index_names_every_page() {
    let docs = root().join("docs");
    let pages = texts(&docs, ".md");
    let index = std::fs::read_to_string(docs.join("README.md")).unwrap();
    let named: BTreeSet<String> = links(&index).into_iter().collect();
    let missing = pages.iter().map(|(page, _)| page).filter(|page| *page != "README.md");
    let missing: Vec<&String> = missing.filter(|page| !named.contains(*page)).collect();
    assert_eq!(missing, [""; 0], "not in docs/README.md");
}

#[test]
fn the_front_page_is_short() {
    let page = std::fs::read_to_string(root().join("README.md")).unwrap();
    assert!(page.len() <= FRONT_PAGE_MOST, "README.md has {} bytes, at most {FRONT_PAGE_MOST}", page.len());
}

#[test]
fn broken_links_are_found() {
    let other = "# Other `page`\n## Limits\n## Limits\n```\n# no heading\n```\n## A, b: c\n";
    assert_eq!(anchors(other).into_iter().collect::<Vec<_>>(), ["a-b-c", "limits", "limits-1", "other-page"]);
    let page = "# Page\n[a](b.md) [b](b.md#limits-1) [c](b.md#no) [d](gone.md)\n[e](#page) [f](#none) [g](https://h/i)\n\
        ```\n[not](a-link)\n```\n![h](plot.svg#no)";
    let has_file = |path: &Path| path == Path::new("docs/b.md") || path == Path::new("docs/plot.svg");
    let page_at = |path: &Path| (path == Path::new("docs/b.md")).then(|| other.to_owned());
    let broken = broken(Path::new("docs"), page, has_file, page_at);
    assert_eq!(broken, ["b.md#no", "gone.md", "#none", "plot.svg#no"]);
}
