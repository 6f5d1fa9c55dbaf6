//! Dependency graphs: of crates, or of files of a crate.

use std::collections::{BTreeMap, BTreeSet};

pub(crate) type Graph = BTreeMap<String, BTreeSet<String>>;

/// All nodes that can be reached from a node.
fn reachable_from(graph: &Graph, from: &str) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut left = vec![from.to_owned()];
    while let Some(node) = left.pop() {
        for next in graph.get(&node).into_iter().flatten() {
            if seen.insert(next.clone()) {
                left.push(next.clone());
            }
        }
    }
    seen
}

/// The arrows that no longer path makes superfluous.
pub(crate) fn transitive_reduction(graph: &Graph) -> BTreeSet<(String, String)> {
    let mut arrows = BTreeSet::new();
    for (from, to) in graph {
        for direct in to {
            let around =
                to.iter().any(|other| other != direct && reachable_from(graph, other).contains(direct));
            if !around {
                arrows.insert((from.clone(), direct.clone()));
            }
        }
    }
    arrows
}

/// The groups of nodes that reach each other.
pub(crate) fn cycles(graph: &Graph) -> BTreeSet<BTreeSet<String>> {
    let mut circles = BTreeSet::new();
    for node in graph.keys() {
        let group: BTreeSet<String> = reachable_from(graph, node)
            .into_iter()
            .filter(|other| reachable_from(graph, other).contains(node))
            .chain([node.clone()])
            .collect();
        if group.len() > 1 {
            circles.insert(group);
        }
    }
    circles
}

#[test]
fn the_reduction_drops_redundant_arrows_and_cycles_are_found() {
    let graph = |arrows: &[(&str, &[&str])]| -> Graph {
        let of = |to: &[&str]| -> BTreeSet<String> { to.iter().map(|to| (*to).to_owned()).collect() };
        arrows.iter().map(|(from, to)| ((*from).to_owned(), of(to))).collect()
    };
    let three = graph(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])]);
    let arrow = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    assert_eq!(transitive_reduction(&three), BTreeSet::from([arrow("a", "b"), arrow("b", "c")]));
    assert_eq!(cycles(&three), BTreeSet::new());
    let round = graph(&[("a", &["b"]), ("b", &["c"]), ("c", &["b"])]);
    assert_eq!(cycles(&round), BTreeSet::from([BTreeSet::from(["b".to_owned(), "c".to_owned()])]));
}
