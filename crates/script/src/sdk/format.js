// How values look in a log.

const DEPTH_MAX = 4;
const ITEMS_MAX = 100;

let mapStack = (text) => text;

/** Gives the function that turns the engine's positions into those of the source. */
export function setStackMapper(map) {
  mapStack = map;
}

/** Message and stack of anything that was thrown. */
export function errorText(error) {
  if (!(error instanceof Error)) return `thrown: ${show(error, 0)}`;
  const stack = typeof error.stack === 'string' ? mapStack(error.stack) : '';
  const cause = error.cause === undefined ? '' : `\ncaused by: ${errorText(error.cause)}`;
  return `${error.name}: ${error.message}\n${stack}`.trimEnd() + cause;
}

function show(value, depth) {
  switch (typeof value) {
    case 'string':
      return depth === 0 ? value : JSON.stringify(value);
    case 'bigint':
      return `${value}n`;
    case 'function':
      return `[function ${value.name || 'anonymous'}]`;
    case 'object':
      return value === null ? 'null' : showObject(value, depth);
    default:
      return String(value);
  }
}

function showObject(value, depth) {
  if (value instanceof Error) return errorText(value);
  if (value instanceof Date) return Number.isNaN(value.getTime()) ? 'Invalid Date' : value.toISOString();
  if (value instanceof RegExp) return String(value);
  if (value instanceof Promise) return 'Promise {}';
  if (depth >= DEPTH_MAX) return Array.isArray(value) ? '[…]' : '{…}';
  if (value instanceof Map) return `Map ${show([...value.entries()], depth)}`;
  if (value instanceof Set) return `Set ${show([...value.values()], depth)}`;
  const list = Array.isArray(value);
  const parts = list
    ? value.slice(0, ITEMS_MAX).map((item) => show(item, depth + 1))
    : Object.keys(value)
        .slice(0, ITEMS_MAX)
        .map((key) => `${key}: ${show(value[key], depth + 1)}`);
  const size = list ? value.length : Object.keys(value).length;
  if (size > ITEMS_MAX) parts.push(`… ${size - ITEMS_MAX} more`);
  const inner = parts.join(', ');
  if (list) return `[${inner}]`;
  return inner === '' ? '{}' : `{ ${inner} }`;
}

/** The line that `console.log(...values)` prints. */
export function format(values) {
  return values.map((value) => show(value, 0)).join(' ');
}

/** A `console` that prints through `print(level, text)`. */
export function makeConsole(print) {
  const at =
    (level) =>
    (...values) =>
      print(level, format(values));
  return {
    log: at('info'),
    info: at('info'),
    warn: at('warn'),
    error: at('error'),
    debug: at('debug'),
    trace: at('debug'),
  };
}
