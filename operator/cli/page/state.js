// The address: one selection for all pages, which can be sent to other readers.

export const PAGES = [
  { id: 'overview', title: 'Overview', letter: 'o', docs: ['overview'] },
  { id: 'queue', title: 'Queue', letter: 'q', docs: ['queue'] },
  { id: 'workload', title: 'Workload', letter: 'w', docs: ['workload'] },
  { id: 'map', title: 'Map', letter: 'm', docs: ['map'] },
  { id: 'whatif', title: 'What-if', letter: 'f', docs: ['map'] },
  { id: 'incidents', title: 'Incidents', letter: 'i', docs: ['incidents'] },
  { id: 'health', title: 'Health', letter: 'h', docs: ['health'] },
];

export const COLOURS = ['state', 'workload', 'priority', 'namespace', 'free-from', 'agent', 'incidents'];

/** The address. `w`: workload, `n`: node, `ns`: namespace, `f`: filter, `d`: drained nodes, `i`: incident. */
export const state = { page: 'overview', w: '', n: '', ns: '', f: '', color: 'state', d: '', i: '' };

/** What is no part of the address. */
export const view = { table: false, paused: false, help: false, cursor: {}, sort: {}, scroll: {}, copied: '' };

const FIELDS = ['w', 'n', 'ns', 'f', 'color', 'd', 'i'];
/** Names become parts of commands to copy: an address with anything else is not followed. */
const NAMES = { w: /^[\w.-]+\/[\w.-]+$/, n: /^[\w.:-]+$/, ns: /^[\w.-]+$/, d: /^[\w.:,-]+$/ };
let listener = () => {};

function read() {
  const [, page = '', query = ''] = /^#\/([a-z]*)\??(.*)$/.exec(location.hash) ?? [];
  const parameters = new URLSearchParams(query);
  state.page = PAGES.some((p) => p.id === page) ? page : 'overview';
  for (const field of FIELDS) {
    const value = parameters.get(field) ?? '';
    state[field] = NAMES[field]?.test(value) === false ? '' : value;
  }
  if (!COLOURS.includes(state.color)) state.color = 'state';
}

/** The address with these changes, as a fragment. */
export function address(changes = {}) {
  const next = { ...state, ...changes };
  const parameters = FIELDS.filter((f) => next[f] !== '' && !(f === 'color' && next[f] === 'state'));
  const query = parameters.map((f) => `${f}=${encodeURIComponent(next[f]).replaceAll('%2F', '/').replaceAll('%3A', ':').replaceAll('%2C', ',').replaceAll("'", '%27')}`);
  return `#/${next.page}${query.length > 0 ? `?${query.join('&')}` : ''}`;
}

/** Changes the address. Another page is a new entry of the browser's history. */
export function go(changes) {
  const turned = changes.page !== undefined && changes.page !== state.page;
  history[turned ? 'pushState' : 'replaceState'](null, '', address(changes));
  read();
  listener();
}

/** Follows the address from now on. */
export function followAddress(onChange) {
  listener = onChange;
  addEventListener('popstate', () => {
    read();
    listener();
  });
  read();
}

/** True if all words of the filter occur. A word `key:value` is compared with that field only. */
export function matches(fields) {
  const words = state.f.toLowerCase().split(/\s+/).filter(Boolean);
  return words.every((word) => {
    const colon = word.indexOf(':');
    const key = word.slice(0, colon);
    const name = colon > 0 ? Object.keys(fields).find((f) => f.toLowerCase() === key) : undefined;
    if (name !== undefined) return text(fields[name]).includes(word.slice(colon + 1));
    return Object.values(fields).some((value) => text(value).includes(word));
  });
}

function text(value) {
  return value === null || value === undefined ? '' : String(value).toLowerCase();
}
