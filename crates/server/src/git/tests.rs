use std::{fs, os::unix::fs::symlink, process};

use shuntyard_protocol::Timestamp;

use super::*;

fn sh(folder: &Path, script: &str) -> String {
    let output = process::Command::new("sh")
        .args(["-ec", script])
        .current_dir(folder)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_NAME"), "Ada")))
        .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_EMAIL"), "ada@example.org")))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

struct Fixture {
    dir: tempfile::TempDir,
    git: Git,
    source: SourceId,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("repo")).unwrap();
        let git = Git::new(dir.path().join("mirrors"));
        Self { dir, git, source: SourceId::mint(Timestamp(1), [0; 10]) }
    }

    fn repo(&self) -> PathBuf {
        self.dir.path().join("repo")
    }

    fn url(&self) -> String {
        self.repo().to_str().unwrap().to_owned()
    }
}

#[tokio::test]
async fn the_workflow_folder_is_read_as_blobs_and_symlinks_are_not_followed() {
    let f = Fixture::new();
    let folder = f.repo().join(".shuntyard/workflows");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("ci.ts"), "export default 1;\n").unwrap();
    fs::write(folder.join("naïve name.ts"), "x").unwrap();
    fs::write(folder.join("image.png"), [0xff, 0xd8, 0]).unwrap();
    symlink("/etc/passwd", folder.join("passwd.ts")).unwrap();
    let commit = sh(
        &f.repo(),
        "git init -q -b main . && git add . && git commit -qm 'Subject line' && git rev-parse HEAD",
    );
    let known = f.git.fetch(f.source, &f.url(), &[&commit], &[&"0".repeat(40)]).await.unwrap();
    assert_eq!(known, BTreeMap::from([(commit.clone(), commit.clone())]), "others may be missing");
    let files = f.git.workflow_folder(f.source, &commit).await.unwrap();
    let names: Vec<_> = files.keys().map(String::as_str).collect();
    assert_eq!(names, [".shuntyard/workflows/ci.ts", ".shuntyard/workflows/naïve name.ts"]);
    assert_eq!(files[".shuntyard/workflows/ci.ts"], "export default 1;\n");
    let info = f.git.commit_info(f.source, &commit).await.unwrap();
    assert_eq!(info, CommitInfo { subject: "Subject line".into(), author: "Ada".into() });
    let head = f.git.default_head(&f.url()).await.unwrap();
    assert_eq!(head, Head { commit, ref_name: Some("refs/heads/main".into()) });
}

#[tokio::test]
async fn a_rename_counts_with_both_names_and_odd_names_are_kept() {
    let f = Fixture::new();
    sh(&f.repo(), "git init -q -b main . && echo a > 'o\"l d' && git add . && git commit -qm one");
    let before = sh(&f.repo(), "git rev-parse HEAD");
    let after = sh(
        &f.repo(),
        "git mv 'o\"l d' 'n\new ü' && git add . && git commit -qm two && git rev-parse HEAD",
    );
    f.git.fetch(f.source, &f.url(), &[&after], &[&before]).await.unwrap();
    let changed = f.git.changed(f.source, &before, &after).await.unwrap();
    let Changed::Files(mut files) = changed else { panic!("known") };
    files.sort();
    assert_eq!(files, ["n\new ü", "o\"l d"]);
    assert_eq!(f.git.merge_base(f.source, &before, &after).await, Some(before));
}

#[tokio::test]
async fn a_plain_folder_is_committed_only_when_it_changed() {
    let f = Fixture::new();
    fs::write(f.repo().join("a"), "1").unwrap();
    let (_, first) = f.git.snapshot(f.source, &f.repo()).await.unwrap();
    let (_, again) = f.git.snapshot(f.source, &f.repo()).await.unwrap();
    assert_eq!(first, again);
    fs::write(f.repo().join("a"), "2").unwrap();
    let (repository, second) = f.git.snapshot(f.source, &f.repo()).await.unwrap();
    assert_ne!(first.commit, second.commit);
    assert_eq!(sh(&repository, &format!("git show {}:a", second.commit)), "2");
    assert!(!is_repository(&f.repo()).await);
}

#[tokio::test]
async fn an_annotated_tag_stands_for_its_commit() {
    let f = Fixture::new();
    sh(&f.repo(), "git init -q -b main . && echo a > a && git add . && git commit -qm one");
    let commit = sh(&f.repo(), "git rev-parse HEAD");
    let tag = sh(&f.repo(), "git tag -a v1 -m 'Version 1' && git rev-parse v1");
    let known = f.git.fetch(f.source, &f.url(), &[&tag], &[]).await.unwrap();
    assert_eq!(known, BTreeMap::from([(tag, commit)]));
    let tree = sh(&f.repo(), "git rev-parse 'HEAD^{tree}'");
    assert!(f.git.fetch(f.source, &f.url(), &[], &[&tree]).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_missing_commit_is_a_clear_error() {
    let f = Fixture::new();
    sh(&f.repo(), "git init -q -b main . && echo a > a && git add . && git commit -qm one");
    let gone = "0123456789012345678901234567890123456789";
    let error = f.git.fetch(f.source, &f.url(), &[gone], &[]).await.unwrap_err();
    assert!(error.to_string().contains(gone), "{error}");
}

#[test]
fn commits_and_urls_are_checked_before_git_sees_them() {
    for commit in ["", "main", "--upload-pack=x", "HEAD", &"g".repeat(40), &"a".repeat(41)] {
        assert!(check_commit(commit).is_err(), "{commit}");
    }
    assert!(check_commit(&"a".repeat(40)).is_ok());
    for url in ["https://h/x", "ssh://h/x", "git@h:x.git", "file:///x", "/x"] {
        assert!(check_url(url).is_ok(), "{url}");
    }
    for url in [
        "ext::sh -c id",
        "http://h/x",
        "git://h/x",
        "-u",
        "--upload-pack=x",
        "relative",
        "ftp://h/x",
        "",
    ] {
        assert!(check_url(url).is_err(), "{url}");
    }
}

#[test]
fn more_than_changed_files_max_are_not_known() {
    let names = |count: usize| "f\0".repeat(count).into_bytes();
    assert!(matches!(changed_files(&names(CHANGED_FILES_MAX)), Changed::Files(_)));
    assert!(matches!(changed_files(&names(CHANGED_FILES_MAX + 1)), Changed::Unknown(_)));
}

#[tokio::test]
async fn a_command_may_print_output_bytes_max_bytes_and_no_more() {
    let f = Fixture::new();
    let mirror = f.git.open(f.source).await.unwrap();
    let mut bytes = vec![b'x'; usize::try_from(OUTPUT_BYTES_MAX).unwrap()];
    for fits in [true, false] {
        let blob = run(Place::Bare(&mirror), ["hash-object", "-w", "--stdin"], &bytes).await;
        let blob = String::from_utf8(blob.unwrap()).unwrap();
        let printed = git(Place::Bare(&mirror), ["cat-file", "blob", blob.trim()]).await;
        assert_eq!(printed.is_ok(), fits, "{} bytes", bytes.len());
        bytes.push(b'x');
    }
}
