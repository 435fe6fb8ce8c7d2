// The module "shuntyard": what a workflow file imports. `shuntyard.d.ts` documents each item.

import { Node, ResultNode } from 'shuntyard:nodes';

export function workflow(...args) {
  return new Node('workflow', args);
}

export function job(...args) {
  return new ResultNode('job', args);
}

export function step(...args) {
  return new ResultNode('step', args);
}

export function sh(...args) {
  return new ResultNode('sh', args);
}

export function parallel(...args) {
  return new Node('parallel', args);
}

export function push(...args) {
  return new Node('push', args);
}

export function pr(...args) {
  return new Node('pr', args);
}

export function tag(...args) {
  return new Node('tag', args);
}

export function manual(...args) {
  return new Node('manual', args);
}

export function schedule(...args) {
  return new Node('schedule', args);
}

// Documented, but not here yet: the plan says so where one of them is used.
function later(name) {
  return () => new Node('unsupported', [name]);
}

export const comment = later('comment');
export const review = later('review');
export const reviewComment = later('reviewComment');
export const release = later('release');
export const dispatch = later('dispatch');
export const create = later('create');
export const del = later('del');
export const status = later('status');
export const workflowRun = later('workflowRun');
export const fork = later('fork');
export const star = later('star');
export const watch = later('watch');
export const webhook = later('webhook');
export const event = later('event');
export const workflowComplete = later('workflowComplete');
export const jobComplete = later('jobComplete');
export const genericWebhook = later('genericWebhook');
export const lifecycle = later('lifecycle');
export const invoke = later('invoke');
export const dynamicGroup = later('dynamicGroup');
export const rule = later('rule');
export const skip = later('skip');
export const onlyOnFirstHost = later('onlyOnFirstHost');

class Schema extends Node {
  #form;

  constructor(form) {
    super('schema', [form]);
    this.#form = form;
  }

  #and(more) {
    return new Schema({ ...this.#form, ...more });
  }

  optional() {
    return this.#and({ optional: true });
  }

  nullable() {
    return this.#and({ nullable: true });
  }

  default(value) {
    return this.#and({ default: value });
  }

  min(value) {
    return this.#and({ min: value });
  }

  max(value) {
    return this.#and({ max: value });
  }

  regex(pattern) {
    return this.#and({ regex: pattern });
  }

  int() {
    return this.#and({ int: true });
  }
}

export const z = {
  string: () => new Schema({ type: 'string' }),
  number: () => new Schema({ type: 'number' }),
  boolean: () => new Schema({ type: 'boolean' }),
  literal: (value) => new Schema({ type: 'literal', value }),
  enum: (values) => new Schema({ type: 'enum', values }),
  array: (items) => new Schema({ type: 'array', items }),
  object: (properties) => new Schema({ type: 'object', properties }),
  record: (key, value) => new Schema({ type: 'record', items: value === undefined ? key : value }),
};
