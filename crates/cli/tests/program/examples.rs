//! Repositories as they are: our examples, and one that nobody here wrote.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::json;
use shuntyard_sim::forge::{commit_folder, head};

use crate::{
    machine::{Machine, write},
    world::{CI, Db, SECRET, World},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            // What somebody built there is not part of it.
            if !["target", "node_modules", "__pycache__"].iter().any(|name| target.ends_with(name))
            {
                copy(&entry.path(), &target);
            }
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

async fn runs_green(example: &str) {
    let machine = Machine::new();
    let folder = machine.path(example);
    copy(&root().join("examples").join(example), &folder);
    machine.run(&["run", "-C", folder.to_str().unwrap()]).await.ok();
}

#[tokio::test]
async fn hello_runs_green() {
    runs_green("hello").await;
}

#[tokio::test]
async fn the_rust_crate_runs_green() {
    runs_green("rust-crate").await;
}

#[tokio::test]
async fn the_node_package_runs_green() {
    runs_green("node-package").await;
}

#[tokio::test]
async fn the_monorepo_runs_green() {
    runs_green("monorepo").await;
}

#[test]
fn every_example_is_tried() {
    let mut names: Vec<_> = fs::read_dir(root().join("examples"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["hello", "monorepo", "node-package", "rust-crate"]);
}

/// A crate without dependencies that our own build has fetched.
const FOREIGN: &str = "shlex";

const TEN_LINES: &str = "\
import { job, push, sh, step, workflow } from 'shuntyard';

const test = job('test', {
  env: { CARGO_NET_OFFLINE: 'true' },
  steps: [sh('build', 'cargo build'), sh('test', 'cargo test')],
});
const list = job('list', { needs: test, steps: [sh('ls src')] });

export default workflow('ci', { on: push(), jobs: [test, list] });
";

#[tokio::test]
async fn a_crate_that_nobody_here_wrote_is_built_and_tested_offline() {
    let machine = Machine::new();
    let folder = machine.path(FOREIGN);
    copy(&foreign(), &folder);
    write(&folder, &[(CI, TEN_LINES), (".gitignore", "target\n")]);
    commit_folder(&folder, "as it was published").unwrap();
    let args = ["dev", folder.to_str().unwrap(), "--once", "--listen", "127.0.0.1:0"];
    let out = machine.run(&args).await.ok();
    assert!(out.contains("test result: ok."), "{out}");
}

#[tokio::test]
async fn the_same_crate_goes_through_postgres_and_an_agent_elsewhere() {
    let world = World::with_agent(Db::Postgres).await;
    let folder = world.machine.path(FOREIGN);
    copy(&foreign(), &folder);
    write(&folder, &[(CI, TEN_LINES), (".gitignore", "target\n")]);
    commit_folder(&folder, "as it was published").unwrap();
    let url = format!("file://{}", folder.display());
    let source = json!({ "name": "it", "kind": "github", "url": url, "webhook_secret": SECRET });
    world.api.post("/sources", &source).await;
    let forge = world.forge.repository("it").unwrap();
    let hook = forge.push("1", "refs/heads/main", None, &head(&folder).unwrap());
    let (_, answer) = world.api.deliver("it", Some(SECRET), &hook).await;
    let delivery = world.api.settled(&answer["delivery"]).await;
    let run = world.api.ended(&world.api.runs_of(&delivery).await[0]).await;
    assert_eq!(run["run"]["state"], "success", "{run}");
    world.api.logs(&run["jobs"][0], "test result: ok.").await;
}

/// Where cargo has unpacked the crate.
fn foreign() -> PathBuf {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let (_, rest) = lock.split_once(&format!("name = \"{FOREIGN}\"\nversion = \"")).unwrap();
    let name = format!("{FOREIGN}-{}", rest.split('"').next().unwrap());
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.unwrap_or_else(|| Path::new(&std::env::var_os("HOME").unwrap()).join(".cargo"));
    let registries = fs::read_dir(home.join("registry/src")).unwrap();
    let mut found = registries.map(|entry| entry.unwrap().path().join(&name));
    found.find(|path| path.is_dir()).expect("our own build has fetched it")
}
