//! What a coordinator reads of a repository, through the `git` program.
//!
//! Source is read as blobs from a bare repository: nothing is checked out, no symlink is followed
//! and no hook of the repository runs. Only the source's own URL is fetched, with the protocols that
//! sources may use; the user's and the system's configuration are not read.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, LazyLock},
    time::Duration,
};

use anyhow::{Context, bail};
use shuntyard_core::event::Changed;
use shuntyard_protocol::SourceId;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::Command,
    sync::Mutex,
    time,
};

/// Longest time that one `git` command may take.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(5);
/// Most bytes that are read of one command's output.
const OUTPUT_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Most changed files that are told to triggers; more are "not known".
const CHANGED_FILES_MAX: usize = 20_000;

/// Folders that hold workflows, in order of preference.
pub const WORKFLOW_FOLDERS: [&str; 2] = [".shuntyard", ".kici"];

/// Runs `git` for the coordinator.
#[derive(Clone, Debug)]
pub struct Git {
    /// One bare repository per source.
    mirrors: PathBuf,
    /// One snapshot at a time: they write an index.
    snapshots: Arc<Mutex<()>>,
}

/// What people want to know of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitInfo {
    pub subject: String,
    pub author: String,
}

/// A branch's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub commit: String,
    /// Full name, `refs/heads/main`; absent when detached.
    pub ref_name: Option<String>,
}

impl Git {
    pub fn new(mirrors: PathBuf) -> Self {
        Self { mirrors, snapshots: Arc::default() }
    }

    fn mirror(&self, source: SourceId) -> PathBuf {
        self.mirrors.join(format!("{source}.git"))
    }

    /// Where [`Git::snapshot`] keeps a folder.
    pub fn snapshot_path(&self, source: SourceId) -> PathBuf {
        self.mirrors.join(format!("{source}.snapshot.git"))
    }

    async fn open(&self, source: SourceId) -> anyhow::Result<PathBuf> {
        let path = self.mirror(source);
        if !tokio::fs::try_exists(path.join("HEAD")).await? {
            tokio::fs::create_dir_all(&self.mirrors).await?;
            git(
                Place::Nowhere,
                ["init".as_ref(), "--quiet".as_ref(), "--bare".as_ref(), path.as_os_str()],
            )
            .await?;
        }
        Ok(path)
    }

    /// Makes sure that the objects in `needed` are in the source's mirror, and tries it for those in
    /// `wanted`. Returns the commit of each that is there now.
    pub async fn fetch(
        &self,
        source: SourceId,
        url: &str,
        needed: &[&str],
        wanted: &[&str],
    ) -> anyhow::Result<BTreeMap<String, String>> {
        let mirror = self.open(source).await?;
        let all: Vec<_> = needed.iter().chain(wanted).copied().collect();
        let known = commits_of(&mirror, &all).await?;
        let missing = |commits: &[&'_ str]| -> Vec<String> {
            let missing = commits.iter().filter(|commit| !known.contains_key(**commit));
            missing.map(|&commit| commit.to_owned()).collect()
        };
        let (needed, wanted) = (missing(needed), missing(wanted));
        if needed.is_empty() && wanted.is_empty() {
            return Ok(known);
        }
        fetch_into(&mirror, url, &needed).await?;
        if let Err(error) = fetch_into(&mirror, url, &wanted).await {
            tracing::debug!(error = format!("{error:#}"), "a commit is not there any more");
        }
        commits_of(&mirror, &all).await
    }

    /// The texts below the workflow folder at a commit, by path in the repository.
    pub async fn workflow_folder(
        &self,
        source: SourceId,
        commit: &str,
    ) -> anyhow::Result<BTreeMap<String, String>> {
        let mirror = self.mirror(source);
        for folder in WORKFLOW_FOLDERS {
            let path = format!("{folder}/");
            let listing =
                git(Place::Bare(&mirror), ["ls-tree", "-r", "-z", commit, "--", &path]).await?;
            let blobs = blobs(&listing);
            if blobs.keys().any(|path| path.starts_with(&format!("{folder}/workflows/"))) {
                return read_blobs(&mirror, &blobs).await;
            }
        }
        Ok(BTreeMap::new())
    }

    /// Files that differ between two commits; a rename counts with both names.
    pub async fn changed(
        &self,
        source: SourceId,
        before: &str,
        commit: &str,
    ) -> anyhow::Result<Changed> {
        let mirror = self.mirror(source);
        let names = git(
            Place::Bare(&mirror),
            ["diff", "--name-only", "-z", "--no-renames", before, commit],
        )
        .await?;
        Ok(changed_files(&names))
    }

    /// The commit that two lines of history have in common, if any.
    pub async fn merge_base(&self, source: SourceId, a: &str, b: &str) -> Option<String> {
        let base = git(Place::Bare(&self.mirror(source)), ["merge-base", a, b]).await.ok()?;
        Some(String::from_utf8_lossy(&base).trim().to_owned())
    }

    pub async fn commit_info(&self, source: SourceId, commit: &str) -> anyhow::Result<CommitInfo> {
        let log = ["log", "-1", "--format=%s%n%an", commit];
        let text = git(Place::Bare(&self.mirror(source)), log).await?;
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.lines().map(|line| line.chars().take(500).collect::<String>());
        Ok(CommitInfo {
            subject: lines.next().unwrap_or_default(),
            author: lines.next().unwrap_or_default(),
        })
    }

    /// The head of the remote's default branch.
    pub async fn default_head(&self, url: &str) -> anyhow::Result<Head> {
        check_url(url)?;
        let refs = git(Place::Nowhere, ["ls-remote", "--symref", "--", url, "HEAD"]).await?;
        let refs = String::from_utf8_lossy(&refs);
        let ref_name = refs.lines().find_map(|line| line.strip_prefix("ref: ")?.split('\t').next());
        let commit = refs.lines().find(|line| !line.starts_with("ref: "));
        let commit = commit.and_then(|line| line.split('\t').next());
        let commit = commit.context("the repository has no commits yet")?;
        Ok(Head { commit: commit.to_owned(), ref_name: ref_name.map(str::to_owned) })
    }

    /// The commit that a full ref name points to at the remote; an annotated tag's target.
    pub async fn resolve(&self, url: &str, ref_name: &str) -> anyhow::Result<String> {
        check_url(url)?;
        if !ref_name.starts_with("refs/") {
            bail!("'{ref_name}' is not a full ref name");
        }
        let peeled = format!("{ref_name}^{{}}");
        let refs = git(Place::Nowhere, ["ls-remote", "--", url, ref_name, &peeled]).await?;
        let refs = String::from_utf8_lossy(&refs);
        let find =
            |name: &str| refs.lines().find_map(|line| line.strip_suffix(name)?.strip_suffix('\t'));
        let commit = find(&peeled).or_else(|| find(ref_name));
        commit.map(str::to_owned).with_context(|| format!("the repository has no {ref_name}"))
    }

    /// Commits the files of a plain folder, as they are now, to a repository of our own, and returns
    /// that repository and its head. Without a change since the last snapshot the head stays.
    pub async fn snapshot(
        &self,
        source: SourceId,
        folder: &Path,
    ) -> anyhow::Result<(PathBuf, Head)> {
        let _one_at_a_time = self.snapshots.lock().await;
        let repository = self.snapshot_path(source);
        if !tokio::fs::try_exists(repository.join("HEAD")).await? {
            tokio::fs::create_dir_all(&self.mirrors).await?;
            let init = ["init", "--quiet", "--bare", "--initial-branch=main"].map(OsStr::new);
            git(Place::Nowhere, [&init[..], &[repository.as_os_str()]].concat()).await?;
        }
        // Left behind by a process that died here: nobody else writes this index.
        drop(tokio::fs::remove_file(repository.join("index.lock")).await);
        let tree = Place::Tree { repository: &repository, folder };
        git(tree, ["add", "--all", "."]).await?;
        if git(tree, ["diff", "--cached", "--quiet", "HEAD"]).await.is_err() {
            let commit = ["commit", "--quiet", "--allow-empty", "--message", "Files of the folder"];
            git(tree, commit).await?;
        }
        let head = local_head(&repository).await?;
        Ok((repository, head))
    }
}

/// The commits that a repository has of these objects. An annotated tag is an object of its own, and
/// stands for its commit.
async fn commits_of(
    repository: &Path,
    objects: &[&str],
) -> anyhow::Result<BTreeMap<String, String>> {
    for object in objects {
        check_commit(object)?;
    }
    let request: String = objects.iter().flat_map(|object| [object, "^{commit}\n"]).collect();
    let check = ["cat-file", "--batch-check=%(objectname)"];
    let answer = run(Place::Bare(repository), check, request.as_bytes()).await?;
    let answer = String::from_utf8_lossy(&answer);
    // A line for each: its name, or what was asked for and why it has none.
    let lines = objects.iter().zip(answer.lines());
    let found = lines.filter(|(_, line)| !line.contains(' '));
    Ok(found.map(|(&object, line)| (object.to_owned(), line.to_owned())).collect())
}

async fn fetch_into(mirror: &Path, url: &str, commits: &[String]) -> anyhow::Result<()> {
    if commits.is_empty() {
        return Ok(());
    }
    check_url(url)?;
    let mut args = vec!["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--", url];
    // The objects must have a name, else `git gc` may drop them while they are needed.
    let specs: Vec<_> = commits.iter().map(|c| format!("{c}:refs/seen/{c}")).collect();
    args.extend(specs.iter().map(String::as_str));
    let fetched = git(Place::Bare(mirror), args).await;
    fetched.map(drop).with_context(|| format!("fetch {}", commits.join(" and ")))
}

/// The checked-out head of a repository on this machine.
pub async fn local_head(repository: &Path) -> anyhow::Result<Head> {
    let commit =
        git(Place::Folder(repository), ["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]).await;
    let commit = commit.map_err(|_| anyhow::anyhow!("the repository has no commits yet"))?;
    let ref_name = git(Place::Folder(repository), ["symbolic-ref", "--quiet", "HEAD"]).await.ok();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim().to_owned();
    Ok(Head { commit: text(commit), ref_name: ref_name.map(text) })
}

/// Whether `folder` is the top of a git work tree or a bare repository, by what lies in it: this is
/// asked for every job that starts, so no program runs for the answer.
pub async fn is_repository(folder: &Path) -> bool {
    let has = async |name| tokio::fs::try_exists(folder.join(name)).await.unwrap_or(false);
    has(".git").await || has("HEAD").await && has("objects").await && has("refs").await
}

/// Files in the work tree that the head does not have in this form.
pub async fn uncommitted(folder: &Path) -> anyhow::Result<usize> {
    let all = ["status", "--porcelain", "-z", "--no-renames", "--untracked-files=all"];
    let status = git(Place::Folder(folder), all).await?;
    Ok(status.split(|&byte| byte == 0).filter(|entry| !entry.is_empty()).count())
}

/// Only what names a commit may stand where `git` expects one.
pub fn check_commit(commit: &str) -> anyhow::Result<()> {
    let hex = commit.bytes().all(|b| b.is_ascii_hexdigit());
    if !hex || !(commit.len() == 40 || commit.len() == 64) {
        bail!("'{}' is not a commit", commit.chars().take(80).collect::<String>());
    }
    Ok(())
}

/// Refuses protocols that run programs or that nobody expects.
pub fn check_url(url: &str) -> anyhow::Result<()> {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
    let scp_like = scheme.is_none() && !url.starts_with('/') && url.contains(':');
    let known = matches!(scheme, Some("https" | "ssh" | "file"));
    let absolute = scheme.is_none() && url.starts_with('/');
    if url.starts_with('-')
        || url.contains("::") && scheme.is_none()
        || !(known || scp_like || absolute)
    {
        bail!(
            "'{url}' is not a URL that can be fetched: use https://, ssh://, user@host:path, file:// or an absolute path"
        );
    }
    Ok(())
}

/// The names in the NUL-separated output of `git diff`.
fn changed_files(names: &[u8]) -> Changed {
    let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let files: Vec<_> = names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    if files.len() > CHANGED_FILES_MAX {
        return Changed::Unknown(format!("more than {CHANGED_FILES_MAX} files changed"));
    }
    Changed::Files(files)
}

fn blobs(listing: &[u8]) -> BTreeMap<String, String> {
    let entry = |entry: &[u8]| {
        let text = std::str::from_utf8(entry).ok()?;
        let (meta, path) = text.split_once('\t')?;
        let mut meta = meta.split(' ');
        let (mode, _kind, object) = (meta.next()?, meta.next()?, meta.next()?);
        // Regular files only: a symlink could point anywhere.
        mode.starts_with("100").then(|| (path.to_owned(), object.to_owned()))
    };
    listing.split(|&byte| byte == 0).filter_map(entry).collect()
}

async fn read_blobs(
    mirror: &Path,
    blobs: &BTreeMap<String, String>,
) -> anyhow::Result<BTreeMap<String, String>> {
    let request = blobs.values().cloned().chain([String::new()]).collect::<Vec<_>>().join("\n");
    let output = run(Place::Bare(mirror), ["cat-file", "--batch"], request.as_bytes()).await?;
    let (mut rest, mut files) = (&output[..], BTreeMap::new());
    for path in blobs.keys() {
        let line_end = rest.iter().position(|&b| b == b'\n').context("git cat-file ended early")?;
        let header = std::str::from_utf8(&rest[..line_end])?;
        let size: usize = header.rsplit(' ').next().unwrap_or_default().parse()?;
        let body =
            rest.get(line_end + 1..=line_end + 1 + size).context("git cat-file ended early")?;
        rest = &rest[line_end + 1 + body.len()..];
        // What is not text (an image, say) cannot be imported.
        if let Ok(text) = std::str::from_utf8(&body[..size]) {
            files.insert(path.clone(), text.to_owned());
        }
    }
    Ok(files)
}

/// Where a command works.
#[derive(Clone, Copy)]
enum Place<'a> {
    Nowhere,
    Bare(&'a Path),
    /// In a folder that may or may not be a repository.
    Folder(&'a Path),
    /// A folder as the work tree of a repository of ours.
    Tree {
        repository: &'a Path,
        folder: &'a Path,
    },
}

async fn git<S: AsRef<OsStr>>(
    place: Place<'_>,
    args: impl IntoIterator<Item = S>,
) -> anyhow::Result<Vec<u8>> {
    run(place, args, b"").await
}

/// The program, looked up once: the standard library copies the whole process (fork) to look a name
/// up in a PATH that was set for the command, and starts a path directly (vfork).
fn program() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut candidates = std::env::split_paths(&path).map(|folder| folder.join("git"));
        candidates.find(|git| git.is_file()).unwrap_or_else(|| "git".into())
    });
    &PROGRAM
}

fn command(place: Place<'_>) -> Command {
    let mut command = Command::new(program());
    command.env_clear();
    for name in
        ["PATH", "HOME", "SSH_AUTH_SOCK", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"]
    {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    command
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_ALLOW_PROTOCOL", "https:ssh:file")
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("LC_ALL", "C")
        .args(["-c", "safe.directory=*", "-c", "core.quotePath=false"])
        .args(["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0"]);
    match place {
        Place::Nowhere => {}
        Place::Bare(repository) => {
            command.arg("--git-dir").arg(repository);
        }
        Place::Folder(folder) => {
            command.arg("-C").arg(folder);
        }
        Place::Tree { repository, folder } => {
            command.arg("--git-dir").arg(repository).arg("--work-tree").arg(folder);
            command.args(["-c", "core.bare=false", "-c", "user.name=shuntyard"]);
            command.args(["-c", "user.email=shuntyard@localhost"]);
        }
    }
    command
}

async fn run<S: AsRef<OsStr>>(
    place: Place<'_>,
    args: impl IntoIterator<Item = S>,
    input: &[u8],
) -> anyhow::Result<Vec<u8>> {
    let mut command = command(place);
    let args: Vec<_> = args.into_iter().collect();
    command.args(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn().context("start git; is it installed?")?;
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let stdout = child.stdout.take().expect("stdout is piped");
    let stderr = child.stderr.take().expect("stderr is piped");
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let mut stdout = stdout.take(OUTPUT_BYTES_MAX + 1);
    let mut stderr = stderr.take(OUTPUT_BYTES_MAX);
    let talk = async {
        let write = async {
            // A command that reads nothing closes the pipe; its exit code tells what matters.
            drop(stdin.write_all(input).await);
            drop(stdin);
            Ok(0)
        };
        tokio::try_join!(write, stdout.read_to_end(&mut output), stderr.read_to_end(&mut errors))?;
        child.wait().await
    };
    let verb = args.first().map(|verb| verb.as_ref().to_string_lossy().into_owned());
    let verb = verb.unwrap_or_default();
    let status = time::timeout(COMMAND_TIMEOUT, talk)
        .await
        .with_context(|| format!("git {verb} took longer than {} s", COMMAND_TIMEOUT.as_secs()))?
        .with_context(|| format!("run git {verb}"))?;
    if output.len() as u64 > OUTPUT_BYTES_MAX {
        bail!("git {verb} printed more than {OUTPUT_BYTES_MAX} bytes");
    }
    if !status.success() {
        let errors = String::from_utf8_lossy(&errors);
        bail!("git {verb} failed: {}", errors.trim().chars().take(2000).collect::<String>());
    }
    Ok(output)
}

#[cfg(test)]
mod tests;
