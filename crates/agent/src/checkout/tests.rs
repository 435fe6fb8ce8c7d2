use super::*;

fn git(dir: &Path, args: &[&str]) -> String {
    let output = std::process::Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@example.org"])
        .args(args)
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

struct World {
    _temp: tempfile::TempDir,
    data: PathBuf,
    repo: PathBuf,
    workspace: PathBuf,
}

fn world() -> World {
    world_of("sha1")
}

fn world_of(format: &str) -> World {
    let temp = tempfile::tempdir().unwrap();
    let [data, repo, workspace] = ["data", "repo", "ws"].map(|name| temp.path().join(name));
    for dir in [&data, &repo, &workspace] {
        fs::create_dir(dir).unwrap();
    }
    prepare(&data).unwrap();
    git(&repo, &["init", "--quiet", "-b", "main", &format!("--object-format={format}")]);
    for content in ["one", "two", "three"] {
        fs::write(repo.join("file"), content).unwrap();
        git(&repo, &["add", "."]);
        git(&repo, &["commit", "--quiet", "-m", content]);
    }
    World { _temp: temp, data, repo, workspace }
}

impl World {
    fn code(&self, commit: &str, ref_name: Option<&str>) -> Code {
        let url = format!("file://{}", self.repo.display());
        Code { url, commit: commit.into(), ref_name: ref_name.map(Into::into) }
    }

    fn empty(&self) {
        fs::remove_dir_all(&self.workspace).unwrap();
        fs::create_dir(&self.workspace).unwrap();
    }

    async fn checkout(&self, code: &Code, wanted: plan::Checkout) -> Result<String, CheckoutError> {
        let host_env = crate::environment::allowed(&crate::clock::environment(), &[]);
        let git = Git { data_dir: &self.data, host_env: &host_env, user: None };
        let mut said = String::new();
        git.checkout(code, &wanted, &self.workspace, &mut |line| said.push_str(line)).await?;
        Ok(said)
    }
}

#[tokio::test]
async fn a_branch_is_checked_out_with_the_depth_that_was_asked_for() {
    let world = world();
    let head = git(&world.repo, &["rev-parse", "HEAD"]);
    let code = world.code(&head, Some("refs/heads/feat/ünï\"$(id)"));
    let said = world.checkout(&code, plan::Checkout::default()).await.unwrap();
    assert!(said.contains(&head), "{said}");
    assert_eq!(fs::read_to_string(world.workspace.join("file")).unwrap(), "three");
    assert_eq!(git(&world.workspace, &["rev-list", "--count", "HEAD"]), "1");
    assert_eq!(git(&world.workspace, &["branch", "--show-current"]), "feat/ünï\"$(id)");
    assert_eq!(git(&world.workspace, &["status", "--porcelain"]), "");
}

#[tokio::test]
async fn an_older_commit_with_all_history_works_without_the_source_once_mirrored() {
    let world = world();
    let first = git(&world.repo, &["rev-parse", "HEAD~2"]);
    let all = plan::Checkout { depth: 0, ..plan::Checkout::default() };
    world.checkout(&world.code(&first, None), all.clone()).await.unwrap();
    assert_eq!(fs::read_to_string(world.workspace.join("file")).unwrap(), "one");
    fs::rename(&world.repo, world.repo.with_extension("gone")).unwrap();
    world.empty();
    world.checkout(&world.code(&first, None), all).await.unwrap();
    // The workspace stands on its own: a job does not see the mirrors.
    fs::remove_dir_all(mirrors(&world.data)).unwrap();
    assert_eq!(git(&world.workspace, &["log", "--format=%s"]), "one");
}

#[tokio::test]
async fn a_history_ends_where_it_was_cut() {
    let world = world();
    git(&world.repo, &["checkout", "--quiet", "-b", "side", "HEAD~1"]);
    git(&world.repo, &["commit", "--quiet", "--allow-empty", "-m", "aside"]);
    git(&world.repo, &["merge", "--quiet", "--no-edit", "main"]);
    let head = git(&world.repo, &["rev-parse", "HEAD"]);
    // Other ends are known as well.
    for commit in ["HEAD~1", "main"] {
        let commit = git(&world.repo, &["rev-parse", commit]);
        let two = plan::Checkout { depth: 2, ..plan::Checkout::default() };
        world.checkout(&world.code(&commit, None), two).await.unwrap();
        world.empty();
    }
    for (depth, commits) in [(1, "1"), (3, "4"), (0, "5"), (9, "5")] {
        let wanted = plan::Checkout { depth, ..plan::Checkout::default() };
        world.checkout(&world.code(&head, None), wanted).await.unwrap();
        assert_eq!(git(&world.workspace, &["rev-list", "--count", "HEAD"]), commits, "{depth}");
        git(&world.workspace, &["fsck", "--strict"]);
        world.empty();
    }
}

#[tokio::test]
async fn a_source_whose_own_history_is_cut_can_be_used() {
    let mut world = world();
    let cut = world.repo.with_extension("cut");
    let url = format!("file://{}", world.repo.display());
    git(&world.data, &["clone", "--quiet", "--depth", "2", &url, cut.to_str().unwrap()]);
    world.repo = cut;
    let head = git(&world.repo, &["rev-parse", "HEAD"]);
    let all = plan::Checkout { depth: 0, ..plan::Checkout::default() };
    world.checkout(&world.code(&head, None), all).await.unwrap();
    assert_eq!(git(&world.workspace, &["rev-list", "--count", "HEAD"]), "2");
    git(&world.workspace, &["fsck", "--strict"]);
}

#[tokio::test]
async fn a_repository_with_digests_of_64_digits_can_be_used() {
    let world = world_of("sha256");
    let head = git(&world.repo, &["rev-parse", "HEAD"]);
    assert_eq!(head.len(), 64);
    world.checkout(&world.code(&head, None), plan::Checkout::default()).await.unwrap();
    assert_eq!(fs::read_to_string(world.workspace.join("file")).unwrap(), "three");
    git(&world.workspace, &["fsck", "--strict"]);
}

#[tokio::test]
async fn whatever_a_url_holds_is_the_url_of_origin() {
    let mut world = world();
    let head = git(&world.repo, &["rev-parse", "HEAD"]);
    let odd = world.repo.with_file_name("a \"b\" \\ #; [c]");
    fs::rename(&world.repo, &odd).unwrap();
    world.repo = odd;
    let code = world.code(&head, None);
    world.checkout(&code, plan::Checkout::default()).await.unwrap();
    assert_eq!(git(&world.workspace, &["config", "remote.origin.url"]), code.url);
    git(&world.workspace, &["fetch", "--quiet", "origin"]);
    assert_eq!(git(&world.workspace, &["rev-parse", "origin/main"]), head);
}

#[tokio::test]
async fn a_missing_commit_says_so() {
    let world = world();
    let error = world.checkout(&world.code(&"1".repeat(40), None), plan::Checkout::default()).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("git fetch failed"), "{error}");
}

#[test]
fn what_git_could_take_for_something_else_is_refused() {
    let commit = "a".repeat(40);
    let code = |url: &str, commit: &str, name: &str| Code {
        url: url.into(),
        commit: commit.into(),
        ref_name: Some(name.into()),
    };
    assert!(check(&code("https://h/r", &commit, "refs/heads/a#b")).is_ok());
    assert!(check(&code("git@h:r.git", &commit, "refs/heads/a")).is_ok());
    for url in ["ext::sh -c id", "--upload-pack=id", "/etc", "git://h/r", "http://h/r", "a@b::c"] {
        assert!(check(&code(url, &commit, "refs/heads/a")).is_err(), "{url}");
    }
    for commit in ["HEAD", &"0".repeat(40), &"a".repeat(39)] {
        assert!(check(&code("https://h/r", commit, "refs/heads/a")).is_err(), "{commit}");
    }
    assert!(check(&code("https://h/r", &commit, "--exec")).is_err());
}

#[test]
fn credentials_in_urls_are_not_shown() {
    let said = "fatal: unable to access 'https://me:pass@h.example/r/': no\n";
    assert_eq!(hide_credentials(said), "fatal: unable to access 'https://h.example/r/': no\n");
    assert_eq!(without_credentials("ssh://git@h/r"), "ssh://git@h/r");
}

#[test]
fn of_a_long_error_the_end_is_kept() {
    let fits = "x".repeat(SAID_BYTES_MAX);
    assert_eq!(end_of(&fits), fits);
    assert_eq!(end_of(&format!("early {fits}\n")), fits);
    assert!(end_of(&"é".repeat(SAID_BYTES_MAX)).len() <= SAID_BYTES_MAX);
}
