//! Where things are kept on a user's machine.

use std::{
    fs,
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use anyhow::Context;
use etcetera::{BaseStrategy, choose_base_strategy};
use serde::{Deserialize, Serialize};
use shuntyard_server::ADMIN_TOKEN_FILE;

/// The user's data folder of Shuntyard.
pub(crate) fn data_home() -> anyhow::Result<PathBuf> {
    let strategy = choose_base_strategy().context("find the home directory")?;
    Ok(strategy.data_dir().join("shuntyard"))
}

/// The user's configuration folder of Shuntyard.
pub(crate) fn config_home() -> anyhow::Result<PathBuf> {
    let strategy = choose_base_strategy().context("find the home directory")?;
    Ok(strategy.config_dir().join("shuntyard"))
}

/// The default data folder of `shunt dev`: readable, and different for each path.
pub(crate) fn dev_data(path: &Path) -> anyhow::Result<PathBuf> {
    let digest =
        aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, path.as_os_str().as_encoded_bytes());
    let name = format!("{}-{}", source_name(path), hex::encode(&digest.as_ref()[..6]));
    Ok(data_home()?.join("dev").join(name))
}

/// A name for the source at a path.
pub(crate) fn source_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name: String = name.chars().map(|c| if fits(c) { c } else { '-' }).take(60).collect();
    let name = name.trim_start_matches('.');
    if name.is_empty() { "source".to_owned() } else { name.to_owned() }
}

/// How to reach a `shunt dev` or `shunt serve` that runs with a data folder.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Endpoint {
    pub(crate) url: String,
    pub(crate) pid: u32,
    pub(crate) data: PathBuf,
    /// PEM file with the server's certificate, which commands on this machine take its word for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ca_file: Option<PathBuf>,
}

const ENDPOINT_FILE: &str = "endpoint.json";

impl Endpoint {
    /// Lets other commands of this user find the server.
    pub(crate) fn announce(&self) -> anyhow::Result<()> {
        let text = serde_json::to_string(self)?;
        write_private(&self.data.join(ENDPOINT_FILE), text.as_bytes())?;
        let running = running_dir()?;
        make_private_dir(&running)?;
        write_private(&running.join(format!("{}.json", self.pid)), text.as_bytes())
    }

    pub(crate) fn withdraw(&self) {
        // A file that stays is recognised by its dead process.
        drop(fs::remove_file(self.data.join(ENDPOINT_FILE)));
        if let Ok(running) = running_dir() {
            drop(fs::remove_file(running.join(format!("{}.json", self.pid))));
        }
    }

    pub(crate) fn of_data(data: &Path) -> anyhow::Result<Self> {
        let path = data.join(ENDPOINT_FILE);
        let text = fs::read_to_string(&path).with_context(|| {
            format!(
                "no server runs with the data folder {} (no {})",
                data.display(),
                path.display()
            )
        })?;
        serde_json::from_str(&text).with_context(|| format!("read {}", path.display()))
    }

    /// Whether a server runs with this data folder, and this user may use its token.
    pub(crate) fn answers(data: &Path) -> bool {
        let token = data.join(ADMIN_TOKEN_FILE).exists();
        token && Self::of_data(data).is_ok_and(|endpoint| endpoint.lives())
    }

    fn lives(&self) -> bool {
        let pid = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw);
        pid.is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
    }

    /// Every server of this user that still runs.
    pub(crate) fn running() -> Vec<Self> {
        let Ok(entries) = running_dir().and_then(|dir| Ok(fs::read_dir(dir)?)) else {
            return Vec::new();
        };
        let read = |entry: std::io::Result<fs::DirEntry>| -> Option<Self> {
            serde_json::from_str(&fs::read_to_string(entry.ok()?.path()).ok()?).ok()
        };
        entries.filter_map(read).filter(Self::lives).collect()
    }
}

fn running_dir() -> anyhow::Result<PathBuf> {
    Ok(data_home()?.join("running"))
}

pub(crate) fn make_private_dir(path: &Path) -> anyhow::Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.with_context(|| format!("make the folder {}", path.display()))
}

/// Writes a file that only its owner may read: complete or not at all.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let temp = path.with_extension("tmp");
    let write = || -> std::io::Result<()> {
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temp)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temp, path)
    };
    write().with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_folder_gives_a_name_that_a_source_may_have() {
        for (path, name) in
            [("/a/hello", "hello"), ("/a/my app ü", "my-app--"), ("/", "source"), ("/.x", "x")]
        {
            assert_eq!(source_name(Path::new(path)), name);
        }
    }
}
