//! TypeScript → JavaScript, with the way back for positions.
//!
//! Types are erased and the few constructs with a run-time meaning (enums, parameter properties,
//! namespaces) rewritten by oxc; nothing is type-checked. Every position that leaves this crate is
//! one of the file as the author wrote it.

use std::path::Path;

use oxc::{
    allocator::Allocator,
    ast::ast::{CallExpression, Expression, ImportDeclarationSpecifier, Program, Statement},
    ast_visit::{Visit, walk},
    codegen::{Codegen, CodegenOptions, CodegenReturn},
    diagnostics::OxcDiagnostic,
    parser::Parser,
    semantic::SemanticBuilder,
    span::SourceType,
    transformer::{TransformOptions, Transformer},
};

use crate::fault::Fault;

/// A module as the engine runs it.
#[derive(Debug)]
pub(crate) struct Stripped {
    /// JavaScript.
    pub(crate) code: String,
    /// What it imports, types left out, in source order.
    pub(crate) imports: Vec<Import>,
    positions: Positions,
    calls: Vec<Call>,
}

/// A call of a named function in the source.
#[derive(Debug)]
struct Call {
    name: String,
    start: (u32, u32),
    end: (u32, u32),
}

/// One import or re-export with a run-time effect.
#[derive(Debug)]
pub(crate) struct Import {
    pub(crate) specifier: String,
    /// Line and column (from 1) of the specifier.
    pub(crate) at: (u32, u32),
    /// The imported names, each with its line and column.
    pub(crate) names: Vec<(String, (u32, u32))>,
}

/// From lines and columns of the JavaScript to those of the source, sorted.
#[derive(Debug, Default)]
struct Positions(Vec<((u32, u32), (u32, u32))>);

impl Stripped {
    /// The source position of a position in `code`; both count from 1.
    pub(crate) fn source_position(&self, line: u32, column: u32) -> Option<(u32, u32)> {
        let wanted = (line.checked_sub(1)?, column.saturating_sub(1));
        let after = self.positions.0.partition_point(|(generated, _)| *generated <= wanted);
        let on_line = |entry: &&((u32, u32), (u32, u32))| entry.0.0 == wanted.0;
        let before = after.checked_sub(1).and_then(|index| self.positions.0.get(index));
        let (_, source) = before.filter(on_line).or(self.positions.0.get(after))?;
        Some((source.0 + 1, source.1 + 1))
    }

    /// Where the innermost call of `name` around a source position begins. The engine places a
    /// call at the last call among its arguments, which may be many lines below.
    pub(crate) fn call_around(&self, name: &str, at: (u32, u32)) -> Option<(u32, u32)> {
        let around = self
            .calls
            .iter()
            .filter(|call| call.name == name && call.start <= at && at <= call.end);
        around.map(|call| call.start).max()
    }
}

/// Strips the file at `path`.
///
/// # Errors
/// Every syntax error that the parser finds.
pub(crate) fn strip(path: &str, source: &str) -> Result<Stripped, Vec<Fault>> {
    let allocator = Allocator::default();
    let kind = source_type(path);
    let parsed = Parser::new(&allocator, source, kind).parse();
    let fault = |diagnostic: &OxcDiagnostic| to_fault(path, source, diagnostic);
    if parsed.panicked || parsed.diagnostics.has_errors() {
        return Err(non_empty(path, parsed.diagnostics.errors().map(fault).collect()));
    }
    let mut program = parsed.program;
    let semantic =
        SemanticBuilder::new().with_check_syntax_error(true).with_enum_eval(true).build(&program);
    if semantic.diagnostics.has_errors() {
        return Err(non_empty(path, semantic.diagnostics.errors().map(fault).collect()));
    }
    let calls = calls(source, &program);
    let options = TransformOptions::default();
    let transformed = Transformer::new(&allocator, Path::new(path), &options)
        .build_with_scoping(semantic.semantic.into_scoping(), &mut program);
    if transformed.diagnostics.has_errors() {
        return Err(non_empty(path, transformed.diagnostics.errors().map(fault).collect()));
    }
    let imports = imports(source, &program);
    let options =
        CodegenOptions { source_map_path: Some(path.into()), ..CodegenOptions::default() };
    let CodegenReturn { code, map, .. } = Codegen::new().with_options(options).build(&program);
    let mut positions: Vec<_> = map
        .iter()
        .flat_map(|map| map.get_tokens().collect::<Vec<_>>())
        .map(|token| {
            let generated = (token.get_dst_line(), token.get_dst_col());
            (generated, (token.get_src_line(), token.get_src_col()))
        })
        .collect();
    positions.sort_unstable();
    Ok(Stripped { code, imports, positions: Positions(positions), calls })
}

/// A module that exports one JSON value.
pub(crate) fn json_module(path: &str, source: &str) -> Result<Stripped, Vec<Fault>> {
    let value: serde_json::Value = serde_json::from_str(source).map_err(|error| {
        let at =
            (u32::try_from(error.line()).unwrap_or(1), u32::try_from(error.column()).unwrap_or(1));
        vec![Fault::at(path, source, at, format!("not valid JSON: {error}"))]
    })?;
    Ok(Stripped {
        code: format!("export default {value};"),
        imports: Vec::new(),
        positions: Positions::default(),
        calls: Vec::new(),
    })
}

fn source_type(path: &str) -> SourceType {
    if path.ends_with("ts") { SourceType::ts() } else { SourceType::mjs() }
}

fn non_empty(path: &str, faults: Vec<Fault>) -> Vec<Fault> {
    if faults.is_empty() { vec![Fault::in_file(path, "not valid TypeScript")] } else { faults }
}

fn to_fault(path: &str, source: &str, diagnostic: &OxcDiagnostic) -> Fault {
    let help = diagnostic.help.as_ref().map_or_else(String::new, |help| format!(" ({help})"));
    let message = format!("{}{help}", diagnostic.message);
    let label =
        diagnostic.labels.iter().find(|label| label.primary()).or(diagnostic.labels.first());
    match label {
        Some(label) => Fault::at(path, source, position(source, label.offset()), message),
        None => Fault::in_file(path, message),
    }
}

/// Line and column (from 1, in characters) of a byte offset.
fn position(source: &str, offset: u32) -> (u32, u32) {
    Lines::of(source).position(offset)
}

/// Where each line of a source begins.
struct Lines<'s> {
    source: &'s str,
    starts: Vec<usize>,
}

impl<'s> Lines<'s> {
    fn of(source: &'s str) -> Self {
        let breaks = source.match_indices('\n').map(|(at, _)| at + 1);
        Self { source, starts: std::iter::once(0).chain(breaks).collect() }
    }

    /// Line and column, from 1, in characters.
    fn position(&self, offset: u32) -> (u32, u32) {
        let end = self.source.floor_char_boundary(offset as usize);
        let line = self.starts.partition_point(|start| *start <= end);
        let before = &self.source[self.starts[line - 1]..end];
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        (count(line), count(before.chars().count() + 1))
    }
}

fn calls(source: &str, program: &Program<'_>) -> Vec<Call> {
    struct Finder<'s>(Lines<'s>, Vec<Call>);
    impl<'a> Visit<'a> for Finder<'_> {
        fn visit_call_expression(&mut self, call: &CallExpression<'a>) {
            let name = if let Expression::Identifier(identifier) = &call.callee {
                Some(identifier.name.as_str())
            } else if let Expression::StaticMemberExpression(member) = &call.callee {
                Some(member.property.name.as_str())
            } else {
                None
            };
            if let Some(name) = name {
                let (start, end) =
                    (self.0.position(call.span.start), self.0.position(call.span.end));
                self.1.push(Call { name: name.to_owned(), start, end });
            }
            walk::walk_call_expression(self, call);
        }
    }
    let mut finder = Finder(Lines::of(source), Vec::new());
    finder.visit_program(program);
    finder.1
}

fn imports(source: &str, program: &Program<'_>) -> Vec<Import> {
    let lines = Lines::of(source);
    let at = |offset| lines.position(offset);
    let from = |literal: &oxc::ast::ast::StringLiteral<'_>, names| Import {
        specifier: literal.value.to_string(),
        at: at(literal.span.start),
        names,
    };
    let mut imports = Vec::new();
    for statement in &program.body {
        if let Statement::ImportDeclaration(import) = statement {
            let specifiers = import.specifiers.iter().flatten();
            let names = specifiers.filter_map(|specifier| match specifier {
                ImportDeclarationSpecifier::ImportSpecifier(named) => {
                    Some((named.imported.name().to_string(), at(named.span.start)))
                }
                ImportDeclarationSpecifier::ImportDefaultSpecifier(default) => {
                    Some(("default".to_owned(), at(default.span.start)))
                }
                ImportDeclarationSpecifier::ImportNamespaceSpecifier(_) => None,
            });
            imports.push(from(&import.source, names.collect()));
        } else if let Statement::ExportFromDeclaration(export) = statement {
            let names = export
                .specifiers
                .iter()
                .map(|named| (named.local.name().to_string(), at(named.span.start)));
            imports.push(from(&export.source, names.collect()));
        } else if let Statement::ExportAllDeclaration(export) = statement {
            imports.push(from(&export.source, Vec::new()));
        }
    }
    imports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_go_and_positions_stay() {
        let source = "interface A { b: string }\n\nexport const x = (a: A): string => boom(a.b);\n";
        let stripped = strip("a.ts", source).unwrap();
        insta::assert_snapshot!(stripped.code, @"export const x = (a) => boom(a.b);");
        let column = u32::try_from(stripped.code.find("boom").unwrap()).unwrap() + 1;
        assert_eq!(stripped.source_position(1, column), Some((3, 36)));
    }

    #[test]
    fn a_call_is_found_around_its_arguments() {
        let source = "job('a', {\n  run: s.sh('x'),\n  needs: [job('b')],\n});\n";
        let stripped = strip("a.ts", source).unwrap();
        assert_eq!(stripped.call_around("job", (2, 8)), Some((1, 1)));
        assert_eq!(stripped.call_around("job", (3, 14)), Some((3, 11)));
        assert_eq!(stripped.call_around("sh", (2, 8)), Some((2, 8)));
        assert_eq!(stripped.call_around("step", (2, 8)), None);
    }

    #[test]
    fn enums_and_parameter_properties_are_rewritten() {
        let source =
            "enum E { A = 1, B }\nclass C { constructor(public x: E = E.B) {} }\nexport { C };";
        let code = strip("a.mts", source).unwrap().code;
        assert!(code.contains("this.x = x"), "{code}");
        assert!(!code.contains("public"), "{code}");
    }

    #[test]
    fn only_imports_with_an_effect_are_listed() {
        let source = "import type { A } from './a';\nimport { B, c } from './b';\nimport './d';\n\
                      export { e } from './e';\nexport * from './f';\nconst x: B = c;\n";
        let imports = strip("a.ts", source).unwrap().imports;
        let seen: Vec<_> =
            imports.iter().map(|i| (i.specifier.as_str(), i.at, i.names.len())).collect();
        assert_eq!(
            seen,
            [("./b", (2, 22), 1), ("./d", (3, 8), 0), ("./e", (4, 19), 1), ("./f", (5, 15), 0)]
        );
    }

    #[test]
    fn syntax_errors_point_at_the_source() {
        let faults = strip("w.ts", "const a = 1;\nconst b = {;\n").unwrap_err();
        insta::assert_snapshot!(faults[0], @r#"
        w.ts:2:12: Unexpected token
          2 | const b = {;
            |            ^
        "#);
        assert!(strip("w.ts", "const a = 1; const a = 2;").is_err());
    }
}
