// node:fs/promises.

import { promises } from 'node:fs';

export const readFile = promises.readFile;
export const writeFile = promises.writeFile;
export const appendFile = promises.appendFile;
export const mkdir = promises.mkdir;
export const readdir = promises.readdir;
export const rm = promises.rm;
export const stat = promises.stat;

export default promises;
