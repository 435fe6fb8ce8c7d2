//! Commands that a person types.

use std::{fs, os::unix::fs::PermissionsExt as _};

use serde_json::json;
use shuntyard_sim::forge::commit_folder;

use crate::{
    machine::{Machine, write},
    world::{CI, Db, World, ci},
};

#[tokio::test]
async fn init_makes_what_compile_preview_and_run_take() {
    let machine = Machine::new();
    let folder = machine.folder("web", &[("README.md", "hello")]);
    let path = folder.to_str().unwrap();
    let out = machine.run(&["init", path]).await.ok();
    assert!(out.contains("shunt run"), "{out}");
    for file in [CI, ".shuntyard/shuntyard.d.ts", ".shuntyard/tsconfig.json"] {
        assert!(folder.join(file).is_file(), "{file}");
    }
    let out = machine.run(&["compile", "-C", path]).await.ok();
    assert!(out.contains(CI), "{out}");
    let plan = machine.run(&["compile", "-C", path, "--json"]).await.json();
    assert_eq!(plan["workflows"][0]["name"], "ci");
    machine.run(&["run", "-C", path]).await.ok();
    // What people wrote stays.
    write(&folder, &[(CI, &ci("job('mine', { steps: [sh('true')] })"))]);
    let out = machine.run(&["init", path]).await.ok();
    assert!(out.contains("kept"), "{out}");
    let out = machine.run(&["compile", "-C", path]).await.ok();
    assert!(out.contains("mine"), "{out}");
}

#[tokio::test]
async fn preview_says_what_would_run_and_why_and_holds_people_to_it() {
    let machine = Machine::new();
    let folder = machine.folder(
        "web",
        &[(
            CI,
            "import { job, pr, push, sh, tag, workflow } from 'shuntyard';\n\
             const jobs = [job('a', { steps: [sh('true')] })];\n\
             export const a = workflow('docs', { on: push({ paths: 'docs/**' }), jobs });\n\
             export const b = workflow('review', { on: pr({ target: 'main' }), jobs });\n\
             export const c = workflow('release', { on: tag('v*'), jobs });\n",
        )],
    );
    let path = folder.to_str().unwrap();
    let preview =
        async |args: &[&str]| machine.run(&[&["preview"], args, &["-C", path]].concat()).await;
    let docs =
        preview(&["push", "--files", "docs/a.md,src/b.rs", "--expect", "docs,!review"]).await;
    assert!(docs.ok().contains("docs/a.md"));
    preview(&["push", "--files", "src/b.rs", "--expect", "!docs"]).await.ok();
    preview(&["tag", "--tag", "v2", "--expect", "release,!docs"]).await.ok();
    preview(&["pr", "--target", "main", "--expect", "review"]).await.ok();
    let wrong = preview(&["push", "--files", "src/b.rs", "--expect", "docs"]).await;
    assert_eq!((wrong.code, wrong.err.contains("expected docs")), (1, true), "{}", wrong.err);
    let unknown = preview(&["push", "--expect", "dosc"]).await;
    assert_eq!((unknown.code, unknown.err.contains("dosc")), (2, true), "{}", unknown.err);
    let shown = preview(&["push", "--files", "", "--json"]).await.json();
    assert_eq!(shown["items"][0]["runs"], false);
}

#[tokio::test]
async fn run_takes_the_working_tree_as_it_is_and_leaves_nothing() {
    let machine = Machine::new();
    let files = [(CI, ci("job('a', { steps: [sh('cat new.txt; test ! -e ignored.txt')] })"))];
    let files: Vec<_> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
    let folder = machine.folder("web", &files);
    write(&folder, &[(".gitignore", "ignored.txt\n")]);
    commit_folder(&folder, "begin").unwrap();
    write(&folder, &[("new.txt", "not committed\n"), ("ignored.txt", "")]);
    let path = folder.to_str().unwrap();
    let out = machine.run(&["run", "-C", path]).await.ok();
    assert!(out.contains("not committed"), "{out}");
    let left: Vec<_> = fs::read_dir(machine.path("tmp")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    let named = machine.run(&["run", "ci", "-C", path, "--json"]).await.ok();
    assert!(named.lines().all(|line| line.starts_with('{')), "{named}");
    let unknown = machine.run(&["run", "cii", "-C", path]).await;
    assert_eq!((unknown.code, unknown.err.contains("ci")), (2, true), "{}", unknown.err);
    write(&folder, &[(CI, &ci("job('a', { steps: [sh('exit 9')] })"))]);
    assert_eq!(machine.run(&["run", "-C", path]).await.code, 1);
}

#[tokio::test]
async fn a_mistake_in_a_workflow_file_is_shown_where_it_is() {
    let machine = Machine::new();
    let folder = machine.folder("web", &[]);
    let path = folder.to_str().unwrap().to_owned();
    for (text, place, part) in [
        ("\n\nconst x: number = ;\n", ":3:", ""),
        ("import { job } from 'shuntyard';\n\nthrow new Error('no way');\n", ":3:", "no way"),
        ("import fs from '../../secret';\nfs();\n", ":1", "secret"),
        ("while (true) {}\n", "", "5 s"),
    ] {
        write(&folder, &[(CI, text)]);
        let done = machine.run(&["compile", "-C", &path]).await;
        assert_eq!(done.code, 2, "{text}: {}", done.err);
        assert!(done.err.contains(&format!("{CI}{place}")), "{text}: {}", done.err);
        assert!(done.err.contains(part), "{text}: {}", done.err);
    }
    write(
        &folder,
        &[(CI, "import { workflow } from 'shuntyard';\nworkflow('ci', { jobs: [] });\n")],
    );
    let forgotten = machine.run(&["compile", "-C", &path]).await;
    assert_eq!(forgotten.code, 2, "{}", forgotten.err);
    assert!(forgotten.err.contains("export default workflow"), "{}", forgotten.err);
}

#[tokio::test]
async fn tokens_come_from_files_and_the_environment_and_never_as_arguments() {
    let world = World::new(Db::Sqlite).await;
    let made = world.shunt(&["admin", "token", "create", "robot", "--role", "operator"]).await;
    assert!(made.err.contains("shown once"), "{}", made.err);
    let token = made.ok().trim().to_owned();
    assert!(token.starts_with("shunt_") && !token.contains(char::is_whitespace));
    let url = world.api.url.clone();

    let refused = world.machine.run(&["runs", "list", "--url", &url, "--token", &token]).await;
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("SHUNT_TOKEN") && !refused.err.contains(&token));
    for command in [
        ["login", &url, "--token", &token].as_slice(),
        &["agent", "--coordinator", &url, "--data", "a", "--enrol-token", &token],
        &["serve", "--data", "b", "--database-url", "postgres://u:p@h/d"],
        &["admin", "source", "add", "github", "x", "--url", &url, "--webhook-secret", "s"],
    ] {
        let refused = world.machine.run(command).await;
        assert_eq!(refused.code, 2, "{command:?}: {}", refused.out);
    }
    let file = world.machine.path("token");
    fs::write(&file, format!("{token}\n")).unwrap();
    let file = file.to_str().unwrap();
    world.machine.run(&["runs", "list", "--url", &url, "--token", file]).await.ok();
    let mut command = world.machine.command(&["runs", "list"]);
    command.env("SHUNT_TOKEN", &token).env("SHUNT_URL", &url);
    world.machine.spawn(command, "runs").done().await.ok();
    // An operator may not do what an admin may.
    let args = ["admin", "token", "list", "--url", &url, "--token", file];
    let refused = world.machine.run(&args).await;
    assert!(refused.code == 2 && refused.err.contains("needs the role admin"), "{}", refused.err);
    let list = world.shunt(&["admin", "token", "list", "--json"]).await.json();
    let robot = list["items"].as_array().unwrap().iter().find(|t| t["name"] == "robot").unwrap();
    assert!(robot["used_at"].is_i64() && robot["expires_at"].is_i64(), "{robot}");
    assert_eq!(robot["role"], "operator");
    world.shunt(&["admin", "token", "revoke", robot["id"].as_str().unwrap()]).await.ok();
    let revoked = world.machine.run(&["runs", "list", "--url", &url, "--token", file]).await;
    assert!(revoked.code == 2 && revoked.err.contains("revoked"), "{}", revoked.err);
}

#[tokio::test]
async fn login_keeps_a_private_profile_that_later_commands_use() {
    let world = World::new(Db::Sqlite).await;
    let token = world.api.new_token(&json!({ "name": "me", "kind": "api" })).await;
    let file = world.machine.path("token");
    let (url, path) = (world.api.url.as_str(), file.to_str().unwrap());
    let login = ["login", url, "--with-token-file", path];
    fs::write(&file, "shunt_wrong").unwrap();
    let wrong = world.machine.run(&login).await;
    assert_eq!(wrong.code, 2, "{}", wrong.err);
    let profile = world.machine.path("config/shuntyard/profile.toml");
    assert!(!profile.exists());
    fs::write(&file, &token).unwrap();
    world.machine.run(&login).await.ok();
    assert_eq!(fs::metadata(&profile).unwrap().permissions().mode() & 0o777, 0o600);
    let list = world.machine.run(&["runs", "list", "--json"]).await.json();
    assert_eq!(list["items"], json!([]));
}

#[tokio::test]
async fn a_workflow_is_started_by_hand_at_a_ref() {
    let mut world = World::with_agent(Db::Sqlite).await;
    let web = world.repository("web").await;
    let manual = |text: &str| {
        format!(
            "import {{ job, manual, sh, workflow }} from 'shuntyard';\n\
             export default workflow('deploy', {{ on: manual(), jobs: [job('a', {{ steps: [sh('echo {text}')] }})] }});"
        )
    };
    let first = web.commit("main", &[(CI, &manual("from main"))]).unwrap();
    web.commit("topic", &[(CI, &manual("from topic"))]).unwrap();
    web.tag("v1", &first).unwrap();
    for (at, text) in [
        (None, "from main"),
        (Some("topic"), "from topic"),
        (Some("refs/tags/v1"), "from main"),
        (Some(first.as_str()), "from main"),
    ] {
        let at: Vec<_> = at.map(|at| ["--ref", at]).into_iter().flatten().collect();
        let args = [&["runs", "start", "deploy", "--source", "web"], at.as_slice()].concat();
        let run = world.shunt(&args).await.ok();
        let run = world.api.ended(run.trim()).await;
        assert_eq!(run["run"]["state"], "success", "{run}");
        world.api.logs(&run["jobs"][0], text).await;
    }
    let unknown = world.shunt(&["runs", "start", "deplyo", "--source", "web"]).await;
    assert!(unknown.code == 2 && unknown.err.contains("deploy"), "{}", unknown.err);
    world.agents.clear();
}
