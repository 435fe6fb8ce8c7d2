//! A forge: bare repositories in a temporary folder, and the webhooks that it would send.
//!
//! Everything is done by the `git` program without a working tree, so that a test reads like a story:
//! commit these files, open that pull request, deliver this payload.

pub mod github;

use std::{
    ffi::OsStr,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::{Context, ensure};
use tempfile::TempDir;

/// What GitHub says instead of a commit when there is none.
pub const NO_COMMIT: &str = "0000000000000000000000000000000000000000";
/// Time of the first commit of a forge, in seconds since 1970; each later one is a second younger.
const FIRST_COMMIT_SECS: u64 = 1_700_000_000;

/// A place with repositories. They go when it is dropped.
pub struct Forge {
    folder: TempDir,
    repositories: AtomicU64,
}

/// One bare repository.
pub struct Repository {
    path: PathBuf,
    name: String,
    /// GitHub's number for it.
    id: u64,
    commits: AtomicU64,
}

impl Forge {
    /// An empty forge.
    ///
    /// # Errors
    /// When no temporary folder can be made.
    pub fn new() -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("shunt-forge-").tempdir()?;
        Ok(Self { folder, repositories: AtomicU64::new(0) })
    }

    /// A new repository without commits, whose default branch is `main`.
    ///
    /// # Errors
    /// When `git` is missing or fails.
    pub fn repository(&self, name: &str) -> anyhow::Result<Repository> {
        let path = self.folder.path().join(format!("{name}.git"));
        git(
            None,
            ["init", "--quiet", "--bare", "--initial-branch=main"],
            Some(path.as_ref()),
            b"",
        )?;
        let id = 1000 + self.repositories.fetch_add(1, Ordering::Relaxed);
        Ok(Repository { path, name: name.to_owned(), id, commits: AtomicU64::new(0) })
    }
}

impl Repository {
    /// The URL that a source has.
    pub fn url(&self) -> String {
        format!("file://{}", self.path.display())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds a commit with these files, on top of what `branch` has, and returns its name.
    ///
    /// # Errors
    /// When `git` refuses.
    pub fn commit(&self, branch: &str, files: &[(&str, &str)]) -> anyhow::Result<String> {
        let name = format!("refs/heads/{branch}");
        let parent = self.head(&name)?;
        self.write(&name, parent.as_deref(), files)
    }

    /// Replaces `branch` by a commit that has only these files and no parent.
    ///
    /// # Errors
    /// When `git` refuses.
    pub fn force_push(&self, branch: &str, files: &[(&str, &str)]) -> anyhow::Result<String> {
        let name = format!("refs/heads/{branch}");
        git(Some(&self.path), ["update-ref", "-d", &name], None, b"")?;
        self.write(&name, None, files)
    }

    /// Starts `branch` at a commit.
    ///
    /// # Errors
    /// When there is no such commit.
    pub fn branch(&self, branch: &str, at: &str) -> anyhow::Result<()> {
        self.point(&format!("refs/heads/{branch}"), at)
    }

    /// Sets a lightweight tag.
    ///
    /// # Errors
    /// When there is no such commit.
    pub fn tag(&self, tag: &str, at: &str) -> anyhow::Result<()> {
        self.point(&format!("refs/tags/{tag}"), at)
    }

    /// Sets a tag with a message and returns the name of its object, which is what a push says.
    ///
    /// # Errors
    /// When there is no such commit.
    pub fn annotated_tag(&self, tag: &str, at: &str) -> anyhow::Result<String> {
        git(Some(&self.path), ["tag", "--annotate", "--message", tag, tag, at], None, b"")?;
        self.head(&format!("refs/tags/{tag}"))?.context("git made no tag")
    }

    /// Deletes a branch and returns what it pointed to.
    ///
    /// # Errors
    /// When there is no such branch.
    pub fn delete(&self, branch: &str) -> anyhow::Result<String> {
        let name = format!("refs/heads/{branch}");
        let old = self.head(&name)?.with_context(|| format!("there is no branch {branch}"))?;
        git(Some(&self.path), ["update-ref", "-d", &name], None, b"")?;
        Ok(old)
    }

    /// What the forge makes of a fork's pull request: a commit on top of `base`, reachable by
    /// `refs/pull/N/head` only.
    ///
    /// # Errors
    /// When `git` refuses.
    pub fn pull_head(
        &self,
        number: u64,
        base: &str,
        files: &[(&str, &str)],
    ) -> anyhow::Result<String> {
        self.write(&format!("refs/pull/{number}/head"), Some(base), files)
    }

    fn head(&self, name: &str) -> anyhow::Result<Option<String>> {
        let format = "--format=%(objectname)";
        let found = git(Some(&self.path), ["for-each-ref", format, name], None, b"")?;
        Ok((!found.is_empty()).then_some(found))
    }

    fn point(&self, name: &str, at: &str) -> anyhow::Result<()> {
        git(Some(&self.path), ["update-ref", name, at], None, b"").map(drop)
    }

    fn write(
        &self,
        name: &str,
        parent: Option<&str>,
        files: &[(&str, &str)],
    ) -> anyhow::Result<String> {
        let number = self.commits.fetch_add(1, Ordering::Relaxed);
        let when = FIRST_COMMIT_SECS + number;
        let message = format!("change {number}");
        let mut stream = format!(
            "commit {name}\ncommitter Ada <ada@example.org> {when} +0000\ndata {}\n{message}\n",
            message.len()
        );
        if let Some(parent) = parent {
            stream = stream + "from " + parent + "\n";
        }
        for (path, text) in files {
            let mode = if text.starts_with("#!") { "100755" } else { "100644" };
            let entry = format!("M {mode} inline {path}\ndata {}\n{text}\n", text.len());
            stream.push_str(&entry);
        }
        stream.push_str("\ndone\n");
        let arguments = ["fast-import", "--quiet", "--done", "--date-format=raw", "--force"];
        git(Some(&self.path), arguments, None, stream.as_bytes())?;
        self.head(name)?.context("git fast-import made no commit")
    }
}

/// Makes a folder a repository on its branch `main`, with all its files committed.
///
/// # Errors
/// When `git` refuses.
pub fn commit_folder(folder: &Path, message: &str) -> anyhow::Result<()> {
    if !folder.join(".git").exists() {
        git(Some(folder), ["init", "--quiet", "--initial-branch=main"], None, b"")?;
    }
    git(Some(folder), ["add", "--all"], None, b"")?;
    git(Some(folder), ["commit", "--quiet", "--allow-empty", "-m", message], None, b"").map(drop)
}

/// The commit that a folder has checked out.
///
/// # Errors
/// When it is no repository or has no commit.
pub fn head(folder: &Path) -> anyhow::Result<String> {
    git(Some(folder), ["rev-parse", "HEAD"], None, b"")
}

/// Runs `git` with nobody's configuration; returns what it printed, trimmed.
fn git<const N: usize>(
    folder: Option<&Path>,
    arguments: [&str; N],
    last: Option<&OsStr>,
    input: &[u8],
) -> anyhow::Result<String> {
    let mut command = Command::new("git");
    command
        .args(["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "gc.auto=0"])
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env_remove("GIT_DIR")
        .args(arguments)
        .args(last)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(folder) = folder {
        command.current_dir(folder);
    }
    let mut child = command.spawn().context("start git")?;
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(input).context("write to git")?;
    drop(stdin);
    let output = child.wait_with_output().context("wait for git")?;
    ensure!(
        output.status.success(),
        "git {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_move_are_replaced_and_go() {
        let forge = Forge::new().unwrap();
        let web = forge.repository("web").unwrap();
        let first = web.commit("main", &[("a.txt", "a\n"), ("run.sh", "#!/bin/sh\n")]).unwrap();
        let second = web.commit("main", &[("dir/b.txt", "")]).unwrap();
        let log = |name: &str| git(Some(web.path()), ["log", "--format=%H", name], None, b"");
        assert_eq!(log("main").unwrap(), format!("{second}\n{first}"));
        let list = ["ls-tree", "-r", "--format=%(objectmode) %(path)", "main"];
        let list = git(Some(web.path()), list, None, b"").unwrap();
        assert_eq!(list, "100644 a.txt\n100644 dir/b.txt\n100755 run.sh");
        let replaced = web.force_push("main", &[("c.txt", "c")]).unwrap();
        assert_eq!(log("main").unwrap(), replaced);
        let pull = web.pull_head(7, &second, &[("d.txt", "d")]).unwrap();
        assert_eq!(log("refs/pull/7/head").unwrap(), format!("{pull}\n{second}\n{first}"));
        web.branch("topic", &first).unwrap();
        assert_eq!(web.delete("topic").unwrap(), first);
        assert!(web.delete("topic").is_err());
    }
}
