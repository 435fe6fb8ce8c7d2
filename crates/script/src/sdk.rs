//! The modules that are built into the engine, and the types that editors get.

use std::collections::BTreeSet;

/// Type declarations of the module `shuntyard`, for editors: `.shuntyard/shuntyard.d.ts`.
pub const TYPES: &str = include_str!("sdk/shuntyard.d.ts");

/// Version of what a workflow file may say; part of every plan key.
pub(crate) const VERSION: &str = "shuntyard-sdk-1";

/// Modules under this prefix are for built-in modules only.
pub(crate) const INTERNAL: &str = "shuntyard:";

/// One built-in module.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Module {
    /// Canonical specifier.
    pub(crate) name: &'static str,
    pub(crate) source: &'static str,
}

macro_rules! modules {
    ($($name:literal => $file:literal),* $(,)?) => {
        &[$(Module { name: $name, source: include_str!(concat!("sdk/", $file)) }),*]
    };
}

static MODULES: &[Module] = modules! {
    "shuntyard" => "shuntyard.js",
    "shuntyard:format" => "format.js",
    "shuntyard:host" => "host.js",
    "shuntyard:nodes" => "nodes.js",
    "shuntyard:planning" => "planning.js",
    "shuntyard:runtime" => "runtime.js",
    "shuntyard:command" => "command.js",
    "shuntyard:web" => "web.js",
    "node:fs" => "node_fs.js",
    "node:fs/promises" => "node_fs_promises.js",
    "node:os" => "node_os.js",
    "node:path" => "node_path.js",
};

/// The built-in module that a specifier names.
pub(crate) fn find(specifier: &str) -> Option<&'static Module> {
    let name = match specifier {
        "fs" => "node:fs",
        "fs/promises" => "node:fs/promises",
        "os" => "node:os",
        "path" => "node:path",
        other => other,
    };
    MODULES.iter().find(|module| module.name == name)
}

/// What a built-in module exports. Their sources declare every export at the start of a line.
pub(crate) fn exports(module: &Module) -> BTreeSet<&'static str> {
    let mut names = BTreeSet::new();
    for line in module.source.lines() {
        let Some(rest) = line.strip_prefix("export ") else { continue };
        if rest.starts_with("default ") {
            names.insert("default");
        }
        let declared = ["async function ", "function ", "const ", "let ", "class "]
            .iter()
            .find_map(|keyword| rest.strip_prefix(keyword));
        if let Some(declared) = declared {
            let end =
                declared.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(declared.len());
            names.insert(&declared[..end]);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_export_of_the_sdk_has_types() {
        for name in exports(find("shuntyard").unwrap()) {
            let declared = ["function", "const"].iter().any(|kind| {
                TYPES.contains(&format!("export {kind} {name}("))
                    || TYPES.contains(&format!("export {kind} {name}<"))
                    || TYPES.contains(&format!("export {kind} {name}:"))
            });
            assert!(declared || is_unsupported(name), "{name} is missing in shuntyard.d.ts");
        }
    }

    fn is_unsupported(name: &str) -> bool {
        find("shuntyard").unwrap().source.contains(&format!("export const {name} = later("))
    }
}
