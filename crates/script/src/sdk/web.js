// Globals that a step expects of any JavaScript: timers and text encoding.

import { need } from 'shuntyard:host';

const timers = new Map();
let lastTimer = 0;

function arm(id, delay) {
  need('setTimeout').startTimer(id, Math.max(0, Math.min(Number(delay) || 0, 2 ** 31 - 1)));
}

function start(callback, delay, args, repeat) {
  if (typeof callback !== 'function') throw new TypeError(`a timer calls a function, got ${typeof callback}`);
  lastTimer += 1;
  timers.set(lastTimer, { callback, delay, args, repeat });
  arm(lastTimer, delay);
  return lastTimer;
}

function clear(id) {
  if (timers.delete(id)) need('clearTimeout').stopTimer(id);
}

/** The host says that a timer is due. */
export function fire(id) {
  const timer = timers.get(id);
  if (timer === undefined) return;
  if (timer.repeat) arm(id, timer.delay);
  else timers.delete(id);
  timer.callback(...timer.args);
}

class Encoder {
  get encoding() {
    return 'utf-8';
  }

  encode(text = '') {
    return need('TextEncoder').encodeUtf8(String(text));
  }
}

class Decoder {
  constructor(label = 'utf-8') {
    if (!/^utf-?8$/i.test(label)) throw new RangeError(`TextDecoder knows utf-8 only, got ${label}`);
  }

  get encoding() {
    return 'utf-8';
  }

  decode(bytes) {
    if (bytes === undefined) return '';
    const view = bytes instanceof ArrayBuffer ? new Uint8Array(bytes) : bytes;
    if (!(view instanceof Uint8Array)) throw new TypeError('TextDecoder decodes an ArrayBuffer or a Uint8Array');
    return need('TextDecoder').decodeUtf8(view);
  }
}

/** The globals of this module, by name. */
export const globals = {
  setTimeout: (callback, delay, ...args) => start(callback, delay, args, false),
  setInterval: (callback, delay, ...args) => start(callback, Math.max(1, delay), args, true),
  clearTimeout: clear,
  clearInterval: clear,
  TextEncoder: Encoder,
  TextDecoder: Decoder,
};
