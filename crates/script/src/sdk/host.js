// The functions that the host lends to the built-in modules; null while planning.

export let host = null;

export function setHost(functions) {
  host = functions;
}

/** The host, or a clear error where a built-in needs it and there is none. */
export function need(what) {
  if (host === null) {
    throw new Error(`${what} does not exist while the workflow is planned: use it inside a step function`);
  }
  return host;
}
