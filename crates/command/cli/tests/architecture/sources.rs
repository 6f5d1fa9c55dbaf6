//! Determines from the text of a crate's files which file uses which other files.

use crate::graph::Graph;
use std::collections::{BTreeMap, BTreeSet};

/// The code of a file. In an inline module, `super` means the file itself.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let (mut code, mut inside) = (String::new(), false);
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        let is_module = |line: &str| line.starts_with("mod ") || line.starts_with("pub(crate) mod ");
        inside = (inside || is_module(line) && line.ends_with('{')) && line != "}";
        if inside {
            code += &line.replacen("super::", "", 1);
        } else {
            code += line;
        }
        code.push('\n');
    }
    code
}

/// Parses the paths at the start of a text into lists of names: `a::{b, c::d}` gives two. Returns
/// the text after them.
fn paths<'t>(text: &'t str, above: &[String], found: &mut Vec<Vec<String>>) -> &'t str {
    let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut path = above.to_vec();
    let mut rest = text.trim_start();
    loop {
        if let Some(list) = rest.strip_prefix('{') {
            let mut rest = list.trim_start();
            while !rest.is_empty() && !rest.starts_with('}') {
                let after =
                    paths(rest, &path, found).trim_start_matches(|c: char| c == ',' || c.is_whitespace());
                // A block of code, not a list of paths.
                if after.len() == rest.len() {
                    return after;
                }
                rest = after;
            }
            return rest.strip_prefix('}').unwrap_or(rest);
        }
        let end = rest.find(|c: char| !is_of_name(c)).unwrap_or(rest.len());
        if end > 0 {
            path.push(rest[..end].to_owned());
        }
        rest = &rest[end..];
        match rest.strip_prefix("::") {
            Some(more) if end > 0 => rest = more,
            _ => break,
        }
    }
    // `as` and a star end a path.
    let rest = rest.strip_prefix('*').unwrap_or(rest);
    let rest = match rest.strip_prefix(" as ") {
        Some(alias) => alias.trim_start_matches(is_of_name),
        None => rest,
    };
    found.push(path);
    rest
}

/// Whether a file has no code of its own: it only declares modules and re-exports their items.
fn only_reexports(code: &str) -> bool {
    let mut bare = String::new();
    let mut depth = 0_u32;
    for (at, c) in code.char_indices() {
        match c {
            '[' if depth > 0 || code[..at].ends_with('#') || code[..at].ends_with("#!") => depth += 1,
            ']' if depth > 0 => depth -= 1,
            '#' | '!' => {}
            _ if depth == 0 => bare.push(c),
            _ => {}
        }
    }
    bare.split(';').map(str::trim).all(|item| {
        let item = item.strip_prefix("pub(crate) ").or(item.strip_prefix("pub(super) ")).unwrap_or(item);
        let item = item.strip_prefix("pub ").unwrap_or(item);
        item.is_empty() || ["mod ", "use ", "extern crate "].iter().any(|word| item.starts_with(word))
    })
}

/// The code of a crate by the names of its modules, and the items that they re-export.
pub(crate) struct Sources {
    /// Without comments and tests. The root's name is empty.
    code: BTreeMap<String, String>,
    /// From a module and the name of an item to the module where its path begins, and the path.
    reexports: BTreeMap<(String, String), (String, Vec<String>)>,
}

fn parent(module: &str) -> &str {
    module.rsplit_once("::").map_or("", |(above, _)| above)
}

fn join(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }
}

/// The module where a path used in `module` begins, and the rest of the path.
fn resolve_prefix(module: &str, path: &[String]) -> (String, Vec<String>) {
    let (mut from, mut rest) = (module, path);
    while let Some((first, more)) = rest.split_first() {
        from = match first.as_str() {
            "crate" => "",
            "self" => from,
            "super" => parent(from),
            _ => break,
        };
        rest = more;
    }
    (from.to_owned(), rest.to_vec())
}

impl Sources {
    /// Takes the texts of the files by the names of their modules.
    pub(crate) fn of(texts: &BTreeMap<String, String>) -> Sources {
        let code: BTreeMap<String, String> =
            texts.iter().map(|(module, text)| (module.clone(), code(text))).collect();
        let mut handed_on = BTreeMap::new();
        for (module, code) in &code {
            for (at, _) in code.match_indices("use ") {
                let mut found = Vec::new();
                if code[..at].rsplit('\n').next().unwrap().trim_start().starts_with("pub") {
                    paths(&code[at + 4..], &[], &mut found);
                }
                for path in found {
                    if let Some(name) = path.last() {
                        handed_on.insert((module.clone(), name.clone()), resolve_prefix(module, &path));
                    }
                }
            }
        }
        Sources { code, reexports: handed_on }
    }

    /// The module that defines the item of a path, followed through re-exports; `None` if it
    /// belongs to another crate.
    fn defining_module(&self, (mut at, mut rest): (String, Vec<String>)) -> Option<String> {
        // An item is re-exported a few times at most.
        for _ in 0..8 {
            while let Some(below) = rest.first().map(|first| join(&at, first)) {
                if !self.code.contains_key(&below) {
                    break;
                }
                at = below;
                rest.remove(0);
            }
            let Some(first) = rest.first() else { return Some(at) };
            let Some((next, path)) = self.reexports.get(&(at.clone(), first.clone())) else {
                return Some(at);
            };
            let first = path.first()?;
            let is_ours = self.code.contains_key(&join(next, first))
                || self.reexports.contains_key(&(next.clone(), first.clone()));
            if !is_ours {
                return None;
            }
            (at, rest) = (next.clone(), path.clone());
        }
        Some(at)
    }

    /// The modules with items that a module names: by paths from the root, from its parent and from
    /// its children.
    fn modules_used_by(&self, module: &str) -> BTreeSet<String> {
        let code = &self.code[module];
        let is_child = |other: &&String| !other.is_empty() && parent(other) == module;
        let children = self.code.keys().filter(is_child).map(|child| child.rsplit("::").next().unwrap());
        let mut used = BTreeSet::new();
        for word in children.chain(["crate", "super"]).map(|word| format!("{word}::")) {
            for (at, _) in code.match_indices(&word) {
                if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
                    continue;
                }
                let mut found = Vec::new();
                paths(&code[at..], &[], &mut found);
                used.extend(
                    found.iter().filter_map(|path| self.defining_module(resolve_prefix(module, path))),
                );
            }
        }
        used
    }

    /// The files that each file uses. A parent with code of its own uses the children with items
    /// that it names, including re-exported items. A parent that only declares modules and
    /// re-exports items is not a node: a file that names such an item uses the file that defines
    /// it.
    pub(crate) fn graph(&self) -> Graph {
        let files: BTreeSet<&String> =
            self.code.iter().filter(|(_, code)| !only_reexports(code)).map(|(module, _)| module).collect();
        let shown = |module: &str| if module.is_empty() { "lib".to_owned() } else { module.to_owned() };
        let of = |module: &str| {
            let used = self.modules_used_by(module).into_iter();
            used.filter(|other| other != module && files.contains(other))
                .map(|other| shown(&other))
                .collect::<BTreeSet<String>>()
        };
        files.iter().map(|module| (shown(module), of(module))).collect()
    }
}
