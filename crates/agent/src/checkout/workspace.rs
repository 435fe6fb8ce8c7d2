//! A repository in a workspace, filled from a mirror.
//!
//! The job's user must not reach the mirror, whose configuration the agent's `git` follows: so one
//! `git` reads the mirror as the agent, another writes the workspace as the job's user, and between
//! them is a pipe.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::Stdio,
};

use super::{As, CheckoutError, Git, output};
use crate::{
    files::{self, FileError},
    sandbox::User,
};

/// Makes an empty repository whose remote `origin` is at `url`. It is what `git init` and
/// `git remote add` make, without two processes for it.
pub(super) fn init(
    workspace: &Path,
    url: &str,
    commit: &str,
    user: Option<&User>,
) -> Result<(), FileError> {
    let git = workspace.join(".git");
    let own = |path: &Path| match user {
        None => Ok(()),
        Some(user) => chown(path, Some(user.uid), Some(user.gid))
            .map_err(FileError::of("change owner of", path)),
    };
    for dir in ["", "info", "objects", "objects/pack", "objects/info", "refs", "refs/heads"] {
        let dir = git.join(dir);
        files::make_dir(&dir, 0o755)?;
        own(&dir)?;
    }
    let config = config(url, commit);
    for (name, text) in [("HEAD", "ref: refs/heads/main\n"), ("config", config.as_str())] {
        let path = git.join(name);
        fs::write(&path, text).map_err(FileError::of("write", &path))?;
        own(&path)?;
    }
    Ok(())
}

fn config(url: &str, commit: &str) -> String {
    // Digests of 64 digits are those of the other format of objects.
    let (version, extensions) =
        if commit.len() == 64 { (1, "[extensions]\n\tobjectFormat = sha256\n") } else { (0, "") };
    let url = url.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!(
        "[core]\n\trepositoryFormatVersion = {version}\n\tfileMode = true\n\tbare = false\n\
         \tlogAllRefUpdates = true\n{extensions}\
         [remote \"origin\"]\n\turl = \"{url}\"\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n"
    )
}

impl Git<'_> {
    /// Copies a commit, and what it reaches in the mirror, into the workspace's repository.
    pub(super) async fn copy(
        &self,
        mirror: &Path,
        workspace: &Path,
        commit: &str,
    ) -> Result<(), CheckoutError> {
        let pipe = || std::io::pipe().map_err(CheckoutError::Start);
        let ((revs, mut ask), (objects, packed)) = (pipe()?, pipe()?);
        writeln!(ask, "{commit}").map_err(CheckoutError::Start)?;
        drop(ask);
        let pack = ["pack-objects", "--quiet", "--revs", "--stdout", "--delta-base-offset"];
        let mut pack = self.command(As::Agent(None), mirror, &pack);
        pack.stdin(revs).stdout(packed);
        let mut index = self.command(As::Job, workspace, &["index-pack", "--stdin"]);
        index.stdin(objects).stdout(Stdio::null());
        let (pack, index) = (output(pack), output(index));
        let (packed, indexed) = tokio::join!(pack, index);
        // Whichever ends early takes the other one with it: without a word, if that one writes.
        match (packed, indexed) {
            (Err(CheckoutError::Git { said, .. }), Err(index)) if said.is_empty() => {
                return Err(index);
            }
            (packed, indexed) => packed.and(indexed)?,
        };
        self.copy_ends(mirror, workspace, commit).await
    }

    /// Says where a history that is cut ends. It is read after the copy: what was cut meanwhile is
    /// cut here as well, and nothing is missed.
    async fn copy_ends(
        &self,
        mirror: &Path,
        workspace: &Path,
        commit: &str,
    ) -> Result<(), CheckoutError> {
        let path = mirror.join("shallow");
        if !path.exists() {
            return Ok(());
        }
        let ends = fs::read_to_string(&path).map_err(FileError::of("read", &path))?;
        let is_end = |line: &&str| ends.lines().any(|end| end == *line);
        let here = if is_end(&commit) {
            vec![commit.to_owned()]
        } else {
            let roots = ["rev-list", "--max-parents=0", commit];
            let mut roots = self.command(As::Agent(None), mirror, &roots);
            roots.stdout(Stdio::piped());
            let roots = String::from_utf8(output(roots).await?).unwrap_or_default();
            roots.lines().filter(is_end).map(str::to_owned).collect()
        };
        if here.is_empty() {
            return Ok(());
        }
        let to: PathBuf = workspace.join(".git/shallow");
        fs::write(&to, here.join("\n") + "\n").map_err(FileError::of("write", &to))?;
        let Some(user) = self.user else { return Ok(()) };
        Ok(chown(&to, Some(user.uid), Some(user.gid))
            .map_err(FileError::of("change owner of", &to))?)
    }
}
