//! The workflow folder of one commit as a map from path to text.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{digest, sdk};

/// Most files in a workflow folder.
pub const BUNDLE_FILES_MAX: usize = 1000;
/// Most bytes in a workflow folder, paths and texts together.
pub const BUNDLE_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Most bytes of a bundle as JSON: it travels in one frame, with room for the header.
pub const BUNDLE_JSON_BYTES_MAX: usize = 3 * 1024 * 1024;
/// Deepest folder below the workflow folder.
const FOLDER_DEPTH_MAX: usize = 16;
/// The folders that may hold workflows; the first that exists is read.
pub const FOLDERS: [&str; 2] = [".shuntyard", ".kici"];

const EXTENSIONS: [&str; 5] = ["ts", "mts", "js", "mjs", "json"];
const WORKFLOW_EXTENSIONS: [&str; 4] = ["ts", "mts", "js", "mjs"];

/// Every file of the workflow folder that a workflow could import, by path in the repository
/// (`.shuntyard/workflows/ci.ts`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bundle(BTreeMap<String, String>);

/// Why a workflow folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    #[error(
        "the workflow folder has more than {BUNDLE_FILES_MAX} files; move what is not a workflow or a helper elsewhere"
    )]
    TooManyFiles,
    #[error(
        "the workflow folder is larger than {BUNDLE_BYTES_MAX} bytes; move what is not a workflow or a helper elsewhere"
    )]
    TooLarge,
    #[error(
        "the workflow folder is larger than {BUNDLE_JSON_BYTES_MAX} bytes as JSON; it holds too many control characters"
    )]
    TooManyEscapes,
    #[error("{path} is not a file of a workflow folder (.shuntyard or .kici)")]
    Foreign { path: String },
    #[error("{path} is not UTF-8 text")]
    NotText { path: String },
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Bundle {
    /// A bundle of these files.
    ///
    /// # Errors
    /// When a limit is passed, or a path is outside the workflow folders.
    pub fn new(files: BTreeMap<String, String>) -> Result<Self, BundleError> {
        if files.len() > BUNDLE_FILES_MAX {
            return Err(BundleError::TooManyFiles);
        }
        if files.iter().map(|(path, text)| path.len() + text.len()).sum::<usize>()
            > BUNDLE_BYTES_MAX
        {
            return Err(BundleError::TooLarge);
        }
        if let Some(path) = files.keys().find(|path| !is_inside(path)) {
            return Err(BundleError::Foreign { path: path.clone() });
        }
        let bundle = Self(files);
        if bundle.to_json().len() > BUNDLE_JSON_BYTES_MAX {
            return Err(BundleError::TooManyEscapes);
        }
        Ok(bundle)
    }

    /// Reads the workflow folder of the repository at `root`. Symbolic links are not followed,
    /// and a repository without a workflow folder gives an empty bundle.
    ///
    /// # Errors
    /// When a file cannot be read or a limit is passed.
    pub fn from_dir(root: &Path) -> Result<Self, BundleError> {
        let mut files = BTreeMap::new();
        for folder in FOLDERS {
            let is_folder = fs::symlink_metadata(root.join(folder)).is_ok_and(|meta| meta.is_dir());
            if is_folder {
                read_folder(root, folder, FOLDER_DEPTH_MAX, &mut files)?;
                if files.keys().any(|path| is_workflow(path)) {
                    break;
                }
                files.clear();
            }
        }
        Self::new(files)
    }

    /// Whether the file at this path of a repository belongs into a bundle: it is under a
    /// workflow folder and a workflow could import it. Type declarations and packages do not.
    pub fn wants(path: &str) -> bool {
        let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
        is_inside(path)
            && EXTENSIONS.contains(&extension)
            && !path.ends_with(".d.ts")
            && !path.split('/').any(|part| part == "node_modules")
    }

    /// The text of one file.
    pub fn get(&self, path: &str) -> Option<&str> {
        self.0.get(path).map(String::as_str)
    }

    /// Path and text of each file, sorted by path.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// The workflow files: those directly in `.shuntyard/workflows`, or in `.kici/workflows` when
    /// there are none.
    pub fn workflow_files(&self) -> Vec<&str> {
        let of = |folder: &str| -> Vec<&str> {
            let prefix = format!("{folder}/workflows/");
            let paths = self.0.keys().filter(|path| path.starts_with(&prefix) && is_workflow(path));
            paths.map(String::as_str).collect()
        };
        FOLDERS.iter().map(|folder| of(folder)).find(|found| !found.is_empty()).unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bundle as the JSON map that `Start` and `Load` frames carry.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(&self.0).expect("a map of strings is valid JSON")
    }

    /// The bundle from such a map.
    ///
    /// # Errors
    /// When a limit is passed or the bytes are no such map.
    pub fn from_json(bytes: &[u8]) -> Result<Self, BundleError> {
        let files = serde_json::from_slice(bytes)
            .map_err(|_| BundleError::NotText { path: "the workflow folder".to_owned() })?;
        Self::new(files)
    }
}

/// The name under which a plan may be cached: SHA-256 (hex) over the sorted paths and texts, and
/// the version of the SDK.
pub fn plan_key(bundle: &Bundle) -> String {
    let mut parts: Vec<&[u8]> = vec![sdk::VERSION.as_bytes()];
    for (path, text) in bundle.files() {
        parts.extend([path.as_bytes(), text.as_bytes()]);
    }
    digest::of_parts(&parts)
}

fn is_inside(path: &str) -> bool {
    let clean = path.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    clean
        && FOLDERS
            .iter()
            .any(|folder| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')))
}

fn is_workflow(path: &str) -> bool {
    let mut parts = path.split('/').skip(1);
    let (folder, name, end) = (parts.next(), parts.next().unwrap_or_default(), parts.next());
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    folder == Some("workflows")
        && end.is_none()
        && WORKFLOW_EXTENSIONS.contains(&extension)
        && !name.ends_with(".d.ts")
}

fn read_folder(
    root: &Path,
    folder: &str,
    depth: usize,
    files: &mut BTreeMap<String, String>,
) -> Result<(), BundleError> {
    let at = root.join(folder);
    let read = |source| BundleError::Read { path: at.clone(), source };
    for entry in fs::read_dir(&at).map_err(read)? {
        let entry = entry.map_err(read)?;
        let kind = entry.file_type().map_err(read)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = format!("{folder}/{name}");
        if kind.is_dir() && depth > 0 && name != "node_modules" {
            read_folder(root, &path, depth - 1, files)?;
        } else if kind.is_file() && Bundle::wants(&path) {
            let text = read_text(root, &path)?;
            files.insert(path, text);
            if files.len() > BUNDLE_FILES_MAX {
                return Err(BundleError::TooManyFiles);
            }
        }
    }
    Ok(())
}

fn read_text(root: &Path, path: &str) -> Result<String, BundleError> {
    let at = root.join(path);
    let read = |source| BundleError::Read { path: at.clone(), source };
    if fs::metadata(&at).map_err(read)?.len() > BUNDLE_BYTES_MAX as u64 {
        return Err(BundleError::TooLarge);
    }
    let bytes = fs::read(&at).map_err(read)?;
    String::from_utf8(bytes).map_err(|_| BundleError::NotText { path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Bundle {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        Bundle::new(files.collect()).unwrap()
    }

    fn numbered(count: usize) -> BTreeMap<String, String> {
        (0..count).map(|i| (format!(".shuntyard/{i}.ts"), String::new())).collect()
    }

    #[test]
    fn a_bundle_at_its_limits_passes_and_one_more_is_refused() {
        assert!(Bundle::new(numbered(BUNDLE_FILES_MAX)).is_ok());
        assert!(matches!(
            Bundle::new(numbered(BUNDLE_FILES_MAX + 1)),
            Err(BundleError::TooManyFiles)
        ));
        let path = ".shuntyard/a.ts";
        let sized =
            |bytes: usize| BTreeMap::from([(path.to_owned(), "x".repeat(bytes - path.len()))]);
        assert!(Bundle::new(sized(BUNDLE_BYTES_MAX)).is_ok());
        assert!(matches!(Bundle::new(sized(BUNDLE_BYTES_MAX + 1)), Err(BundleError::TooLarge)));
    }

    #[test]
    fn folders_deeper_than_folder_depth_max_are_refused() {
        let read = |levels: usize| {
            let root = tempfile::tempdir().unwrap();
            let folder = root.path().join(".shuntyard").join(vec!["a"; levels].join("/"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("x.ts"), "").unwrap();
            let workflows = root.path().join(".shuntyard/workflows");
            fs::create_dir_all(&workflows).unwrap();
            fs::write(workflows.join("w.ts"), "").unwrap();
            Bundle::from_dir(root.path()).map(|bundle| bundle.files().count())
        };
        assert_eq!(read(FOLDER_DEPTH_MAX - 1).unwrap(), 2);
        assert_ne!(read(FOLDER_DEPTH_MAX + 1).ok(), Some(2));
    }

    #[test]
    fn a_bundle_always_fits_a_frame() {
        let path = ".shuntyard/a.ts";
        let room = BUNDLE_JSON_BYTES_MAX - format!("{{\"{path}\":\"\"}}").len();
        // Each of these is six bytes as JSON.
        let text = format!("{}{}", "\u{1}".repeat(room / 6), "x".repeat(room % 6));
        let of = |text: String| Bundle::new(BTreeMap::from([(path.to_owned(), text)]));
        assert_eq!(of(text.clone()).unwrap().to_json().len(), BUNDLE_JSON_BYTES_MAX);
        assert!(matches!(of(text + "x"), Err(BundleError::TooManyEscapes)));
    }

    #[test]
    fn only_paths_inside_the_folder_are_taken() {
        for path in [
            "/etc/passwd",
            ".shuntyard/../x.ts",
            "src/a.ts",
            ".shuntyard//a.ts",
            ".shuntyardx/a.ts",
        ] {
            let files = BTreeMap::from([(path.to_owned(), String::new())]);
            assert!(matches!(Bundle::new(files), Err(BundleError::Foreign { .. })), "{path}");
        }
    }

    #[test]
    fn the_fallback_folder_counts_only_without_the_first() {
        let both = of(&[(".kici/workflows/a.ts", ""), (".shuntyard/workflows/b.mts", "")]);
        assert_eq!(both.workflow_files(), [".shuntyard/workflows/b.mts"]);
        let one = of(&[
            (".kici/workflows/a.ts", ""),
            (".kici/workflows/deep/b.ts", ""),
            (".kici/lib.ts", ""),
        ]);
        assert_eq!(one.workflow_files(), [".kici/workflows/a.ts"]);
    }

    #[test]
    fn the_key_changes_with_every_path_and_text() {
        let keys = [
            plan_key(&of(&[])),
            plan_key(&of(&[(".shuntyard/a.ts", "b")])),
            plan_key(&of(&[(".shuntyard/a.ts", "")])),
            plan_key(&of(&[(".shuntyard/b.ts", "b")])),
            plan_key(&of(&[(".shuntyard/a.ts", "b"), (".shuntyard/b.ts", "")])),
        ];
        let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }

    #[cfg(unix)]
    #[test]
    fn reading_a_folder_follows_no_link() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(".shuntyard/workflows");
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(root.path().join(".shuntyard/node_modules/p")).unwrap();
        fs::write(root.path().join(".shuntyard/node_modules/p/i.js"), "").unwrap();
        fs::write(root.path().join(".shuntyard/shuntyard.d.ts"), "").unwrap();
        fs::write(folder.join("ci.ts"), "export {}").unwrap();
        fs::write(root.path().join("secret.ts"), "secret").unwrap();
        std::os::unix::fs::symlink(root.path().join("secret.ts"), folder.join("evil.ts")).unwrap();
        std::os::unix::fs::symlink("/etc", root.path().join(".shuntyard/etc")).unwrap();
        let bundle = Bundle::from_dir(root.path()).unwrap();
        assert_eq!(
            bundle.files().collect::<Vec<_>>(),
            [(".shuntyard/workflows/ci.ts", "export {}")]
        );
        assert_eq!(Bundle::from_json(&bundle.to_json()).unwrap(), bundle);
        assert!(Bundle::from_dir(Path::new("/nonexistent")).unwrap().is_empty());
    }
}
