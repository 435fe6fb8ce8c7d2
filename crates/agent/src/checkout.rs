//! Source code into a workspace, by the `git` program.
//!
//! Each repository has a bare mirror under `DATA/mirrors`, which is fetched by commit; workspaces
//! are filled from it. The mirror is the agent's alone and a workspace shares no file with it, so a
//! job cannot change what the next one gets. One mirror per depth: a history cut at one depth says
//! nothing about another.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use aws_lc_rs::digest;
use shuntyard_protocol::{agent::Code, plan};
use tokio::process::Command;

use crate::{
    files::{self, FileError},
    sandbox::User,
};

/// How long all of a checkout may take.
pub(crate) const CHECKOUT_TIMEOUT: Duration = Duration::from_mins(10);
/// Between two looks at a mirror that another attempt is fetching into.
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Of what `git` said, the end is kept for the reason.
const SAID_BYTES_MAX: usize = 4096;

/// Settings that hold for every `git` here, above what the repository says.
const CONFIG: &str = "\
[safe]
\tdirectory = *
[protocol]
\tversion = 2
\tallow = never
[protocol \"https\"]
\tallow = always
[protocol \"http\"]
\tallow = always
[protocol \"ssh\"]
\tallow = always
[protocol \"file\"]
\tallow = always
[uploadpack]
\tallowAnySHA1InWant = true
[core]
\thooksPath = /dev/null
\tfsmonitor = false
[gc]
\tauto = 0
[maintenance]
\tauto = false
[advice]
\tdetachedHead = false
";

/// A workspace that could not be filled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckoutError {
    #[error("cannot get the source code: git {operation} failed: {said}")]
    Git { operation: String, said: String },
    #[error("cannot get the source code: the git program cannot be started; is it installed?")]
    Start(#[source] io::Error),
    #[error("cannot get the source code: {problem}")]
    Refused { problem: String },
    #[error("cannot get the source code within {} s", CHECKOUT_TIMEOUT.as_secs())]
    TimedOut,
    #[error("cannot get the source code: {0}")]
    File(#[from] FileError),
}

/// Where checkouts of one agent happen.
pub(crate) struct Git<'a> {
    pub data_dir: &'a Path,
    pub host_env: &'a BTreeMap<String, String>,
    pub user: Option<&'a User>,
}

/// Whom a `git` runs as: in a workspace the job's user, in a mirror the agent's.
#[derive(Clone, Copy)]
enum As<'a> {
    /// With the source's URL, when it is fetched from.
    Agent(Option<&'a str>),
    Job,
}

/// Name of the remote that a mirror is fetched from.
const SOURCE: &str = "source";

/// Where mirrors are kept.
pub(crate) fn mirrors(data_dir: &Path) -> PathBuf {
    data_dir.join("mirrors")
}

fn config_path(data_dir: &Path) -> PathBuf {
    data_dir.join("gitconfig")
}

/// Prepares the data directory for checkouts.
pub(crate) fn prepare(data_dir: &Path) -> Result<(), FileError> {
    use std::os::unix::fs::PermissionsExt as _;
    let config = config_path(data_dir);
    files::write_atomic(&config, CONFIG.as_bytes())?;
    fs::set_permissions(&config, fs::Permissions::from_mode(0o644))
        .map_err(FileError::of("open up", &config))?;
    files::make_dir(&mirrors(data_dir), 0o700)
}

impl Git<'_> {
    /// Fills the empty directory `workspace` with the commit. `log` gets lines for people.
    pub(crate) async fn checkout(
        &self,
        code: &Code,
        wanted: &plan::Checkout,
        workspace: &Path,
        log: &mut (dyn FnMut(&str) + '_),
    ) -> Result<(), CheckoutError> {
        check(code)?;
        let work = self.fill(code, wanted, workspace, log);
        tokio::time::timeout(CHECKOUT_TIMEOUT, work).await.unwrap_or(Err(CheckoutError::TimedOut))
    }

    async fn fill(
        &self,
        code: &Code,
        wanted: &plan::Checkout,
        workspace: &Path,
        log: &mut (dyn FnMut(&str) + '_),
    ) -> Result<(), CheckoutError> {
        let commit = code.commit.as_str();
        log(&format!("source {} at {commit}\n", without_credentials(&code.url)));
        let mirror = self.mirror(code, wanted.depth).await?;
        workspace::init(workspace, &without_credentials(&code.url), commit, self.user)?;
        self.copy(&mirror, workspace, commit).await?;
        let branch = code.ref_name.as_deref().and_then(|name| name.strip_prefix("refs/heads/"));
        let mut checkout = vec!["checkout", "--quiet"];
        match branch {
            Some(branch) => checkout.extend(["--no-track", "-B", branch, commit, "--"]),
            None => checkout.extend(["--detach", commit, "--"]),
        }
        self.run(As::Job, workspace, &checkout).await?;
        if wanted.submodules {
            log("submodules\n");
            let args = ["submodule", "--quiet", "update", "--init", "--recursive"];
            self.run(As::Job, workspace, &args).await?;
        }
        Ok(())
    }

    /// A mirror that has the commit with this much history.
    async fn mirror(&self, code: &Code, depth: u32) -> Result<PathBuf, CheckoutError> {
        let digest = digest::digest(&digest::SHA256, code.url.as_bytes());
        let name = format!("{}-{depth}-{}", &hex::encode(digest)[..32], code.commit.len());
        let mirror = mirrors(self.data_dir).join(name);
        let _lock = lock(&mirror.with_extension("lock")).await?;
        if !mirror.join("HEAD").exists() {
            files::make_dir(&mirror, 0o700)?;
            let format = if code.commit.len() == 64 { "sha256" } else { "sha1" };
            let format = format!("--object-format={format}");
            let init = ["init", "--quiet", "--bare", "--template=", &format];
            self.run(As::Agent(None), &mirror, &init).await?;
        }
        let commit = code.commit.as_str();
        let kept = format!("refs/shunt/{commit}");
        // Nothing packs the refs of a mirror.
        if mirror.join(&kept).exists() {
            return Ok(mirror);
        }
        let depth_arg = format!("--depth={depth}");
        let mut fetch =
            vec!["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--update-shallow"];
        if depth > 0 {
            fetch.push(&depth_arg);
        }
        let refspec = format!("+{commit}:{kept}");
        fetch.extend([SOURCE, &refspec]);
        if let Err(error) = self.run(As::Agent(Some(&code.url)), &mirror, &fetch).await {
            self.fetch_by_name(code, &mirror, &kept).await.map_err(|_| error)?;
        }
        Ok(mirror)
    }

    /// For servers that give out no commit by its digest: all of the ref, and the commit in it.
    async fn fetch_by_name(
        &self,
        code: &Code,
        mirror: &Path,
        kept: &str,
    ) -> Result<(), CheckoutError> {
        let name = code.ref_name.as_deref().unwrap_or("HEAD");
        let refspec = format!("+{name}:refs/fetched");
        let fetch = ["fetch", "--quiet", "--no-tags", "--update-shallow", SOURCE, &refspec];
        self.run(As::Agent(Some(&code.url)), mirror, &fetch).await?;
        self.run(As::Agent(None), mirror, &["update-ref", kept, &code.commit]).await
    }

    async fn run(&self, who: As<'_>, dir: &Path, args: &[&str]) -> Result<(), CheckoutError> {
        output(self.command(who, dir, args)).await.map(drop)
    }

    /// A `git` in a directory, without input and output.
    fn command(&self, who: As<'_>, dir: &Path, args: &[&str]) -> Command {
        let mut command = std::process::Command::new("git");
        command.args(args).current_dir(dir).env_clear().envs(self.host_env);
        command
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", config_path(self.data_dir));
        command.env("GIT_TERMINAL_PROMPT", "0").env("GIT_ASKPASS", "true");
        command.env("GIT_SSH_COMMAND", "ssh -oBatchMode=yes").env("LC_ALL", "C");
        if let As::Agent(Some(url)) = who {
            // Not as an argument, which every process of the host can read: it may hold a secret.
            command.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_VALUE_0", url);
            command.env("GIT_CONFIG_KEY_0", format!("remote.{SOURCE}.url"));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.process_group(0);
        if let (As::Job, Some(user)) = (who, self.user) {
            command.uid(user.uid).gid(user.gid).env("HOME", &user.home);
        }
        let mut command = Command::from(command);
        command.kill_on_drop(true);
        command
    }
}

/// Runs a `git` to its end. Returns what it wrote.
async fn output(mut git: Command) -> Result<Vec<u8>, CheckoutError> {
    let child = git.spawn().map_err(CheckoutError::Start)?;
    let operation =
        git.as_std().get_args().next().unwrap_or_default().to_string_lossy().into_owned();
    // With it go its ends of pipes.
    drop(git);
    let output = child.wait_with_output().await.map_err(CheckoutError::Start)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(CheckoutError::Git { operation, said: hide_credentials(end_of(&said)) })
}

/// The end of what `git` said, which has the reason.
fn end_of(said: &str) -> &str {
    let said = said.trim();
    &said[said.ceil_char_boundary(said.len().saturating_sub(SAID_BYTES_MAX))..]
}

/// Refuses what `git` could take for an option or a program to run.
fn check(code: &Code) -> Result<(), CheckoutError> {
    let refused = |problem: String| Err(CheckoutError::Refused { problem });
    let digest = matches!(code.commit.len(), 40 | 64)
        && code.commit.bytes().all(|b| b.is_ascii_hexdigit())
        && code.commit.bytes().any(|b| b != b'0');
    if !digest {
        return refused(format!("'{}' is not a commit", code.commit));
    }
    let scheme = code.url.split_once("://").map(|(scheme, _)| scheme);
    let scp_like = scheme.is_none()
        && !code.url.contains("::")
        && code.url.split_once(':').is_some_and(|(host, _)| host.contains('@'));
    let known = matches!(scheme, Some("https" | "ssh" | "file")) || scp_like;
    if !known || code.url.starts_with('-') {
        let url = without_credentials(&code.url);
        return refused(format!("'{url}' is not an https, ssh or file URL"));
    }
    let name = code.ref_name.as_deref().unwrap_or("refs/");
    if !name.starts_with("refs/") || name.contains([':', '*', '^', '\0']) {
        return refused(format!("'{name}' is not the full name of a ref"));
    }
    Ok(())
}

/// The URL as people may see it.
fn without_credentials(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme @ ("http" | "https"), rest)) => {
            let host_end = rest.find('/').unwrap_or(rest.len());
            let host = rest[..host_end].rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}{}", &rest[host_end..])
        }
        _ => url.to_owned(),
    }
}

/// `git` repeats URLs in what it says.
fn hide_credentials(text: &str) -> String {
    text.split_inclusive(char::is_whitespace)
        .map(|word| match word.find("http") {
            Some(at) => format!("{}{}", &word[..at], without_credentials(&word[at..])),
            None => word.to_owned(),
        })
        .collect()
}

/// Holds a lock file; waits without a thread, which a supervisor cannot start.
async fn lock(path: &Path) -> Result<fs::File, FileError> {
    let file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(FileError::of("open", path))?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::WouldBlock) => tokio::time::sleep(LOCK_PAUSE).await,
            Err(fs::TryLockError::Error(error)) => return Err(FileError::of("lock", path)(error)),
        }
    }
}

mod workspace;

#[cfg(test)]
mod tests;
