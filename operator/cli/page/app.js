// The frame of all pages: who reads what, how fresh it is, navigation and keys.

import { age, amount, clock, count, target } from './format.js';
import { COLOURS, PAGES, address, followAddress, go, state, view } from './state.js';
import { hide, isSilent, now, onChange, store, subscribe, takeToken } from './store.js';
import { command, copy, empty, moveCursor, moveIncident, onRedraw, openCursor, scope, tables } from './ui.js';
import { h, render } from './vdom.js';
import * as overview from './overview.js';
import * as queue from './queue.js';
import * as workload from './workload.js';
import * as map from './map.js';
import * as whatif from './whatif.js';
import * as incidents from './incidents.js';
import * as health from './health.js';

const VIEWS = { overview, queue, workload, map, whatif, incidents, health };
const KEYS = [
  ['1 to 7, g and a letter', 'pages'],
  ['/ or f', 'filter: words, or phase:Pending reason:ExceedsCluster'],
  ['j, k, Enter', 'rows: next, previous, open'],
  ['Esc', 'back: close, clear the filter, clear the selection'],
  ['n', 'namespace'],
  ['t', 'tables instead of pictures'],
  ['c', 'map: next colour'],
  ['+ - 0, drag, wheel', 'map: zoom and move; Shift and drag selects nodes'],
  ['[ and ]', 'previous and next incident'],
  ['w', 'what-if with the selected workload or nodes'],
  ['l', 'copy the command for the log of the member that failed first'],
  ['y', 'copy the command of the first panel'],
  ['space', 'pause and resume'],
];

const root = document.getElementById('app');
let shown = store.docs;
let queued = false;
let prefix = false;
let leaderless = Infinity;

function draw() {
  queued = false;
  if (!view.paused) shown = { ...store.docs };
  for (const name of Object.keys(tables)) delete tables[name];
  document.body.classList.toggle('stale', isStale());
  try {
    render(root, store.link === 'denied' ? [denied()] : frame(shown));
  } catch (error) {
    root.replaceChildren(`This page has a fault: ${error.message}. Reload it.`);
  }
}

function schedule() {
  if (queued) return;
  queued = true;
  // A tab in the background has no animation frames.
  if (document.hidden) setTimeout(draw, 0);
  else requestAnimationFrame(draw);
}

function isStale() {
  return isSilent() || store.docs.frame?.freshness?.state === 'stale';
}

/** Opens the stream of the page that the address names. */
function follow() {
  const page = PAGES.find((p) => p.id === state.page);
  const parameters = new URLSearchParams({ view: page.id });
  if (page.id === 'workload' && state.w) parameters.set('workload', state.w);
  if (state.ns) parameters.set('namespace', state.ns);
  if (!document.hidden) subscribe(parameters.toString(), page.docs);
  document.title = `${state.w && page.id === 'workload' ? state.w : page.title} · Lockstep`;
  schedule();
}

function denied() {
  return h('main.alone', { key: 'denied' },
    h('h1', {}, 'Lockstep'),
    empty('The token in the address is missing or no longer valid. Each start of the program has its own token. Start it again and open the address that it prints.', 'kubectl lockstep dashboard --open'));
}

function frame({ frame: f, ...docs }) {
  return [
    top(f),
    navigation(f),
    h('main', { key: 'main', id: 'main', tabindex: '-1' },
      banners(f),
      f?.namespace && f.nodes != null && h('p.attention', { key: 'scope' }, `Only namespace ${f.namespace} is read: work of other namespaces counts as free.`),
      f?.notInstalled ? empty(f.notInstalled, 'kubectl lockstep doctor') : h('div.page', { key: state.page, class: state.page }, VIEWS[state.page].page(docs, now())),
    ),
    bottom(f),
    view.help && help(),
  ].filter(Boolean);
}

function top(f) {
  return h('header.top', { key: 'top' },
    h('a.brand', { href: address({ page: 'overview' }) }, h('i.logo', { 'aria-hidden': 'true' }, h('b'), h('b'), h('b'), h('b')), 'Lockstep'),
    h('span.context', { title: f ? `server ${f.server}` : '' }, f ? `${f.context}${f.user ? ` / ${f.user}` : ''}` : ''),
    h('label.field', {},
      'namespace',
      h('select', { id: 'namespace', value: state.ns, onchange: chooseNamespace, disabled: Boolean(f?.namespace) },
        h('option', { value: '' }, f?.namespace ?? 'all'),
        (f?.namespace ? [] : f?.namespaces ?? []).map((ns) => h('option', { value: ns, key: ns }, ns)),
      )),
    h('input.search', {
      id: 'filter', type: 'search', placeholder: 'Filter: name, node, rank, reason, phase:Pending', 'aria-label': 'Filter',
      spellcheck: 'false', autocomplete: 'off', value: state.f, oninput: (e) => go({ f: e.target.value }),
    }),
    h('span.space'),
    freshness(f),
    h('time.clock', { title: 'UTC' }, `${clock(new Date(now()).toISOString(), now(), true)}Z`),
    h('button.icon', { type: 'button', title: 'Light or dark', 'aria-label': 'Light or dark', onclick: turnTheme }, '◐'),
    h('button.icon', { type: 'button', title: 'Keys (?)', 'aria-label': 'Keys', onclick: () => toggle('help') }, '?'),
  );
}

function chooseNamespace(event) {
  event.target.blur();
  go({ ns: event.target.value });
}

function freshness(f) {
  const [kind, text] = freshnessText(f);
  return h('span.fresh', { class: kind, id: 'freshness', role: 'status', title: f?.freshness?.message ?? '' }, h('i', { 'aria-hidden': 'true' }), text);
}

function freshnessText(f) {
  if (view.paused) return ['paused', 'paused (space resumes)'];
  if (store.link === 'connecting') return ['polling', 'connecting'];
  if (store.link === 'lost') {
    return ['stale', `stale: ${store.error}; next try in ${Math.max(0, Math.ceil((store.retryAt - performance.now()) / 1000))} s`];
  }
  if (isSilent()) return ['stale', 'stale: the program does not answer'];
  const { state: kind, since, message } = f?.freshness ?? {};
  const of = since ? clock(since, now(), true) : '';
  if (kind === 'stale') return ['stale', `stale ${age(since, now())}${message ? `: ${message}` : ''}, data of ${of}`];
  if (kind === 'snapshot') return ['snapshot', `snapshot of ${clock(since, now())}, ${age(since, now())} old`];
  if (kind === 'polling') return ['polling', `polling, read ${age(since, now())} ago`];
  return ['live', 'live'];
}

function banners(f) {
  if (!f) return null;
  // The program reads the lease after it has sent its first documents.
  leaderless = f.leader ? Infinity : Math.min(leaderless, now());
  const unknown = f.freshness?.state === 'snapshot' || f.notInstalled || (f.missing ?? []).some((m) => m.what === 'leases');
  if (unknown || !(f.leader?.old || now() - leaderless > 5000)) return null;
  const at = f.leader?.renewedAt ? clock(f.leader.renewedAt, now()) : '';
  return h('div.banner', { role: 'alert', 'data-panel': 'no-leader' }, `No manager leads${at && ` since ${at}`}. Nothing is placed or restarted.${at && ` Statuses are of ${at}.`}`, command('kubectl lockstep doctor'));
}

function navigation(f) {
  return h('nav', { key: 'nav', 'aria-label': 'Pages' },
    PAGES.map((p, i) =>
      h('a', { key: p.id, href: address({ page: p.id }), class: p.id === state.page ? 'current' : '', 'aria-current': p.id === state.page ? 'page' : null, title: `${i + 1}, or g ${p.letter}` },
        h('kbd', {}, String(i + 1)),
        p.title,
        p.id === 'overview' && f?.needs > 0 ? h('span.badge', { title: 'workloads and nodes that need a change' }, String(f.needs)) : null,
      )),
    h('span.space'),
    state.w && h('div.selected', { key: 'selected' }, h('small', {}, 'selected'), h('a.link', { href: address({ page: 'workload' }), title: state.w }, state.w), h('button.icon', { type: 'button', title: 'Clear the selection (Esc)', 'aria-label': 'Clear the selection', onclick: () => go({ w: '' }) }, '×')),
  );
}

function bottom(f) {
  if (!f) return h('footer.bottom', { key: 'bottom' });
  const lacks = f.missing ?? [];
  return h('footer.bottom', { key: 'bottom' },
    f.leader && h('span', {}, f.leader.old ? 'no manager leads' : `manager leads: ${f.leader.holder}, renewed ${age(f.leader.renewedAt, now())} ago`),
    h('span', {}, count(f.workloads, 'workload'), f.nodes !== null && f.nodes !== undefined ? `, ${count(f.nodes, 'node')}` : ''),
    h('span', { class: f.needs > 0 ? 'attention' : '' }, f.needs === 1 ? '1 needs a change' : `${amount(f.needs)} need a change`),
    f.unreadable?.length > 0 && h('a.attention', { href: address({ page: 'health' }) }, count(f.unreadable.length, 'unreadable object')),
    lacks.length > 0 && h('a', { href: address({ page: 'health' }), title: lacks.map((m) => m.message).join('\n') }, `missing rights: ${[...new Set(lacks.map((m) => m.what))].join(', ')}`),
    h('span.space'),
    h('span', {}, 'read-only'),
    h('button.plain', { type: 'button', title: 'Copies the command that opens this view for another reader', onclick: () => copy(`kubectl lockstep dashboard${scope()} --view '${address()}'`) }, view.copied.startsWith('kubectl lockstep dashboard') ? 'copied' : 'share this view'),
    h('span', {}, f.version),
  );
}

function help() {
  return h('div.dialog', { key: 'help', role: 'dialog', 'aria-label': 'Keys', onclick: () => toggle('help') },
    h('div', {}, h('h2', {}, 'Keys'), h('dl', {}, KEYS.map(([key, what]) => [h('dt', {}, key), h('dd', {}, what)]))),
  );
}

function toggle(name) {
  view[name] = !view[name];
  schedule();
}

/** Light or dark: as the reader has chosen, else as the system. */
function setTheme() {
  const system = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
  document.documentElement.dataset.theme = localStorage.getItem('lockstep-theme') ?? system;
  schedule();
}

function turnTheme() {
  localStorage.setItem('lockstep-theme', document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark');
  setTheme();
}

function back() {
  if (view.help) view.help = false;
  else if (document.activeElement?.id === 'filter' || document.activeElement?.tagName === 'TEXTAREA') document.activeElement.blur();
  else if (state.f) go({ f: '' });
  else if (state.n || state.i) go({ n: '', i: '' });
  else if (state.w) go({ w: '' });
  else history.back();
  schedule();
}

function whatIf() {
  if (state.page === 'map' && map.boxed().length > 0) go({ page: 'whatif', d: map.boxed().join(',') });
  else go({ page: 'whatif' });
}

const ACTIONS = {
  '/': () => document.getElementById('filter').focus(),
  f: () => document.getElementById('filter').focus(),
  n: () => document.getElementById('namespace').focus(),
  j: () => moveCursor(1),
  k: () => moveCursor(-1),
  Enter: openCursor,
  t: () => toggle('table'),
  c: () => go({ color: COLOURS[(COLOURS.indexOf(state.color) + 1) % COLOURS.length] }),
  '+': () => map.zoomBy(1.25),
  '-': () => map.zoomBy(0.8),
  0: () => map.zoomBy(0),
  '[': () => moveIncident(-1),
  ']': () => moveIncident(1),
  ' ': () => toggle('paused'),
  y: () => copy(document.querySelector('main .command code')?.textContent ?? ''),
  l: () => state.w && copy(`kubectl lockstep logs ${target(state.w)} --failed`),
  w: whatIf,
  '?': () => toggle('help'),
  Escape: back,
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = ['INPUT', 'SELECT', 'TEXTAREA'].includes(event.target.tagName);
  if (typing && event.key !== 'Escape') return;
  if (['BUTTON', 'A'].includes(event.target.tagName) && [' ', 'Enter'].includes(event.key)) return;
  const prefixed = prefix;
  prefix = event.key === 'g' && !prefixed;
  const page = prefixed ? PAGES.find((p) => p.letter === event.key) : PAGES[Number(event.key) - 1];
  const action = page ? () => go({ page: page.id }) : ACTIONS[event.key];
  if (!action || prefix) return;
  event.preventDefault();
  action();
}

function start() {
  setTheme();
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', setTheme);
  const known = takeToken();
  onChange(schedule);
  onRedraw(schedule);
  followAddress(follow);
  addEventListener('keydown', onKey);
  if (!known) {
    store.link = 'denied';
    schedule();
    return;
  }
  document.addEventListener('visibilitychange', () => (document.hidden ? hide() : follow()));
  follow();
  setInterval(schedule, 1000);
}

start();
