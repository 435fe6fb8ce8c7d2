// What the SDK's functions return: records of the call, read by the host.
//
// A node only keeps its arguments and the place of the call. All checks happen in the host, which
// reads own properties alone; so a polluted prototype or a patched built-in cannot change a plan.

const { Error: BaseError, RegExp: BaseRegExp } = globalThis;
const { apply, getOwnPropertyDescriptor, defineProperty } = Reflect;
const sourceOf = getOwnPropertyDescriptor(BaseRegExp.prototype, 'source').get;
const flagsOf = getOwnPropertyDescriptor(BaseRegExp.prototype, 'flags').get;

const STACK_FRAMES = 50;

// Stacks keep the engine's own form, from which the host reads positions.
defineProperty(BaseError, 'stackTraceLimit', { value: STACK_FRAMES });
defineProperty(BaseError, 'prepareStackTrace', { value: undefined });

let lastId = 0;
let readResult = null;

export class Node {
  #data;

  constructor(kind, args) {
    lastId += 1;
    this.#data = { __proto__: null, kind, args, id: lastId, stack: new BaseError().stack };
  }

  static dataOf(value) {
    const isNode = typeof value === 'object' && value !== null && #data in value;
    return isNode ? value.#data : undefined;
  }
}

/** A step or a job: something that has outputs while a run is under way. */
export class ResultNode extends Node {
  get result() {
    const { kind, id } = Node.dataOf(this);
    if (readResult === null) {
      const what = kind === 'job' ? 'job' : 'step';
      throw new BaseError(
        `the result of a ${what} exists only while the run is under way: ` +
          'read it inside a step function, not while the workflow is planned',
      );
    }
    return readResult(kind, id);
  }
}

/** The runner's way to give results their values. */
export function setResultReader(read) {
  readResult = read;
}

/** What the host sees in an object: a node, a regular expression, or nothing special. */
export function identify(value) {
  const node = Node.dataOf(value);
  if (node !== undefined) return node;
  try {
    const source = apply(sourceOf, value, []);
    const isProto = value === BaseRegExp.prototype;
    return isProto ? null : { __proto__: null, kind: 'regexp', source, flags: apply(flagsOf, value, []) };
  } catch {
    return null;
  }
}
