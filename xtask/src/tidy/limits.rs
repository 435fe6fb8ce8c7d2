//! Every limit is tried at its edge: a constant named `…_MAX` must be named by a test.

use std::path::Path;

use anyhow::Context;
use syn::{Attribute, Item, ItemConst, ItemMod, visit::Visit};

use super::{Faults, Source};

/// Crates whose limits protect nobody but the chores and tests themselves.
const EXEMPT: [&str; 2] = ["xtask", "crates/sim"];

pub(super) fn check(sources: &[Source], faults: &mut Faults) -> anyhow::Result<()> {
    let mut limits = Vec::new();
    let mut tests = String::new();
    for source in sources {
        let file = syn::parse_file(&source.text);
        let file = file.with_context(|| format!("parse {}", source.path.display()))?;
        let exempt = EXEMPT.iter().any(|prefix| source.path.starts_with(prefix));
        let all_tests = is_test_file(&source.path);
        let mut visitor = Visitor { source, limits: Vec::new(), tests: String::new() };
        visitor.visit_file(&file);
        if all_tests {
            tests.push_str(&source.text);
        } else if !exempt {
            limits.extend(visitor.limits.into_iter().map(|name| (source.path.clone(), name)));
        }
        tests.push_str(&visitor.tests);
    }
    for (path, name) in limits {
        // A test names a limit by its constant, or in words by its own name.
        if !tests.contains(&name) && !tests.contains(&name.to_lowercase()) {
            faults.add(&path, format!("no test names the limit {name}"));
        }
    }
    Ok(())
}

fn is_test_file(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests")
        || path.file_stem().is_some_and(|stem| stem == "tests")
        || path.starts_with("crates/sim")
}

struct Visitor<'a> {
    source: &'a Source,
    limits: Vec<String>,
    tests: String,
}

impl<'a> Visit<'a> for Visitor<'a> {
    fn visit_item_const(&mut self, item: &'a ItemConst) {
        let name = item.ident.to_string();
        if name.ends_with("_MAX") {
            self.limits.push(name);
        }
    }

    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        if !item.attrs.iter().any(is_cfg_test) {
            syn::visit::visit_item_mod(self, item);
            return;
        }
        if let Some((_, items)) = &item.content {
            let (first, last) = (items.first().map(line), items.last().map(line_end));
            if let (Some(first), Some(last)) = (first, last) {
                let lines = self.source.text.lines().skip(first - 1).take(last + 1 - first);
                for line in lines {
                    self.tests.push_str(line);
                    self.tests.push('\n');
                }
            }
        }
    }
}

fn is_cfg_test(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "test")
}

fn line(item: &Item) -> usize {
    syn::spanned::Spanned::span(item).start().line
}

fn line_end(item: &Item) -> usize {
    syn::spanned::Spanned::span(item).end().line
}
