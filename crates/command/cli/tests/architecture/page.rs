//! `docs/architecture.md` shows the crates, their folders and their cycles of files correctly.

use crate::circles::real_circles;
use crate::graph::reduced;
use crate::layers::{LAYERS, TEST};
use crate::workspace::{Crate, crates, graph, root};
use std::collections::BTreeSet;

fn page() -> String {
    std::fs::read_to_string(root().join("docs/architecture.md")).unwrap()
}

/// A section of a page, without its heading.
fn section<'p>(page: &'p str, heading: &str) -> &'p str {
    let mut parts = page.split("\n## ").filter_map(|part| part.split_once('\n'));
    let part = parts.find(|(first, _)| *first == heading);
    part.unwrap_or_else(|| panic!("no section {heading}")).1
}

/// The elements of only one of two sets, as text.
fn differences(shown: &BTreeSet<String>, real: &BTreeSet<String>) -> Vec<String> {
    let missing = real.difference(shown).map(|one| format!("not shown: {one}"));
    missing.chain(shown.difference(real).map(|one| format!("not so: {one}"))).collect()
}

/// The crates with their layers, as `layer/crate`.
fn placed(crates: &[Crate]) -> BTreeSet<String> {
    crates.iter().map(|one| format!("{}/{}", one.layer, one.folder)).collect()
}

/// A drawing in Mermaid: its nodes with the surrounding boxes, as `box/node`, and its arrows.
fn drawn(drawing: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut nodes, mut arrows) = (BTreeSet::new(), BTreeSet::new());
    let mut around = None;
    let lines = drawing.lines().map(str::trim).skip_while(|line| *line != "```mermaid").skip(2);
    for line in lines.take_while(|line| *line != "```") {
        if let Some(name) = line.strip_prefix("subgraph ") {
            around = Some(name);
        } else if line == "end" {
            around = None;
        } else if line.contains(" --> ") {
            arrows.insert(line.to_owned());
        } else if let Some(around) = around.filter(|_| !line.is_empty()) {
            nodes.insert(format!("{around}/{line}"));
        }
    }
    (nodes, arrows)
}

/// The rows of a table of layers: the layers in their order, and the crates as `layer/crate`.
fn listed(table: &str) -> (Vec<String>, BTreeSet<String>) {
    let (mut layers, mut crates) = (Vec::new(), BTreeSet::new());
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let layer = cells[0].trim_matches('`').trim_end_matches('/');
        layers.push(layer.to_owned());
        crates.extend(cells[1].split(", ").map(|name| format!("{layer}/{}", name.trim_matches('`'))));
    }
    (layers, crates)
}

/// The cycles of files that a list names, as `crate: file, file`. Each line has a reason.
fn named(list: &str) -> BTreeSet<String> {
    let circle = |line: &str| {
        let (place, rest) = line.split_once(": ").expect("- `crate`: `file`, `file`: why");
        let (files, why) = rest.split_once(": ").expect("- `crate`: `file`, `file`: why");
        assert!(why.len() > 20, "no reason: {line}");
        let files: BTreeSet<&str> = files.split(", ").collect();
        format!("{place}: {}", Vec::from_iter(files).join(", ")).replace('`', "")
    };
    list.lines().filter(|line| line.starts_with("- `")).map(|line| circle(&line[2..])).collect()
}

#[test]
fn the_drawing_shows_which_crate_stands_on_which() {
    let page = page();
    let crates = crates();
    let (nodes, arrows) = drawn(section(&page, "The crates"));
    let real = reduced(&graph(&crates)).into_iter().map(|(from, to)| format!("{from} --> {to}")).collect();
    assert_eq!(differences(&arrows, &real), [""; 0]);
    assert_eq!(differences(&nodes, &placed(&crates)), [""; 0]);
}

#[test]
fn the_table_has_the_layers_and_their_crates() {
    let page = page();
    let (layers, listed) = listed(section(&page, "The layers"));
    assert_eq!(layers, LAYERS.into_iter().chain([TEST]).collect::<Vec<_>>());
    assert_eq!(differences(&listed, &placed(&crates())), [""; 0]);
}

#[test]
fn every_circle_of_files_is_named() {
    let page = page();
    assert_eq!(differences(&named(section(&page, "Circles of files")), &real_circles(&crates())), [""; 0]);
}

#[test]
fn a_page_is_read_and_what_it_lacks_is_found() {
    let set = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<BTreeSet<String>>();
    let page = "# Page\n\n## A\nfirst\n## B\nsecond\n";
    assert_eq!((section(page, "A"), section(page, "B")), ("first", "second\n"));
    let drawing = "text\n```mermaid\ngraph TD\n    subgraph base\n        a\n        b\n    end\n    a --> b\n```\n- not --> this\n";
    assert_eq!(drawn(drawing), (set(&["base/a", "base/b"]), set(&["a --> b"])));
    let table = "| layer | crates | jobs |\n|---|---|---|\n| `base/` | `a`, `b` | `c` is no crate |\n";
    assert_eq!(listed(table), (vec!["base".to_owned()], set(&["base/a", "base/b"])));
    let list = "Circles:\n- `a`: `y`, `x`: they cannot be told apart at all\n";
    assert_eq!(named(list), set(&["a: x, y"]));
    assert_eq!(differences(&set(&["a", "b"]), &set(&["b", "c"])), ["not shown: c", "not so: a"]);
}
