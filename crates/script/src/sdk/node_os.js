// The common part of node:os.

import { need } from 'shuntyard:host';

const os = () => need('node:os');

export const EOL = '\n';

export function platform() {
  return os().platform;
}

export function arch() {
  return os().arch;
}

export function hostname() {
  return os().hostname();
}

export function homedir() {
  return os().env('HOME') ?? '/';
}

export function tmpdir() {
  return os().env('TMPDIR') ?? '/tmp';
}

export function availableParallelism() {
  return os().parallelism;
}

export default { EOL, platform, arch, hostname, homedir, tmpdir, availableParallelism };
