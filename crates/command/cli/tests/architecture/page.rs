//! `docs/architecture.md` shows the crates, their folders and their cycles of files correctly.

use crate::cycles::file_cycles;
use crate::graph::transitive_reduction;
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
fn parse_drawing(drawing: &str) -> (BTreeSet<String>, BTreeSet<String>) {
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
fn parse_table(table: &str) -> (Vec<String>, BTreeSet<String>) {
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
fn parse_cycles(list: &str) -> BTreeSet<String> {
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
fn the_drawing_shows_the_dependencies_of_crates() {
    let page = page();
    let crates = crates();
    let (nodes, arrows) = parse_drawing(section(&page, "The crates"));
    let real = transitive_reduction(&graph(&crates))
        .into_iter()
        .map(|(from, to)| format!("{from} --> {to}"))
        .collect();
    assert_eq!(differences(&arrows, &real), [""; 0]);
    assert_eq!(differences(&nodes, &placed(&crates)), [""; 0]);
}

#[test]
fn the_table_has_the_layers_and_their_crates() {
    let page = page();
    let (layers, listed) = parse_table(section(&page, "The layers"));
    assert_eq!(layers, LAYERS.into_iter().chain([TEST]).collect::<Vec<_>>());
    assert_eq!(differences(&listed, &placed(&crates())), [""; 0]);
}

#[test]
fn the_page_lists_every_cycle_of_files() {
    let page = page();
    assert_eq!(
        differences(&parse_cycles(section(&page, "Circles of files")), &file_cycles(&crates())),
        [""; 0]
    );
}

#[test]
fn a_page_is_parsed_and_differences_are_found() {
    let set = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<BTreeSet<String>>();
    let page = "# Page\n\n## A\nfirst\n## B\nsecond\n";
    assert_eq!((section(page, "A"), section(page, "B")), ("first", "second\n"));
    let drawing = "text\n```mermaid\ngraph TD\n    subgraph base\n        a\n        b\n    end\n    a --> b\n```\n- not --> this\n";
    assert_eq!(parse_drawing(drawing), (set(&["base/a", "base/b"]), set(&["a --> b"])));
    let table = "| layer | crates | jobs |\n|---|---|---|\n| `base/` | `a`, `b` | `c` is no crate |\n";
    assert_eq!(parse_table(table), (vec!["base".to_owned()], set(&["base/a", "base/b"])));
    let list = "Circles:\n- `a`: `y`, `x`: they cannot be told apart at all\n";
    assert_eq!(parse_cycles(list), set(&["a: x, y"]));
    assert_eq!(differences(&set(&["a", "b"]), &set(&["b", "c"])), ["not shown: c", "not so: a"]);
}
