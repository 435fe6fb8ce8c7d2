// `$` and `sh` of a step: commands as promises.

import { need } from 'shuntyard:host';

const SAFE = /^[A-Za-z0-9_/:=.,@%+-]+$/;

/** One word of a POSIX shell that means exactly this text. */
export function quote(text) {
  if (text.includes('\0')) throw new TypeError('$: a value contains a NUL character, which no command can receive');
  return SAFE.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function word(value, place) {
  if (Array.isArray(value)) return value.map((item) => word(item, place)).join(' ');
  if (value instanceof CommandResult) return quote(value.text());
  switch (typeof value) {
    case 'string':
      return quote(value);
    case 'number':
    case 'bigint':
    case 'boolean':
      return quote(String(value));
    default: {
      const what = value === null ? 'null' : typeof value === 'object' ? 'an object' : typeof value;
      throw new TypeError(`$: value ${place} of the command is ${what}; a command takes strings, numbers, booleans, lists and results`);
    }
  }
}

/** The script of a template: what is written stays as it is, every value becomes words. */
export function script(strings, values) {
  let text = '';
  strings.raw.forEach((piece, index) => {
    // A shell reads its own escapes; only those that the template needs are undone.
    text += piece.replaceAll('\\`', '`').replaceAll('\\${', '${');
    if (index >= values.length) return;
    const [before, after] = [piece.at(-1), strings.raw[index + 1][0]];
    if (before === after && (before === '"' || before === "'")) {
      throw new TypeError(`$: value ${index + 1} is inside quotes; write \${…} without them, $ quotes by itself`);
    }
    text += word(values[index], index + 1);
  });
  return text;
}

/** What a finished command left. */
export class CommandResult {
  #truncated;
  #stdout;
  #stderr;

  constructor({ stdout, stderr, exitCode, signal, truncated }) {
    this.#truncated = truncated;
    this.#stdout = stdout;
    this.#stderr = stderr;
    this.exitCode = exitCode;
    this.signal = signal;
  }

  #whole(text) {
    if (this.#truncated) throw new RangeError('the command wrote more than is kept in memory (8 MiB); send its output to a file');
    return text;
  }

  get stdout() {
    return this.#whole(this.#stdout);
  }

  get stderr() {
    return this.#whole(this.#stderr);
  }

  /** stdout without its last newline. */
  text() {
    return this.stdout.replace(/\r?\n$/, '');
  }

  /** The lines of stdout. */
  lines() {
    const text = this.text();
    return text === '' ? [] : text.split(/\r?\n/);
  }

  /** stdout as JSON. */
  json() {
    return JSON.parse(this.stdout);
  }

  toString() {
    return this.text();
  }
}

/** A command ended badly. */
export class CommandError extends Error {
  constructor(command, result, why) {
    const line = command.trim().split('\n')[0].slice(0, 200);
    super(`${why}: ${line}`);
    this.name = 'CommandError';
    this.command = command;
    this.exitCode = result.exitCode;
    this.signal = result.signal;
    this.result = result;
  }
}

function millis(value) {
  const units = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };
  const match = typeof value === 'string' ? /^(\d+)(ms|s|m|h|d)$/.exec(value.trim()) : null;
  const result = match === null ? value : Number(match[1]) * units[match[2]];
  if (typeof result !== 'number' || !(result > 0)) {
    throw new TypeError(`a timeout is a string such as "90s" or milliseconds, got ${String(value)}`);
  }
  return result;
}

/** A command that is about to run: options first, then `await`. */
export class Command {
  #state;
  #script;
  #options = { quiet: false, nothrow: false, timeout: 0, cwd: '', env: {} };
  #promise = null;
  #observed = false;
  #failure = null;
  #id = 0;
  #stack;

  constructor(state, text, options = {}) {
    this.#state = state;
    this.#script = text;
    this.#stack = new Error().stack;
    const { quiet = false, nothrow = false, timeout, cwd = '', env = {} } = options;
    this.#options = { quiet, nothrow, cwd, env, timeout: timeout === undefined ? 0 : millis(timeout) };
    state.commands.add(this);
    queueMicrotask(() => this.#start().catch(() => {}));
  }

  /** A bad exit code is no error. */
  nothrow() {
    this.#options.nothrow = true;
    return this;
  }

  /** Output is captured but not logged. */
  quiet() {
    this.#options.quiet = true;
    return this;
  }

  /** Ends the command after this time. */
  timeout(value) {
    this.#options.timeout = millis(value);
    return this;
  }

  then(resolve, reject) {
    this.#observed = true;
    return this.#start().then(resolve, reject);
  }

  catch(reject) {
    return this.then(undefined, reject);
  }

  finally(f) {
    this.#observed = true;
    return this.#start().finally(f);
  }

  async text() {
    return (await this).text();
  }

  async lines() {
    return (await this).lines();
  }

  async json() {
    return (await this).json();
  }

  /** The failure that nobody waited for. */
  get unnoticed() {
    return this.#observed ? null : this.#failure;
  }

  get running() {
    return this.#id !== 0;
  }

  #start() {
    this.#promise ??= this.#run();
    return this.#promise;
  }

  async #run() {
    try {
      if (this.#state.ended) throw new Error('the step has ended; its commands have to be awaited');
      if (this.#state.signal.aborted) throw this.#state.signal.reason;
      return this.#judge(await this.#exit());
    } catch (error) {
      this.#failure = error;
      throw error;
    } finally {
      this.#id = 0;
      this.#state.commands.delete(this);
      if (this.#failure !== null && !this.#observed) this.#state.unnoticed = this.#failure;
    }
  }

  #exit() {
    const { cwd, env, quiet, timeout } = this.#options;
    return new Promise((resolve) => {
      const all = { ...this.#state.env, ...env };
      this.#id = need('$').spawn(this.#state.step, this.#script, cwd, all, quiet, timeout);
      this.#state.waiting.set(this.#id, resolve);
    });
  }

  #judge(exit) {
    const result = new CommandResult(exit);
    let why = null;
    if (exit.problem !== '') why = exit.problem;
    else if (exit.timedOut) why = `command did not end within ${this.#options.timeout} ms`;
    else if (exit.signal !== null) why = `command was ended by ${exit.signal}`;
    else if (exit.exitCode !== 0) why = `command failed with exit code ${exit.exitCode}`;
    if (why === null || (this.#options.nothrow && exit.problem === '' && !exit.timedOut)) return result;
    const error = new CommandError(this.#script, result, why);
    error.stack = this.#stack;
    throw error;
  }
}
