//! The files of `node:fs`, relative to the workspace.

#![expect(clippy::needless_pass_by_value, reason = "host functions own their arguments")]

use std::{fs, io, io::Write, os::unix::fs::MetadataExt};

use rquickjs::{Ctx, Exception, Object, Result, TypedArray, Value};

use super::lend::{Lent, bytes};
use crate::sys;

/// Largest file that is read into the engine.
pub(super) const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The codes by which scripts know errors.
const CODES: [(io::ErrorKind, &str); 6] = [
    (io::ErrorKind::NotFound, "ENOENT"),
    (io::ErrorKind::AlreadyExists, "EEXIST"),
    (io::ErrorKind::PermissionDenied, "EACCES"),
    (io::ErrorKind::NotADirectory, "ENOTDIR"),
    (io::ErrorKind::IsADirectory, "EISDIR"),
    (io::ErrorKind::DirectoryNotEmpty, "ENOTEMPTY"),
];

pub(super) fn lend(lent: &Lent<'_, '_>) -> Result<()> {
    lent.add("readFile", read_file)?;
    lent.add("writeFile", write_file)?;
    lent.add("stat", stat)?;
    lent.add("makeFolder", |ctx: Ctx<'_>, path: String, recursive: bool| {
        let made = if recursive { fs::create_dir_all(&path) } else { fs::create_dir(&path) };
        made.map_err(|error| throw(&ctx, "make the folder", &path, &error))
    })?;
    lent.add("readFolder", |ctx: Ctx<'_>, path: String| {
        let names = fs::read_dir(&path).and_then(|entries| {
            let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
            names.collect::<io::Result<Vec<_>>>()
        });
        let mut names = names.map_err(|error| throw(&ctx, "list", &path, &error))?;
        names.sort();
        Ok::<_, rquickjs::Error>(names)
    })?;
    lent.add("remove", remove)
}

fn read_file(ctx: Ctx<'_>, path: String) -> Result<Value<'_>> {
    let size = fs::metadata(&path).map_or(0, |meta| meta.len());
    if size > FILE_BYTES_MAX {
        let limit = FILE_BYTES_MAX / (1024 * 1024);
        let message = format!("cannot read {path}: it is larger than {limit} MiB; use a command");
        return Err(Exception::throw_range(&ctx, &message));
    }
    let content = fs::read(&path).map_err(|error| throw(&ctx, "read", &path, &error))?;
    bytes(&ctx, content)
}

fn write_file<'js>(
    ctx: Ctx<'js>,
    path: String,
    data: TypedArray<'js, u8>,
    append: bool,
) -> Result<()> {
    let content = sys::copy_bytes(&data);
    let mut options = fs::OpenOptions::new();
    options.create(true).write(true).append(append).truncate(!append);
    let written = options.open(&path).and_then(|mut file| file.write_all(&content));
    written.map_err(|error| throw(&ctx, "write", &path, &error))
}

/// Undefined when there is nothing and that is no error.
fn stat(ctx: Ctx<'_>, path: String, or_undefined: bool) -> Result<Option<Object<'_>>> {
    let meta = match fs::metadata(&path) {
        Ok(meta) => meta,
        Err(_) if or_undefined => return Ok(None),
        Err(error) => return Err(throw(&ctx, "look at", &path, &error)),
    };
    let kind = if meta.is_dir() {
        "folder"
    } else if meta.is_file() {
        "file"
    } else {
        "other"
    };
    let object = Object::new(ctx)?;
    object.set("kind", kind)?;
    #[expect(clippy::cast_precision_loss, reason = "numbers of a script are f64")]
    object.set("size", meta.len() as f64)?;
    #[expect(clippy::cast_precision_loss, reason = "numbers of a script are f64")]
    object.set("mtimeMs", meta.mtime() as f64 * 1000.0 + meta.mtime_nsec() as f64 / 1e6)?;
    object.set("mode", meta.mode())?;
    Ok(Some(object))
}

fn remove(ctx: Ctx<'_>, path: String, recursive: bool, force: bool) -> Result<()> {
    let is_folder = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir());
    let removed = match (is_folder, recursive) {
        (true, true) => fs::remove_dir_all(&path),
        (true, false) => fs::remove_dir(&path),
        (false, _) => fs::remove_file(&path),
    };
    match removed {
        Err(error) if force && error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|error| throw(&ctx, "remove", &path, &error)),
    }
}

fn throw(ctx: &Ctx<'_>, what: &str, path: &str, error: &io::Error) -> rquickjs::Error {
    let thrown = Exception::from_message(ctx.clone(), &format!("cannot {what} {path}: {error}"));
    match thrown {
        Ok(exception) => {
            let code = CODES.iter().find(|(kind, _)| *kind == error.kind());
            let code = code.map_or("EIO", |(_, code)| code);
            match exception.as_object().set("code", code) {
                Ok(()) => exception.throw(),
                Err(error) => error,
            }
        }
        Err(error) => error,
    }
}
