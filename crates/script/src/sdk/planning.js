// The world while a workflow is planned: one fixed instant, seeded chance, no input or output.

import { makeConsole, setStackMapper } from 'shuntyard:format';

const { construct, defineProperty, deleteProperty } = Reflect;

function set(name, value) {
  defineProperty(globalThis, name, { value, writable: true, configurable: true });
}

function fixedDate(now) {
  const RealDate = Date;
  function PlanDate(...args) {
    if (new.target === undefined) return new RealDate(now).toString();
    return construct(RealDate, args.length === 0 ? [now] : args, new.target);
  }
  PlanDate.prototype = RealDate.prototype;
  defineProperty(RealDate.prototype, 'constructor', { value: PlanDate, writable: true, configurable: true });
  PlanDate.now = () => now;
  PlanDate.parse = RealDate.parse;
  PlanDate.UTC = RealDate.UTC;
  return PlanDate;
}

// sfc32: small, fast, and the same everywhere.
function seededRandom(a, b, c, d) {
  const next = () => {
    const t = (((a + b) | 0) + d) | 0;
    d = (d + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = ((c << 21) | (c >>> 11)) + t;
    c |= 0;
    return (t >>> 0) / 4294967296;
  };
  for (let i = 0; i < 15; i += 1) next();
  return next;
}

function onlyInSteps(name) {
  return () => {
    throw new Error(`${name} does not exist while the workflow is planned: use it inside a step function`);
  };
}

/** Called once, before the first workflow file. */
export function install(now, seed, print, mapStack) {
  setStackMapper(mapStack);
  set('Date', fixedDate(now));
  Math.random = seededRandom(seed[0], seed[1], seed[2], seed[3]);
  deleteProperty(globalThis, 'performance');
  deleteProperty(globalThis, 'WeakRef');
  deleteProperty(globalThis, 'FinalizationRegistry');
  set('console', makeConsole(print));
  for (const name of ['setTimeout', 'setInterval', 'clearTimeout', 'clearInterval', 'fetch']) {
    set(name, onlyInSteps(name));
  }
  set('process', {
    platform: 'planning',
    get env() {
      return onlyInSteps('process.env')();
    },
    cwd: onlyInSteps('process.cwd'),
  });
}
