//! `cargo xtask tidy`: house rules as a test.
//!
//! Dependencies point down only; SQL stays in `store`; files and functions stay short; every limit has
//! a test that names it.

mod limits;
mod sizes;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use cargo_metadata::{DependencyKind, MetadataCommand};

/// What each crate may depend on within the workspace.
const ARROWS: [(&str, &[&str]); 9] = [
    ("protocol", &[]),
    ("core", &["protocol"]),
    ("store", &["protocol", "core"]),
    ("script", &["protocol"]),
    ("agent", &["protocol", "core", "script"]),
    ("server", &["protocol", "core", "store", "script"]),
    ("cli", &["protocol", "core", "store", "script", "server", "agent"]),
    ("sim", &["protocol", "core", "store", "script", "server", "agent", "cli"]),
    ("xtask", &[]),
];

/// Crates from outside that only one crate may name.
const OWNED: [(&str, &str); 3] = [("sqlx", "store"), ("rquickjs", "script"), ("oxc", "script")];

/// Words that have no place in the pure core.
const NOT_IN_CORE: [&str; 4] = ["tokio", "std::fs", "std::net", "async fn"];

/// Rules that were broken, each with its place.
#[derive(Default)]
pub(crate) struct Faults(Vec<String>);

impl Faults {
    pub(crate) fn add(&mut self, place: &Path, message: impl std::fmt::Display) {
        self.0.push(format!("{}: {message}", place.display()));
    }
}

/// One Rust file of the workspace.
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

pub(crate) fn run() -> anyhow::Result<()> {
    let mut faults = Faults::default();
    arrows(&mut faults)?;
    let sources = sources()?;
    for source in &sources {
        words(source, &mut faults);
        sizes::check(source, &mut faults)?;
    }
    limits::check(&sources, &mut faults)?;
    documents(&mut faults)?;
    for fault in &faults.0 {
        eprintln!("tidy: {fault}");
    }
    if !faults.0.is_empty() {
        bail!("{} house rules are broken", faults.0.len());
    }
    println!("tidy: {} files are in order", sources.len());
    Ok(())
}

/// Dependencies within the workspace follow the arrows, and owned crates have one owner.
fn arrows(faults: &mut Faults) -> anyhow::Result<()> {
    let metadata = MetadataCommand::new().no_deps().exec().context("read the workspace")?;
    for package in &metadata.packages {
        let name = package.name.strip_prefix("shuntyard-").unwrap_or(&package.name);
        let place = package.manifest_path.as_std_path();
        let Some((_, allowed)) = ARROWS.iter().find(|(known, _)| *known == name) else {
            faults.add(place, format!("crate '{name}' is not in the list of arrows"));
            continue;
        };
        for dependency in &package.dependencies {
            let development = dependency.kind == DependencyKind::Development;
            if let Some(inner) = dependency.name.strip_prefix("shuntyard-")
                && !allowed.contains(&inner)
                && !(development && (inner == name || inner == "sim"))
            {
                faults.add(place, format!("'{name}' must not depend on '{inner}'"));
            }
            let owner = OWNED.iter().find(|(owned, _)| *owned == dependency.name);
            if let Some((owned, owner)) = owner
                && *owner != name
            {
                faults.add(place, format!("only '{owner}' may depend on {owned}"));
            }
        }
    }
    Ok(())
}

/// Words that must not appear in a file.
fn words(source: &Source, faults: &mut Faults) {
    let path = source.path.to_string_lossy();
    let code = source.text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code: Vec<_> = code.collect();
    let has = |word: &str| code.iter().any(|line| line.contains(word));
    if path.starts_with("crates/core/src") {
        for word in NOT_IN_CORE.iter().filter(|word| has(word)) {
            faults.add(&source.path, format!("core is pure: '{word}' has no place in it"));
        }
    }
    if !path.starts_with("crates/store") && !path.starts_with("xtask") {
        for word in ["sqlx::", "select * from ", "insert into "].iter().filter(|word| has(word)) {
            faults.add(&source.path, format!("SQL lives in store: '{word}'"));
        }
    }
    if source.path.file_name().is_some_and(|name| name == "mod.rs") {
        faults.add(&source.path, "write foo.rs and foo/bar.rs instead of foo/mod.rs");
    }
    for name in ["utils", "helpers", "common", "misc"] {
        if source.path.file_stem().is_some_and(|stem| stem == name) {
            faults.add(&source.path, format!("'{name}' says nothing: name the subject"));
        }
    }
}

/// Documents that must exist, and how long one of them may be.
fn documents(faults: &mut Faults) -> anyhow::Result<()> {
    const ARCHITECTURE_LINES_MAX: usize = 300;
    for name in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE", "deny.toml"] {
        if !Path::new(name).exists() {
            faults.add(Path::new(name), "is missing");
        }
    }
    let path = Path::new("ARCHITECTURE.md");
    let lines = fs::read_to_string(path).context("read ARCHITECTURE.md")?.lines().count();
    if lines > ARCHITECTURE_LINES_MAX {
        faults.add(path, format!("{lines} lines, above {ARCHITECTURE_LINES_MAX}"));
    }
    Ok(())
}

fn sources() -> anyhow::Result<Vec<Source>> {
    let mut paths = BTreeSet::new();
    for root in ["crates", "xtask"] {
        collect(Path::new(root), &mut paths)?;
    }
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(Source { path, text })
    };
    paths.into_iter().map(read).collect()
}

fn collect(folder: &Path, paths: &mut BTreeSet<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let path = entry.context("list a folder")?.path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            collect(&path, paths)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.insert(path);
        }
    }
    Ok(())
}
