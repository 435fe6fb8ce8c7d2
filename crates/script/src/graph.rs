//! The module graph of a bundle: what an import means, and everything that is wrong before a
//! single line runs.

use std::collections::BTreeMap;

use crate::{
    bundle::{Bundle, FOLDERS},
    fault::{FAULTS_MAX, Fault, hint},
    sdk,
    strip::{self, Stripped},
};

/// The module to which an import leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A file of the bundle.
    File(String),
    /// A module that is built in, by its canonical name.
    Builtin(&'static sdk::Module),
}

/// Finds what `specifier` means in the module `base`.
///
/// # Errors
/// Why it is refused, and what would be possible.
pub(crate) fn resolve(bundle: &Bundle, base: &str, specifier: &str) -> Result<Target, String> {
    if let Some(module) = sdk::find(specifier) {
        let internal = specifier.starts_with(sdk::INTERNAL) && sdk::find(base).is_none();
        return if internal { Err(refusal(specifier)) } else { Ok(Target::Builtin(module)) };
    }
    if !specifier.starts_with("./")
        && !specifier.starts_with("../")
        && specifier != "."
        && specifier != ".."
    {
        return Err(refusal(specifier));
    }
    let path = join(base, specifier)?;
    candidates(&path)
        .into_iter()
        .find(|candidate| bundle.get(candidate).is_some())
        .map(Target::File)
        .ok_or_else(|| not_found(bundle, &path, specifier))
}

/// Path of a relative import, kept inside the workflow folder.
fn join(base: &str, specifier: &str) -> Result<String, String> {
    let mut parts: Vec<&str> = base.split('/').collect();
    parts.pop();
    for part in specifier.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
        if parts.first().is_none_or(|first| !FOLDERS.contains(first)) {
            return Err(format!(
                "cannot import \"{specifier}\": it is outside the workflow folder, and only files of \
                 that folder are known at this point; move it below {} or read it in a step",
                base.split('/').next().unwrap_or(FOLDERS[0])
            ));
        }
    }
    Ok(parts.join("/"))
}

/// The files that an import may mean, best first. `./a.js` may be written for `./a.ts`, as
/// TypeScript has it.
fn candidates(path: &str) -> Vec<String> {
    let mut all = vec![path.to_owned()];
    if let Some(stem) = path.strip_suffix(".js") {
        all.push(format!("{stem}.ts"));
    }
    if let Some(stem) = path.strip_suffix(".mjs") {
        all.push(format!("{stem}.mts"));
    }
    let extensions = ["ts", "mts", "js", "mjs"];
    all.extend(extensions.iter().map(|extension| format!("{path}.{extension}")));
    all.extend(extensions.iter().map(|extension| format!("{path}/index.{extension}")));
    all
}

fn not_found(bundle: &Bundle, path: &str, specifier: &str) -> String {
    let near = hint(path, bundle.files().map(|(path, _)| path));
    format!("cannot import \"{specifier}\": there is no {path} in the workflow folder{near}")
}

fn refusal(specifier: &str) -> String {
    let why = if specifier == "@kici-dev/sdk" {
        "that SDK is not supported yet; import from \"shuntyard\""
    } else if specifier.starts_with("node:") {
        "of Node's modules only node:fs, node:fs/promises, node:path and node:os are built in"
    } else if specifier.starts_with("file:") || specifier.starts_with('/') {
        "workflow files import each other by relative paths, never by absolute ones"
    } else if specifier.starts_with("http:") || specifier.starts_with("https:") {
        "nothing is loaded from the network; put the file into the workflow folder"
    } else if specifier.contains(':') {
        "this kind of address is not known; use \"shuntyard\" or a relative path"
    } else {
        "packages are not supported yet; use \"shuntyard\" or a relative path such as \"./helper\""
    };
    format!("cannot import \"{specifier}\": {why}")
}

/// Strips one file of the bundle.
pub(crate) fn strip_file(bundle: &Bundle, path: &str) -> Result<Stripped, Vec<Fault>> {
    let source = bundle.get(path).unwrap_or_default();
    if path.rsplit_once('.').is_some_and(|(_, extension)| extension == "json") {
        strip::json_module(path, source)
    } else {
        strip::strip(path, source)
    }
}

/// Strips `entries` and all that they import.
///
/// # Errors
/// Every syntax error and refused import of all of these files.
pub(crate) fn load(
    bundle: &Bundle,
    entries: &[&str],
) -> Result<BTreeMap<String, Stripped>, Vec<Fault>> {
    let mut modules = BTreeMap::new();
    let mut faults = Vec::new();
    let mut waiting: Vec<String> = entries.iter().map(|&path| path.to_owned()).collect();
    while let Some(path) = waiting.pop() {
        if modules.contains_key(&path) || faults.len() >= FAULTS_MAX {
            continue;
        }
        match strip_file(bundle, &path) {
            Err(found) => faults.extend(found),
            Ok(stripped) => {
                for import in &stripped.imports {
                    match check(bundle, &path, import) {
                        Ok(next) => waiting.extend(next),
                        Err(found) => faults.extend(found),
                    }
                }
                modules.insert(path, stripped);
            }
        }
    }
    faults.sort_by_key(|fault| (fault.file.clone(), fault.place.as_ref().map(|place| place.line)));
    faults.truncate(FAULTS_MAX);
    if faults.is_empty() { Ok(modules) } else { Err(faults) }
}

/// The file that an import leads to, if it leads to one.
fn check(
    bundle: &Bundle,
    path: &str,
    import: &strip::Import,
) -> Result<Option<String>, Vec<Fault>> {
    let source = bundle.get(path).unwrap_or_default();
    match resolve(bundle, path, &import.specifier) {
        Err(message) => Err(vec![Fault::at(path, source, import.at, message)]),
        Ok(Target::File(next)) => Ok(Some(next)),
        Ok(Target::Builtin(module)) => {
            let exports = sdk::exports(module);
            let unknown = import.names.iter().filter(|(name, _)| !exports.contains(name.as_str()));
            let faults: Vec<_> = unknown
                .map(|(name, at)| {
                    let near = hint(name, exports.iter().copied());
                    let message =
                        format!("\"{}\" has no export \"{name}\"{near}", import.specifier);
                    Fault::at(path, source, *at, message)
                })
                .collect();
            if faults.is_empty() { Ok(None) } else { Err(faults) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(paths: &[&str]) -> Bundle {
        Bundle::new(paths.iter().map(|path| ((*path).to_owned(), String::new())).collect()).unwrap()
    }

    fn check(specifier: &str, expected: &str) {
        let bundle = bundle(&[
            ".shuntyard/workflows/ci.ts",
            ".shuntyard/lib/index.mts",
            ".shuntyard/lib/a.ts",
            ".shuntyard/lib/b.mjs",
            ".shuntyard/data.json",
        ]);
        let found = match resolve(&bundle, ".shuntyard/workflows/ci.ts", specifier) {
            Ok(Target::File(path)) => path,
            Ok(Target::Builtin(module)) => module.name.to_owned(),
            Err(message) => message,
        };
        assert_eq!(found, expected, "{specifier}");
    }

    #[test]
    fn relative_imports_stay_inside_the_folder() {
        check("../lib/a", ".shuntyard/lib/a.ts");
        check("../lib/a.ts", ".shuntyard/lib/a.ts");
        check("../lib/a.js", ".shuntyard/lib/a.ts");
        check("../lib/b", ".shuntyard/lib/b.mjs");
        check("../lib", ".shuntyard/lib/index.mts");
        check("../data.json", ".shuntyard/data.json");
        check("shuntyard", "shuntyard");
        check("node:path", "node:path");
    }

    #[test]
    fn a_refusal_says_why_and_what_is_possible() {
        let outside = "it is outside the workflow folder, and only files of that folder are known at this \
                       point; move it below .shuntyard or read it in a step";
        for specifier in ["../../etc/passwd", "../../../../etc/passwd", "../../.shuntyard/../x"] {
            check(specifier, &format!("cannot import \"{specifier}\": {outside}"));
        }
        check(
            "../lib/aa",
            "cannot import \"../lib/aa\": there is no .shuntyard/lib/aa in the workflow folder; did you \
             mean \".shuntyard/lib/a.ts\"?",
        );
        let bundle = bundle(&[]);
        for (specifier, word) in [
            ("@kici-dev/sdk", "not supported yet"),
            ("node:child_process", "node:fs, node:fs/promises"),
            ("file:///etc/passwd", "relative paths"),
            ("/etc/passwd", "relative paths"),
            ("https://example.com/x.js", "network"),
            ("npm:x", "not known"),
            ("lodash", "packages are not supported yet"),
            ("shuntyard:host", "not known"),
        ] {
            let message = resolve(&bundle, ".shuntyard/workflows/ci.ts", specifier).unwrap_err();
            assert!(message.contains(word), "{specifier}: {message}");
        }
    }
}
