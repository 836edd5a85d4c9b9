// The connection to the program: token, stream of documents, requests.

const TOKEN = 'lockstep-token';
const BEAT_LIMIT_MS = 12_000;

/** What the page has: documents by name, and the state of the stream. */
export const store = {
  docs: {},
  /** `connecting`, `open`, `lost` or `denied`. */
  link: 'connecting',
  error: '',
  retryAt: 0,
};

let token = null;
let clockOffset = 0;
let beatAt = 0;
let changed = () => {};
let current = { query: '' };

/** Takes the token out of the address, so that no bookmark or picture holds it. */
export function takeToken() {
  const found = /([#?&])t=([\w-]+)&?/.exec(location.hash);
  if (found) {
    sessionStorage.setItem(TOKEN, found[2]);
    const view = new URLSearchParams(location.hash.slice(1)).get('view');
    history.replaceState(null, '', view ?? location.hash.replace(found[0], found[1]));
  }
  token = sessionStorage.getItem(TOKEN);
  return token !== null;
}

/** Time of the program in milliseconds. */
export function now() {
  return Date.now() + clockOffset;
}

/** True if no beat has arrived within the limit. */
export function isSilent() {
  return store.link === 'lost' || performance.now() - beatAt > BEAT_LIMIT_MS;
}

/** Calls `listener` after each change of `store`. */
export function onChange(listener) {
  changed = listener;
}

/** Opens the stream with this query, unless it is open. */
export function subscribe(query, names) {
  if (query === current.query && (current.abort || current.timer)) return;
  close();
  for (const name of Object.keys(store.docs)) {
    if (name !== 'frame' && !names.includes(name)) delete store.docs[name];
  }
  current = { query, abort: null, attempt: 0, timer: 0 };
  beatAt = performance.now();
  void open();
}

/** Closes the stream, for a hidden tab. */
export function hide() {
  close();
  current = { query: '' };
  store.link = 'connecting';
}

function close() {
  current.abort?.abort();
  clearTimeout(current.timer);
}

async function open() {
  const stream = current;
  stream.abort = new AbortController();
  stream.timer = 0;
  try {
    const response = await send(`stream?${stream.query}`, undefined, stream.abort.signal);
    await read(response.body, stream);
    throw new Error('the program has closed the connection');
  } catch (error) {
    if (stream !== current || stream.abort.signal.aborted) return;
    if (error.status === 401) store.link = 'denied';
    else lost(stream, error);
    changed();
  }
}

async function read(body, stream) {
  const decoder = new TextDecoder();
  const reader = body.getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done || stream !== current) return;
    rest += decoder.decode(value, { stream: true });
    const events = rest.split('\n\n');
    rest = events.pop();
    for (const event of events) take(event);
    if (events.length > 0) {
      stream.attempt = 0;
      changed();
    }
  }
}

function lost(stream, error) {
  const wait = Math.min(1000 * 2 ** stream.attempt, 10_000);
  stream.attempt += 1;
  store.link = 'lost';
  store.error = error instanceof TypeError ? 'no connection to the program' : error.message;
  store.retryAt = performance.now() + wait;
  stream.timer = setTimeout(open, wait);
}

function take(event) {
  const [, name, data] = /^event: (\w+)\ndata: (.*)$/.exec(event) ?? [];
  if (!data) return;
  const value = JSON.parse(data);
  store.link = 'open';
  beatAt = performance.now();
  if (name === 'beat') {
    clockOffset = Date.parse(value.now) - Date.now();
  } else if (name === 'document') {
    store.docs[value.name] = value.value;
  } else if (name === 'patch') {
    store.docs[value.name] = mergePatch(store.docs[value.name], value.patch);
  }
}

/** RFC 7386. Objects that do not change stay the same objects. */
export function mergePatch(target, patch) {
  if (patch === null || typeof patch !== 'object' || Array.isArray(patch)) return patch;
  const merged = target !== null && typeof target === 'object' && !Array.isArray(target) ? { ...target } : {};
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete merged[key];
    else merged[key] = mergePatch(merged[key], value);
  }
  return merged;
}

/** Reads `/api/PATH`, or posts `body` to it. */
export async function request(path, body) {
  return (await send(path, body)).json();
}

/** Sends a request. Errors have the status and the program's text, as `{"error": TEXT}` or as it is. */
async function send(path, body, signal) {
  const headers = { authorization: `Bearer ${token}`, ...(body && { 'content-type': 'application/json' }) };
  const response = await fetch(`/api/${path}`, { method: body ? 'POST' : 'GET', headers, body: body && JSON.stringify(body), signal });
  if (response.ok) return response;
  let text = await response.text();
  try {
    text = JSON.parse(text).error;
  } catch {
    text ||= `the program answered ${response.status}`;
  }
  throw Object.assign(new Error(text), { status: response.status });
}
