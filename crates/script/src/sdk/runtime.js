// The world of a running job: globals, `ctx`, and the life of a step.

import { Command, CommandError, CommandResult, script } from 'shuntyard:command';
import { errorText, format, makeConsole, setStackMapper } from 'shuntyard:format';
import { setHost } from 'shuntyard:host';
import { setResultReader } from 'shuntyard:nodes';
import { fire, globals } from 'shuntyard:web';

const OUTPUT_DEPTH_MAX = 32;

let host = null;
let job = null;
const states = new Map();
// Outputs of finished steps, by name.
const outputs = new Map();

function latest() {
  return [...states.values()].at(-1);
}

function print(state, level, text) {
  if (state === undefined) return;
  const prefix = level === 'info' ? '' : `${level === 'warn' ? 'warning' : level}: `;
  host.print(state.step, `${prefix}${text}\n`);
}

/** Called once, before the workflow file runs. */
export function install(functions) {
  host = functions;
  setHost(functions);
  setStackMapper(functions.mapStack);
  const define = (name, value) =>
    Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
  for (const name of Object.keys(globals)) define(name, globals[name]);
  define('console', makeConsole((level, text) => print(latest(), level, text)));
  define('process', {
    platform: host.platform,
    arch: host.arch,
    cwd: () => host.cwd(),
    get env() {
      return { ...latest()?.env };
    },
    exit() {
      throw new Error('process.exit does not exist in a step: return, or throw an error');
    },
  });
  define('fetch', () => {
    throw new Error('fetch is not supported yet: use a command such as curl');
  });
}

/** What the job is: its steps by index, the jobs of its workflow, and what came before. */
export function load(description) {
  job = description;
  setResultReader((kind, id) => (kind === 'job' ? jobResult(id) : stepResult(id)));
}

function upstream(name) {
  if (!Object.hasOwn(job.needs, name)) {
    throw new Error(`job "${job.name}" reads outputs of "${name}", which is not in its "needs"`);
  }
  return job.needs[name];
}

function outputsOfJob(name, single) {
  const { outcome, outputs: values } = upstream(name);
  if (outcome !== 'skipped') return values ?? (single ? {} : noSteps(name));
  // A skipped job has no outputs, whichever are asked for.
  return single ? {} : new Proxy({}, { get: () => Object.freeze({}) });
}

function noSteps(name) {
  return new Proxy(
    {},
    {
      get(_, key) {
        if (typeof key === 'symbol' || key === 'then') return undefined;
        throw new Error(`job "${name}" has no outputs of a step "${key}"`);
      },
    },
  );
}

function jobResult(id) {
  const known = job.jobs.find((other) => other.node === id);
  if (known === undefined) throw new Error(`job "${job.name}" reads the result of a job of another workflow`);
  return outputsOfJob(known.name, known.single);
}

function stepResult(id) {
  const index = job.steps.findIndex((step) => step.node === id);
  if (index === -1) {
    throw new Error(`job "${job.name}" reads the result of a step of another job; read it through that job's result`);
  }
  return outputsOfStep(job.steps[index].name);
}

function outputsOfStep(name) {
  if (outputs.has(name)) return outputs.get(name);
  throw new Error(`the result of step "${name}" does not exist: it has not ended, or has no outputs`);
}

function outputsOf(what) {
  if (typeof what === 'object' && what !== null) return what.result;
  if (Object.hasOwn(job.needs, what)) {
    const known = job.jobs.find((other) => other.name === what);
    return outputsOfJob(what, known?.single ?? true);
  }
  if (job.steps.some((step) => step.name === what)) return outputsOfStep(what);
  return upstream(String(what));
}

function abortSignal() {
  const listeners = new Set();
  const signal = {
    aborted: false,
    reason: undefined,
    addEventListener: (type, listener) => type === 'abort' && listeners.add(listener),
    removeEventListener: (type, listener) => listeners.delete(listener),
    throwIfAborted() {
      if (signal.aborted) throw signal.reason;
    },
  };
  const abort = (reason) => {
    if (signal.aborted) return;
    signal.aborted = true;
    signal.reason = reason;
    for (const listener of listeners) listener({ type: 'abort' });
  };
  return { signal, abort };
}

function variable(name, value) {
  if (typeof name !== 'string' || !/^[A-Za-z_][A-Za-z0-9_]*$/.test(name)) {
    throw new TypeError(`${String(name)} is no name for a variable`);
  }
  if (!['string', 'number', 'boolean'].includes(typeof value) || String(value).includes('\0')) {
    throw new TypeError(`variable ${name} is a string, a number or a boolean, without NUL characters`);
  }
  return String(value);
}

function context(state) {
  const line =
    (level) =>
    (...values) =>
      print(state, level, format(values));
  const setEnv = (name, value) => {
    const text = variable(name, value);
    state.env = Object.freeze({ ...state.env, [name]: text });
    host.setEnv(state.step, name, text);
  };
  const addPath = (path) => {
    if (typeof path !== 'string' || path === '') throw new TypeError('addPath takes a folder');
    const rest = state.env.PATH;
    state.env = Object.freeze({ ...state.env, PATH: rest ? `${path}:${rest}` : path });
    host.addPath(state.step, path);
  };
  const ctx = {
    ...job.context,
    $: (strings, ...values) => {
      if (!Array.isArray(strings) || !Array.isArray(strings.raw)) {
        throw new TypeError('$ is a template tag: $`make ${target}`; for a string there is sh()');
      }
      return new Command(state, script(strings, values));
    },
    sh: (command, options) => {
      if (typeof command !== 'string') throw new TypeError('sh takes a command as a string');
      return new Command(state, command, options);
    },
    log: Object.assign(line('info'), {
      info: line('info'),
      warn: line('warn'),
      error: line('error'),
      debug: line('debug'),
    }),
    console: makeConsole((level, text) => print(state, level, text)),
    inputs: job.context.inputs ?? {},
    needs: job.needs,
    signal: state.signal,
    setEnv,
    addPath,
    outputsOf,
  };
  Object.defineProperty(ctx, 'env', { get: () => state.env, enumerable: true });
  return ctx;
}

/** Starts a step; its function runs with the next turn of the job queue. */
export function startStep(step, tryNo, env, earlier) {
  for (const name of Object.keys(earlier)) outputs.set(name, earlier[name]);
  const { signal, abort } = abortSignal();
  const state = { step, env: Object.freeze({ ...env }), signal, abort, commands: new Set(), waiting: new Map(), ended: false, unnoticed: null };
  state.stopped = new Promise((_, reject) => {
    state.reject = reject;
  });
  states.set(step, state);
  const { run, name } = job.steps[step];
  // Not only through the race below: a function that was interrupted never gets that far.
  state.stopped.catch((error) => finish(state, name, undefined, error));
  const ctx = context(state);
  ctx.attempt ??= tryNo;
  // A separate job, so that a function which never yields cannot undo the registration.
  Promise.resolve()
    .then(() => Promise.race([run(ctx), state.stopped]))
    .then(
      (value) => finish(state, name, value, null),
      (error) => finish(state, name, undefined, error),
    );
}

async function finish(state, name, value, error) {
  if (state.ended) return;
  state.ended = true;
  if (state.commands.size > 0 && !state.signal.aborted) {
    print(state, 'warn', 'a command was still running when the step ended, and is stopped: await it');
  }
  if (!state.signal.aborted) host.stopCommands(state.step, 'end');
  await Promise.allSettled([...state.commands]);
  states.delete(state.step);
  const failure = error ?? state.unnoticed;
  if (failure !== null) return fail(state.step, failure);
  try {
    const plain = value === undefined || value === null || value instanceof CommandResult ? undefined : value;
    if (plain !== undefined) checkPlain(plain, 'outputs', OUTPUT_DEPTH_MAX);
    const kept = host.succeed(state.step, plain);
    if (kept !== undefined) outputs.set(name, kept);
  } catch (problem) {
    fail(state.step, problem);
  }
}

function fail(step, error) {
  const code = error instanceof CommandError ? error.exitCode : null;
  let text = 'an error that cannot be shown';
  try {
    text = errorText(error);
  } catch {
    // A thrown object may refuse to be read.
  }
  host.fail(step, text, code);
}

/** Outputs are JSON: what would silently become something else is refused. */
function checkPlain(value, path, depth) {
  if (typeof value !== 'object' || value === null) {
    if (path === 'outputs') throw new TypeError(`a step returns its outputs as an object, got ${typeof value}`);
    return;
  }
  if (depth === 0) throw new TypeError(`${path} is nested too deep, or contains itself`);
  if (Array.isArray(value)) {
    value.forEach((item, index) => checkPlain(item, `${path}[${index}]`, depth - 1));
    return;
  }
  const prototype = Object.getPrototypeOf(value);
  if (prototype !== null && prototype !== Object.prototype) {
    throw new TypeError(`${path} is a ${prototype.constructor?.name ?? 'special object'}; outputs are JSON: plain objects, lists, strings, numbers, booleans`);
  }
  for (const key of Object.keys(value)) checkPlain(value[key], `${path}.${key}`, depth - 1);
}

/** Stops a step: its signal, its promise, its commands. */
export function stopStep(step, force) {
  const state = states.get(step);
  host.stopCommands(step, force ? 'kill' : 'ask');
  if (state === undefined) return;
  const reason = new Error('the step was stopped');
  state.abort(reason);
  state.reject(reason);
}

/** A command ended. */
export function commandEnded(step, id, exit) {
  // The state is out of the map once the step is done, and then nobody waits.
  const state = states.get(step);
  const resolve = state?.waiting.get(id);
  state?.waiting.delete(id);
  resolve?.(exit);
}

/** A timer is due. */
export function timerFired(id) {
  try {
    fire(id);
  } catch (error) {
    print(latest(), 'error', `in a timer: ${errorText(error)}`);
  }
}
