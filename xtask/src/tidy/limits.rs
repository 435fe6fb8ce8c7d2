//! Every limit is tried at its edge: a constant named `…_MAX` must be named by a test that can reach it.
//!
//! A test of the same crate, or of another one if the constant is public, or of the program as a whole.
//! Where a crate has several limits of one name, each needs a test beside it: else the test of one would
//! speak for all.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use anyhow::Context;
use syn::{Attribute, Item, ItemConst, ItemMod, Visibility, visit::Visit};

use super::{Faults, Source};

/// Crates whose limits protect nobody but the chores and tests themselves.
const EXEMPT: [&str; 2] = ["xtask", "crates/sim"];
/// Tests that drive the program as a whole, and so all of its limits.
const WHOLE: [&str; 2] = ["crates/cli/tests", "crates/sim"];

struct Limit {
    path: PathBuf,
    name: String,
    public: bool,
}

/// The text of the tests in one file.
struct Tests {
    path: PathBuf,
    text: String,
}

pub(super) fn check(sources: &[Source], faults: &mut Faults) -> anyhow::Result<()> {
    let (mut limits, mut tests) = (Vec::new(), Vec::new());
    for source in sources {
        let file = syn::parse_file(&source.text);
        let file = file.with_context(|| format!("parse {}", source.path.display()))?;
        let mut visitor = Visitor { source, limits: Vec::new(), tests: String::new() };
        visitor.visit_file(&file);
        let path = source.path.clone();
        if is_test_file(&source.path) {
            tests.push(Tests { path, text: source.text.clone() });
            continue;
        }
        if !EXEMPT.iter().any(|prefix| source.path.starts_with(prefix)) {
            limits.extend(visitor.limits);
        }
        if !visitor.tests.is_empty() {
            tests.push(Tests { path, text: visitor.tests });
        }
    }
    let mut namesakes = BTreeMap::new();
    for limit in &limits {
        *namesakes.entry((member(&limit.path), limit.name.as_str())).or_insert(0) += 1;
    }
    for limit in &limits {
        let alone = namesakes[&(member(&limit.path), limit.name.as_str())] == 1;
        if !tests
            .iter()
            .any(|tests| reaches(tests, limit, alone) && names(&tests.text, &limit.name))
        {
            let beside = if alone { "" } else { " beside it, and there is another of that name" };
            faults.add(&limit.path, format!("no test{beside} names the limit {}", limit.name));
        }
    }
    Ok(())
}

/// The folder of the crate that a file belongs to.
fn member(path: &Path) -> PathBuf {
    path.components().take(2).collect()
}

/// Whether the tests of a file can be about this limit. `alone`: its crate has no other of that name.
fn reaches(tests: &Tests, limit: &Limit, alone: bool) -> bool {
    if !alone {
        return is_beside(&tests.path, &limit.path);
    }
    limit.public
        || member(&tests.path) == member(&limit.path)
        || WHOLE.iter().any(|prefix| tests.path.starts_with(prefix))
}

/// In the file itself, in a module below it, or in the tests of the module that it is in.
fn is_beside(tests: &Path, limit: &Path) -> bool {
    let of_parent = limit.with_file_name("tests.rs");
    tests == limit || tests.starts_with(limit.with_extension("")) || tests == of_parent
}

/// Whether a text names a limit: by its constant, or in words by its own name, as the name of a test does.
fn names(text: &str, limit: &str) -> bool {
    let in_words = limit.to_lowercase();
    has_word(text, limit, |c| c.is_alphanumeric() || c == '_')
        || has_word(text, &in_words, char::is_alphanumeric)
}

/// Whether `word` stands in a text with nothing `inside` a word before or after it.
fn has_word(text: &str, word: &str, inside: impl Fn(char) -> bool) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(&inside) && !after.is_some_and(&inside)
    })
}

fn is_test_file(path: &Path) -> bool {
    path.components().any(|part| part == Component::Normal("tests".as_ref()))
        || path.file_stem().is_some_and(|stem| stem == "tests")
        || path.starts_with("crates/sim")
}

struct Visitor<'a> {
    source: &'a Source,
    limits: Vec<Limit>,
    tests: String,
}

impl<'a> Visit<'a> for Visitor<'a> {
    fn visit_item_const(&mut self, item: &'a ItemConst) {
        let name = item.ident.to_string();
        if name.ends_with("_MAX") {
            let public = matches!(item.vis, Visibility::Public(_));
            self.limits.push(Limit { path: self.source.path.clone(), name, public });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_named_as_a_whole_word() {
        assert!(names("f(A_MAX)", "A_MAX"));
        assert!(names("fn a_max_is_held()", "A_MAX"));
        assert!(!names("B_A_MAX A_MAXIMUM", "A_MAX"));
        assert!(!names("nothing", "A_MAX"));
    }

    #[test]
    fn the_test_of_a_namesake_speaks_for_nobody_else() {
        let limit = |path: &str, public| Limit { path: path.into(), name: "A_MAX".into(), public };
        let reaches = |tests: &str, limit: Limit, alone| {
            reaches(&Tests { path: tests.into(), text: String::new() }, &limit, alone)
        };
        let private = || limit("crates/a/src/x.rs", false);
        assert!(reaches("crates/a/src/y.rs", private(), true));
        assert!(!reaches("crates/a/src/y.rs", private(), false));
        assert!(!reaches("crates/b/src/y.rs", private(), true));
        assert!(reaches("crates/b/src/y.rs", limit("crates/a/src/x.rs", true), true));
        assert!(reaches("crates/cli/tests/limits/x.rs", private(), true));
        for beside in ["crates/a/src/x.rs", "crates/a/src/x/tests.rs", "crates/a/src/tests.rs"] {
            assert!(reaches(beside, private(), false), "{beside}");
        }
    }
}
