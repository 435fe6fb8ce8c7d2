//! What a command cannot see or do.

use shuntyard_protocol::{
    Outcome,
    agent::{Code, Containment},
};

use crate::{
    coordinator::{Manners, Seen},
    world::{World, runs, sh, spec, unique_sleep},
};

/// What every kind of agent must keep to.
fn looks() -> &'static str {
    "ls -A $DATA; echo ---; ls $DATA/attempts 2>&1 | tail -1; \
     cat $DATA/agent.key 2>/dev/null; \
     cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c SECRET_OF_THE_AGENT; \
     ps -e | wc -l; env | grep -c SECRET; ls -l /proc/self/fd | grep -vc -e '/proc/' -e total; \
     umount $DATA 2>/dev/null && echo unmounted; umask; id -u"
}

async fn look(world: &World) -> Seen {
    let mut spec = spec(vec![sh(looks()), sh("true")]);
    spec.env.insert("DATA".into(), world.data().to_string_lossy().into_owned());
    for step in &mut spec.steps {
        step.continue_on_error = true;
    }
    let command = spec.steps[0].clone();
    if let shuntyard_protocol::plan::Action::Shell { command, .. } = command.action {
        spec.steps[0].action = shuntyard_protocol::plan::Action::Shell {
            command,
            shell: Some(vec!["bash".into()]),
            cwd: None,
        };
    }
    let id = world.coordinator.submit(spec, b"{}");
    world.coordinator.ended(id).await
}

fn check(seen: &Seen, uid: &str) {
    let text = seen.text(1);
    let (listing, rest) = text.split_once("---\n").unwrap();
    assert_eq!(listing, "work\n", "{text}");
    let lines: Vec<_> = rest.lines().collect();
    assert!(lines[0].contains("No such file"), "{text}");
    assert_eq!(lines[1], "0", "the agent's environment: {text}");
    assert!(lines[2].trim().parse::<u32>().unwrap() < 8, "foreign processes: {text}");
    assert_eq!(lines[3], "0", "{text}");
    assert_eq!(lines[5..], ["0022", uid], "{text}");
}

#[tokio::test]
async fn a_command_of_a_root_agent_sees_neither_data_nor_processes() {
    let world = World::new(Manners::default()).await;
    let seen = look(&world).await;
    check(&seen, "0");
    assert_eq!(world.coordinator.hellos()[0].containment, Containment::Namespace);
}

#[tokio::test]
async fn a_command_of_an_agent_without_root_sees_neither_data_nor_processes() {
    let world = World::as_user(Manners::default(), 65534).await;
    let seen = look(&world).await;
    check(&seen, "65534");
    assert_eq!(world.coordinator.hellos()[0].containment, Containment::Namespace);
}

#[tokio::test]
async fn with_run_as_commands_and_workspace_belong_to_that_user() {
    let world = World::with_args(Manners::default(), &["--run-as", "nobody"]).await;
    let seen = look(&world).await;
    check(&seen, "65534");
    let id = world
        .submit(vec![sh("touch mine; stat -c %u mine . ; echo A=1 >> $SHUNT_ENV"), sh("echo $A")]);
    let seen = world.coordinator.ended(id).await;
    assert_eq!((seen.text(1).as_str(), seen.text(2).as_str()), ("65534\n65534\n", "1\n"));
}

/// A repository with one commit.
fn source(world: &World) -> Code {
    let repo = world.temp.path().join("repo");
    std::fs::create_dir(&repo).unwrap();
    let git = |args: &[&str]| {
        let output = std::process::Command::new("git")
            .args(["-c", "user.name=t", "-c", "user.email=t@example.org"])
            .args(args)
            .current_dir(&repo)
            .output()
            .unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    git(&["init", "--quiet", "-b", "main"]);
    std::fs::write(repo.join("file"), "content\n").unwrap();
    git(&["add", "."]);
    git(&["commit", "--quiet", "-m", "first"]);
    Code {
        url: format!("file://{}", repo.display()),
        commit: git(&["rev-parse", "HEAD"]),
        ref_name: Some("refs/heads/main".into()),
    }
}

#[tokio::test]
async fn the_source_is_there_and_a_missing_commit_fails_with_the_reason() {
    let world = World::with_args(Manners::default(), &["--run-as", "nobody"]).await;
    let code = source(&world);
    let with_code = |commit: &str| {
        let mut spec = spec(vec![sh("cat file; git log --format=%s; stat -c %u file")]);
        spec.code = Some(Code { commit: commit.into(), ..code.clone() });
        spec
    };
    let id = world.coordinator.submit(with_code(&code.commit), b"{}");
    let seen = world.coordinator.ended(id).await;
    assert_eq!(seen.text(1), "content\nfirst\n65534\n", "{}", seen.text(0));
    assert!(seen.text(0).contains(&code.commit));
    let id = world.coordinator.submit(with_code(&"0".repeat(40)), b"{}");
    let seen = world.coordinator.ended(id).await;
    let end = seen.end().unwrap();
    assert_eq!(end.outcome, Outcome::Failed);
    assert!(end.reason.as_deref().unwrap().contains("cannot get the source code"), "{end:?}");
}

#[tokio::test]
async fn without_namespaces_another_user_still_sees_no_data_and_leaves_nothing() {
    let args = ["--run-as", "nobody", "--containment", "subreaper"];
    let world = World::with_args(Manners::default(), &args).await;
    let sleep = unique_sleep();
    let mut spec = spec(vec![
        sh("ls $DATA || true; ls $DATA/attempts || true; cat $DATA/agent.key || true; \
            cat /proc/$PPID/environ | wc -c || true"),
        sh(&format!("setsid sleep {sleep} & sleep {sleep} & echo up")),
        sh("echo after"),
    ]);
    spec.env.insert("DATA".into(), world.data().to_string_lossy().into_owned());
    let id = world.coordinator.submit(spec, b"{}");
    let seen = world.coordinator.ended(id).await;
    assert_eq!(seen.text(1).matches("Permission denied").count(), 4, "{}", seen.text(1));
    assert_eq!((seen.text(2).as_str(), seen.text(3).as_str()), ("up\n", "after\n"));
    assert!(!runs(&sleep));
    assert_eq!(world.coordinator.hellos()[0].containment, Containment::Subreaper);
}

/// Whoever could change a mirror would run as the agent with the next checkout.
#[tokio::test]
async fn without_namespaces_another_user_reaches_no_mirror() {
    let args = ["--run-as", "nobody", "--containment", "subreaper"];
    let world = World::with_args(Manners::default(), &args).await;
    let code = source(&world);
    let script = "cat file; git fsck --strict && git status --porcelain; id -G; \
        ls $DATA/mirrors || true; echo >> $DATA/gitconfig || true; \
        for mirror in $MIRRORS; do cat $mirror/HEAD || true; echo >> $mirror/config || true; done";
    let with = |mirrors: &str| {
        let mut spec = spec(vec![sh(script)]);
        spec.env.insert("DATA".into(), world.data().to_string_lossy().into_owned());
        spec.env.insert("MIRRORS".into(), mirrors.into());
        spec.code = Some(code.clone());
        spec
    };
    let id = world.coordinator.submit(with(""), b"{}");
    let seen = world.coordinator.ended(id).await;
    assert!(seen.text(1).starts_with("content\n"), "{}{}", seen.text(0), seen.text(1));
    let mirrors = std::fs::read_dir(world.data().join("mirrors")).unwrap().flatten();
    let mirrors = mirrors.map(|entry| entry.path()).filter(|path| path.is_dir());
    let mirrors: Vec<_> = mirrors.map(|path| path.to_string_lossy().into_owned()).collect();
    assert_eq!(mirrors.len(), 1);
    let id = world.coordinator.submit(with(&mirrors[0]), b"{}");
    let seen = world.coordinator.ended(id).await;
    let text = seen.text(1);
    assert_eq!(text.matches("ermission denied").count(), 4, "{text}");
}

#[tokio::test]
async fn a_root_agent_without_containment_or_another_user_refuses_to_start() {
    let mut world = World::with_args(Manners::default(), &["--containment", "subreaper"]).await;
    let status = world.agent.take().unwrap().wait().unwrap();
    assert!(!status.success());
    let log = std::fs::read_to_string(world.temp.path().join("agent.log")).unwrap();
    assert!(log.contains("run_as"), "{log}");
}
