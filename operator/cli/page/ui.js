// Parts of all pages: panels, tables, states with letter and colour, empty states.

import { count, gpuHours } from './format.js';
import { store } from './store.js';
import { address, go, state, view } from './state.js';
import { h } from './vdom.js';

/** States of accelerators: letter, name, colour class. */
export const STATES = {
  running: ['R', 'running'],
  starting: ['S', 'starting'],
  restarting: ['X', 'restarting'],
  leaving: ['V', 'leaving'],
  reserved: ['r', 'reserved, idle'],
  free: ['.', 'free'],
  unusable: ['u', 'unusable'],
  other: ['o', 'other pods'],
};

const PHASES = {
  Running: 'running',
  Starting: 'starting',
  Restarting: 'restarting',
  Preempting: 'leaving',
  Pending: 'reserved',
  Stalled: 'bad',
  Failed: 'bad',
  Succeeded: 'good',
  Suspended: 'other',
};

let redraw = () => {};

/** Calls `draw` after a change that is no part of the address. */
export function onRedraw(draw) {
  redraw = draw;
}

export function refresh() {
  redraw();
}

/** Colour class of a phase. */
export function phaseClass(phase) {
  return PHASES[phase] ?? 'other';
}

export function phase(name) {
  return h('span.chip', { class: phaseClass(name) }, name ?? 'not seen');
}

export function swatch(name) {
  return h('span.swatch', { class: name, 'aria-hidden': 'true' }, STATES[name]?.[0] ?? '');
}

/** Copies a text, and marks its button for two seconds. */
export async function copy(text) {
  await navigator.clipboard.writeText(text).catch(() => prompt('Copy this text:', text));
  view.copied = text;
  refresh();
  setTimeout(() => {
    view.copied = '';
    refresh();
  }, 2000);
}

/** A command with a button that copies it. */
export function command(text) {
  const copied = view.copied === text;
  return h('button.command', { type: 'button', title: `Copy: ${text}`, 'aria-label': `Copy the command ${text}`, onclick: () => copy(text), key: `command ${text}` },
    h('code', {}, text),
    h('span.copy', { class: copied ? 'done' : '' }, copied ? 'copied' : 'copy'),
  );
}

/** A panel. `name` is stable; `command` prints what the panel shows. */
export function panel({ name, title, unit, command: verb, actions, grow }, ...body) {
  return h('section.panel', { 'data-panel': name, key: `panel ${name}`, class: grow ? 'grow' : '', 'aria-label': title },
    h('header', {}, h('h2', {}, title), unit && h('span.unit', {}, unit), h('span.space'), actions, verb && command(verb)),
    h('div.body', {}, body),
  );
}

/** A figure with its label, for a list of figures. */
export function figure(label, value, title) {
  return value === '' || value === null || value === undefined ? null : h('div', { key: label, title: title ?? null }, h('dt', {}, label), h('dd', {}, value));
}

/** What a panel shows if it has nothing: a sentence and a command. */
export function empty(sentence, verb) {
  return h('div.empty', {}, h('p', {}, sentence), verb && command(verb));
}

/** The sentence for a right that lacks, or null. */
export function missing(...kinds) {
  const lacks = (store.docs.frame?.missing ?? []).filter((m) => kinds.includes(m.what) && m.verb !== 'watch');
  return lacks.length > 0 ? lacks.map((m) => empty(m.message, m.command)) : null;
}

/** A sentence for a document that has not arrived: with the error if the connection is lost. */
export function waiting() {
  return empty(store.link === 'lost' ? `No data: ${store.error}.` : 'Reading the cluster.');
}

/** A link to a workload, which also selects it. */
export function workloadLink(name) {
  return link(name, { page: 'workload', w: name });
}

export function nodeLink(name) {
  return link(name, { page: 'map', n: name });
}

function link(label, changes) {
  const follow = (event) => {
    event.preventDefault();
    event.stopPropagation();
    go(changes);
  };
  return h('a.link', { href: address(changes), title: label, onclick: follow }, label);
}

export function button(label, onclick, props = {}) {
  return h('button.action', { type: 'button', onclick, ...props }, label);
}

const ROW = 28;
const MARGIN = 12;

/** Tables on the page by name, for the keyboard. */
export const tables = {};

/**
 * A table with fixed columns: `{id, label, width, num, value(row), cell(row)}`. `rows` have a unique `id`. Rows
 * are sorted as given until the reader chooses a column. Of more than 200 rows only the visible ones exist.
 */
export function table({ name, columns, rows, open, selected, height = 420, none }) {
  if (rows.length === 0 && none) return none;
  const order = view.sort[name];
  const sorted = order ? sort(rows, columns.find((c) => c.id === order.column), order.down) : rows;
  tables[name] = { rows: sorted, open };
  const whole = sorted.length <= 200;
  const top = whole ? 0 : Math.max(0, Math.floor((view.scroll[name] ?? 0) / ROW) - MARGIN);
  const shown = whole ? sorted : sorted.slice(top, top + Math.ceil(height / ROW) + 2 * MARGIN);
  const below = sorted.length - top - shown.length;
  const onscroll = (event) => {
    view.scroll[name] = event.target.scrollTop;
    refresh();
  };
  return h('div.table', { key: `table ${name}`, 'data-table': name, style: { 'max-height': `${height}px` }, onscroll: whole ? null : onscroll },
    h('table', { 'aria-rowcount': sorted.length },
      h('colgroup', {}, columns.map((c) => h('col', { style: c.width ? { width: c.width } : {} }))),
      h('thead', {}, h('tr', {}, columns.map((c) => heading(name, c, order)))),
      h('tbody', {},
        top > 0 && h('tr', { key: 'above', style: { height: `${top * ROW}px` } }),
        shown.map((row) => line(name, columns, row, open, selected)),
        below > 0 && h('tr', { key: 'below', style: { height: `${below * ROW}px` } }),
      )));
}

function heading(name, column, order) {
  const current = order?.column === column.id;
  const next = current ? (order.down ? undefined : { column: column.id, down: true }) : { column: column.id, down: false };
  const choose = (event) => {
    if (event.type === 'keydown' && event.key !== 'Enter') return;
    event.stopPropagation();
    view.sort[name] = next;
    refresh();
  };
  const sorted = current ? (order.down ? 'descending' : 'ascending') : null;
  return h('th', { class: column.num ? 'num' : '', title: column.title ?? column.label, tabindex: '0', 'aria-sort': sorted, onclick: choose, onkeydown: choose },
    column.label,
    current ? h('span.order', {}, order.down ? ' ↓' : ' ↑') : null,
  );
}

function line(name, columns, row, open, selected) {
  const classes = [open ? 'opens' : '', selected === row.id ? 'selected' : '', view.cursor[name] === row.id ? 'cursor' : ''];
  const choose = () => {
    view.cursor[name] = row.id;
    open(row);
  };
  return h('tr', { key: `row ${row.id}`, 'data-row': row.id, class: classes.filter(Boolean).join(' '), 'aria-selected': selected === row.id ? 'true' : null, onclick: open ? choose : null },
    columns.map((c) => {
      const value = c.value(row) ?? '';
      return h('td', { class: c.num ? 'num' : '', title: value === '' ? null : String(value) }, c.cell ? c.cell(row) : value);
    }));
}

function sort(rows, column, down) {
  if (!column) return rows;
  const key = column.sort ?? column.value;
  const sign = down ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [key(a) ?? '', key(b) ?? ''];
    const order = typeof x === 'number' && typeof y === 'number' ? x - y : String(x).localeCompare(String(y), 'en', { numeric: true });
    return order === 0 ? String(a.id).localeCompare(String(b.id)) : sign * order;
  });
}

/** Moves the cursor of the first table of the page, and keeps it visible. */
export function moveCursor(by) {
  const name = document.querySelector('[data-table]')?.dataset.table;
  const rows = tables[name]?.rows ?? [];
  if (rows.length === 0) return;
  const at = rows.findIndex((r) => r.id === view.cursor[name]);
  const next = Math.min(rows.length - 1, Math.max(0, at + by));
  view.cursor[name] = rows[next].id;
  const scroller = document.querySelector('[data-table]');
  const top = next * ROW;
  if (top < scroller.scrollTop) scroller.scrollTop = top;
  if (top + 3 * ROW > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = top + 3 * ROW - scroller.clientHeight;
  refresh();
}

/** Selects the incident before or after the selected one, in the order of the page. */
export function moveIncident(by) {
  const rows = (tables.incidents ?? tables.restarts)?.rows ?? [];
  const at = rows.findIndex((r) => r.id === state.i);
  const next = rows[at < 0 && by < 0 ? rows.length - 1 : Math.min(rows.length - 1, Math.max(0, at + by))];
  if (next) go({ i: next.id, w: next.workload ?? state.w });
}

/** Opens the row under the cursor. */
export function openCursor() {
  const name = document.querySelector('[data-table]')?.dataset.table;
  const row = tables[name]?.rows.find((r) => r.id === view.cursor[name]);
  if (row) tables[name].open?.(row);
}

/** Flags of a verb for the namespaces that the page shows. */
export function scope() {
  const namespace = state.ns || store.docs.frame?.namespace;
  return namespace ? ` -n ${namespace}` : '';
}

/** What a preemption costs, and how good the choice of its victims is. */
export function evicts(victims, { cost, atLeast, proven, nextBest }) {
  const known = atLeast > 0 && 2 * atLeast >= cost ? `no set costs less than ${gpuHours(atLeast)}` : 'a cheaper set may exist';
  const bound = proven ? 'no cheaper set frees enough capacity' : known;
  return `evicts ${count(victims, 'unit')} for ${gpuHours(cost)}; ${bound}.${nextBest ? ` Next best: ${gpuHours(nextBest.cost)}.` : ''}`;
}

/** Nodes of a workload with the members on each; how many of them are ready, if that is known. */
export function membersByNode(name, rows, domain) {
  const ready = { id: 'ready', label: 'Ready', num: true, width: '5rem', value: (r) => [r.ready, r.count].filter(Number.isFinite).join('/') };
  return table({
    name, height: 250, rows, none: empty('No node is assigned.'),
    columns: [
      { id: 'node', label: 'Node', width: '30%', value: (r) => r.node, cell: (r) => (r.node ? nodeLink(r.node) : 'none') },
      { id: 'domain', label: domain || 'Domain', width: '24%', value: (r) => r.domain },
      ...(rows[0]?.count === undefined ? [] : [ready]),
      { id: 'members', label: 'Members', value: (r) => r.members.join(', ') },
    ] });
}

/** Units that a preemption evicts, with their costs. */
export function victims(name, units) {
  return table({
    name, height: 220, rows: units.map((v) => ({ ...v, id: `${v.kind} ${v.namespace}/${v.name}` })),
    columns: [
      { id: 'victim', label: 'Victim', value: (r) => r.id },
      { id: 'priority', label: 'Priority', num: true, width: '5rem', value: (r) => r.priority },
      { id: 'pods', label: 'Pods', num: true, width: '4rem', value: (r) => r.pods },
      { id: 'cost', label: 'Cost', num: true, width: '7rem', value: (r) => r.cost, cell: (r) => gpuHours(r.cost) },
      { id: 'lost', label: 'Of it lost work', num: true, width: '8rem', value: (r) => r.lostWork, cell: (r) => gpuHours(r.lostWork) },
    ] });
}
