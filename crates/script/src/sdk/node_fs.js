// The common part of node:fs. Paths are relative to the workspace.

import { need } from 'shuntyard:host';

const fs = () => need('node:fs');

function path(value) {
  if (typeof value !== 'string') throw new TypeError(`a path is a string, got ${typeof value}`);
  return value;
}

function encoding(options) {
  const name = typeof options === 'string' ? options : options?.encoding;
  if (name === undefined || name === null) return false;
  if (/^utf-?8$/i.test(name)) return true;
  throw new Error(`encoding ${name} is not supported; use utf8 or none for bytes`);
}

function bytes(data) {
  if (typeof data === 'string') return new TextEncoder().encode(data);
  if (data instanceof Uint8Array) return data;
  throw new TypeError(`a file is written from a string or a Uint8Array, got ${typeof data}`);
}

export function readFileSync(file, options) {
  const content = fs().readFile(path(file));
  return encoding(options) ? new TextDecoder().decode(content) : content;
}

export function writeFileSync(file, data) {
  fs().writeFile(path(file), bytes(data), false);
}

export function appendFileSync(file, data) {
  fs().writeFile(path(file), bytes(data), true);
}

export function existsSync(file) {
  return fs().stat(path(file), true) !== undefined;
}

export function mkdirSync(folder, options = {}) {
  fs().makeFolder(path(folder), options.recursive === true);
}

export function readdirSync(folder) {
  return fs().readFolder(path(folder));
}

export function rmSync(file, options = {}) {
  fs().remove(path(file), options.recursive === true, options.force === true);
}

export function statSync(file) {
  const { kind, size, mtimeMs, mode } = fs().stat(path(file), false);
  return {
    size,
    mtimeMs,
    mode,
    mtime: new Date(mtimeMs),
    isFile: () => kind === 'file',
    isDirectory: () => kind === 'folder',
    isSymbolicLink: () => false,
  };
}

export const promises = {
  readFile: async (...args) => readFileSync(...args),
  writeFile: async (...args) => writeFileSync(...args),
  appendFile: async (...args) => appendFileSync(...args),
  mkdir: async (...args) => mkdirSync(...args),
  readdir: async (...args) => readdirSync(...args),
  rm: async (...args) => rmSync(...args),
  stat: async (...args) => statSync(...args),
};

export default {
  readFileSync,
  writeFileSync,
  appendFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  rmSync,
  statSync,
  promises,
};
