//! Files and functions that fit a head.

use anyhow::Context;
use syn::{ImplItemFn, ItemFn, TraitItemFn, spanned::Spanned, visit::Visit};

use super::{Faults, Source};

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 80;

pub(super) fn check(source: &Source, faults: &mut Faults) -> anyhow::Result<()> {
    let lines = source.text.lines().count();
    let is_test = source.path.components().any(|part| part.as_os_str() == "tests")
        || source.path.file_stem().is_some_and(|stem| stem == "tests");
    if lines > FILE_LINES_MAX && !is_test {
        faults.add(
            &source.path,
            format!("{lines} lines, above {FILE_LINES_MAX}: one subject a file"),
        );
    }
    let file = syn::parse_file(&source.text)
        .with_context(|| format!("parse {}", source.path.display()))?;
    let mut functions = Functions { found: Vec::new() };
    functions.visit_file(&file);
    for (name, lines) in functions.found {
        if lines > FUNCTION_LINES_MAX && !is_test {
            let message = format!("fn {name} has {lines} lines, above {FUNCTION_LINES_MAX}");
            faults.add(&source.path, message);
        }
    }
    Ok(())
}

struct Functions {
    found: Vec<(String, usize)>,
}

impl Functions {
    fn add(&mut self, name: &syn::Ident, whole: &impl Spanned) {
        let span = whole.span();
        self.found.push((name.to_string(), span.end().line - span.start().line + 1));
    }
}

impl<'a> Visit<'a> for Functions {
    fn visit_item_fn(&mut self, item: &'a ItemFn) {
        self.add(&item.sig.ident, &item.block);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'a ImplItemFn) {
        self.add(&item.sig.ident, &item.block);
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'a TraitItemFn) {
        if let Some(block) = &item.default {
            self.add(&item.sig.ident, block);
        }
        syn::visit::visit_trait_item_fn(self, item);
    }
}
