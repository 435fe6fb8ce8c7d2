// node:path for POSIX: pure text, so it works while planning too.

import { host } from 'shuntyard:host';

export const sep = '/';
export const delimiter = ':';

function text(value) {
  if (typeof value !== 'string') throw new TypeError(`a path is a string, got ${typeof value}`);
  return value;
}

/** Resolves `.` and `..` in a list of parts. */
function squeeze(parts, absolute) {
  const kept = [];
  for (const part of parts) {
    if (part === '' || part === '.') continue;
    if (part !== '..') kept.push(part);
    else if (kept.length > 0 && kept[kept.length - 1] !== '..') kept.pop();
    else if (!absolute) kept.push('..');
  }
  return kept;
}

export function isAbsolute(path) {
  return text(path).startsWith('/');
}

export function normalize(path) {
  const absolute = isAbsolute(path);
  const inner = squeeze(path.split('/'), absolute).join('/');
  const end = inner !== '' && path.endsWith('/') ? '/' : '';
  return (absolute ? '/' : '') + inner + end || '.';
}

export function join(...parts) {
  const path = parts.filter((part) => text(part) !== '').join('/');
  return path === '' ? '.' : normalize(path);
}

export function resolve(...parts) {
  let path = '';
  for (let i = parts.length - 1; i >= 0 && !path.startsWith('/'); i -= 1) {
    if (text(parts[i]) !== '') path = path === '' ? parts[i] : `${parts[i]}/${path}`;
  }
  if (!path.startsWith('/')) path = `${host === null ? '/' : host.cwd()}/${path}`;
  const full = normalize(path);
  return full.length > 1 && full.endsWith('/') ? full.slice(0, -1) : full;
}

export function dirname(path) {
  const trimmed = text(path).replace(/\/+$/, '');
  const slash = trimmed.lastIndexOf('/');
  if (slash === -1) return trimmed === '' && path !== '' ? '/' : '.';
  return trimmed.slice(0, slash).replace(/\/+$/, '') || '/';
}

export function basename(path, suffix = '') {
  const trimmed = text(path).replace(/\/+$/, '');
  const base = trimmed.slice(trimmed.lastIndexOf('/') + 1);
  const cut = suffix !== '' && base !== suffix && base.endsWith(suffix);
  return cut ? base.slice(0, -suffix.length) : base;
}

export function extname(path) {
  const base = basename(path);
  const dot = base.lastIndexOf('.');
  return dot <= 0 ? '' : base.slice(dot);
}

export function relative(from, to) {
  const a = resolve(from).split('/').filter(Boolean);
  const b = resolve(to).split('/').filter(Boolean);
  let same = 0;
  while (same < a.length && same < b.length && a[same] === b[same]) same += 1;
  return [...a.slice(same).map(() => '..'), ...b.slice(same)].join('/');
}

export function parse(path) {
  const base = basename(path);
  const ext = extname(path);
  const dir = dirname(path);
  const root = isAbsolute(path) ? '/' : '';
  return { root, dir: dir === '.' && !path.startsWith('.') ? '' : dir, base, ext, name: base.slice(0, base.length - ext.length) };
}

export function format({ dir = '', root = '', base = '', name = '', ext = '' }) {
  const file = base || name + ext;
  if (dir === '') return root + file;
  return dir === root ? dir + file : `${dir}/${file}`;
}

export const posix = { sep, delimiter, isAbsolute, normalize, join, resolve, dirname, basename, extname, relative, parse, format };

export default posix;
