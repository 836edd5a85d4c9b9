// Which workload is where, where are holes, and which rack has failures?

import { amount, clock, count, startsBy, target } from './format.js';
import { createMap, update, zoom, DIM } from './canvas.js';
import { COLOURS, go, matches, state, view } from './state.js';
import { STATES, button, command, empty, evicts, missing, panel, refresh, table, waiting, workloadLink } from './ui.js';
import { h } from './vdom.js';

const LETTERS = { R: 'running', S: 'starting', X: 'restarting', V: 'leaving', r: 'reserved', o: 'other', '.': 'free', u: 'unusable', N: 'good' };
const CODES = Object.keys(LETTERS);
const PATTERN = { X: 'columns', S: 'dots', V: 'lines', r: 'diagonal', u: 'cross', N: 'dots' };
const NONE = 255;
const AGENTS = ['Supervised', 'Agent', 'none'];

let map = null;
let box = [];
let hovered = null;
const cache = { nodes: null, cells: null, key: '', paint: null };

export function page({ map: d }, time) {
  if (!d) return [waiting()];
  const names = Object.keys(d.nodes ?? {});
  if (names.length === 0) {
    return [panel({ name: 'map', title: 'Map', command: 'kubectl get nodes' }, missing('nodes') ?? empty('No node is known. Placements of gangs name none.', 'kubectl get nodes'))];
  }
  const shown = input(d, time);
  return [
    panel(
      { name: 'map', title: 'Map', unit: unit(d, names), command: state.w ? `kubectl lockstep status ${target(state.w)} -o wide` : `kubectl get nodes${d.levels?.length > 0 ? ` -L ${d.levels.join(',')}` : ''}`, grow: true },
      controls(),
      missing('nodes') && h('p.faint', {}, 'Only nodes of your own placements are shown: the right to list nodes is missing.'),
      h('div.mapped', {}, view.table ? nodesTable(d, time) : drawing(shown, d), side(d, shown, time)),
      legend(shown),
    )];
}

/** Zooms the map. 0: the whole map. */
export function zoomBy(factor) {
  if (map) zoom(map, factor);
}

/** Names of the nodes in the box that the reader has drawn. */
export function boxed() {
  return box;
}

function unit(d, names) {
  const levels = (d.levels ?? []).map((key) => key.split('/').at(-1));
  const by = levels.length > 0 ? `${levels.join(' > ')} > node` : 'no topology label: set scheduling.topology, or label nodes with topology.kubernetes.io/zone';
  return `${count(names.length, 'node')}; ${by}; one square is ${d.perNode > 16 ? 'an eighth of a node' : `1 ${d.resource}`}`;
}

function controls() {
  return h('div.controls', {},
    h('span.faint', {}, 'colour'),
    h('span.segments', { role: 'group', 'aria-label': 'Colour (c)' }, COLOURS.map((c) => h('button', { key: c, type: 'button', class: c === state.color ? 'current' : '', 'aria-pressed': String(c === state.color), onclick: () => go({ color: c }) }, c))),
    h('span.segments', { role: 'group', 'aria-label': 'Zoom' }, [['-', 0.8], ['0', 0], ['+', 1.25]].map(([label, by]) => h('button', { key: label, type: 'button', title: `Zoom (${label})`, onclick: () => zoomBy(by) }, label === '0' ? 'all' : label))),
  );
}

/** A canvas with these nodes; also for the answer of what-if. */
export function drawing(shown, d) {
  return h('div.canvas', { key: 'canvas' },
    h('canvas', {
      own: true, tabindex: '0', role: 'img', 'aria-label': `Map of ${count(shown.names.length, 'node')}. t shows the table.`,
      updated: (element) => {
        if (map?.canvas !== element) {
          hovered = null;
          map = createMap(element, handlers(d));
        }
        map.on = handlers(d);
        // The size of a new element is known after it is part of the page.
        requestAnimationFrame(() => update(map, shown));
      },
    }),
    hovered && h('div.tip', { style: { left: `${Math.min(hovered.x + 14, innerWidth - 620)}px`, top: `${hovered.y + 14}px` } }, describe(d, hovered)),
  );
}

function handlers(d) {
  const names = cache.names;
  return {
    pick: (at) => {
      if (!at) return go({ n: '' });
      const workload = workloadAt(d, at);
      box = [];
      return go({ n: names[at[0]], ...(workload ? { w: workload } : {}) });
    },
    box: (indices) => {
      box = indices.map((i) => names[i]);
      refresh();
    },
    hover: (at, x, y) => {
      const same = at?.[0] === hovered?.node && at?.[1] === hovered?.square;
      hovered = at ? { node: at[0], square: at[1], x, y } : null;
      if (!same) refresh();
    },
  };
}

function workloadAt(d, [node, square]) {
  const index = cache.cells.work[node * cache.cells.squares + square];
  return index >= 0 ? d.workloads?.[index]?.name : null;
}

function describe(d, { node, square }) {
  const name = cache.names[node];
  const n = d.nodes[name];
  if (!n) return name;
  const workload = workloadAt(d, [node, square]);
  const letter = CODES[cache.cells.codes[node * cache.cells.squares + square]];
  return [name, (n.path ?? []).join('/'), workload ?? '', STATES[LETTERS[letter]]?.[1] ?? '', n.incidents > 0 ? count(n.incidents, 'incident') : '', n.signal ?? ''].filter(Boolean).join(' · ');
}

/** What the canvas draws. `answer`: `{nodes, victims}` of a what-if. */
export function input(d, time, answer = null) {
  const cells = squaresOf(d);
  const mode = answer ? 'state' : state.color;
  const stamp = mode === 'free-from' ? Math.floor(time / 60_000) : 0;
  const key = [mode, state.f, state.ns, state.w, document.documentElement.dataset.theme, stamp, answer?.key ?? ''].join('|');
  if (cache.paint?.nodes !== d.nodes || cache.paint.workloads !== d.workloads || cache.paint.key !== key) {
    cache.paint = { nodes: d.nodes, workloads: d.workloads, key, serial: (cache.paint?.serial ?? 0) + 1, ...paint(d, cells, mode, time, answer) };
  }
  const at = new Map(cache.names.map((name, i) => [name, i]));
  const of = (list) => list.map((name) => at.get(name)).filter((i) => i !== undefined);
  const palette = cache.paint.palette;
  const outlines = [{ indices: answer ? [] : cache.paint.selected, colour: palette.accent, width: 2 }, { indices: of(box), colour: palette.ink, width: 1.5, dash: [3, 2] }, { indices: of(state.n ? [state.n] : []), colour: palette.ink, width: 2.5 }];
  if (answer) outlines.push({ indices: of(answer.nodes), colour: palette.accent, width: 2 });
  const arrows = (answer ? [] : d.preemptions ?? []).flatMap((p) => p.victims.map((v) => ({ from: of(v.nodes), to: of(p.nodes), width: isSelected(d, p) ? 3.5 : 2 })));
  return { names: cache.names, nodes: d.nodes, squares: cells.squares, layoutKey: cells.layoutKey, paintKey: cache.paint.serial, ...cache.paint, outlines, arrows: arrows.filter((a) => a.from.length > 0 && a.to.length > 0) };
}

/** True if the selected workload is the preemptor or a victim. */
function isSelected(d, p) {
  return state.w !== '' && [p.preemptor, ...p.victims.map((v) => v.workload)].some((number) => d.workloads?.[number]?.name === state.w);
}

/** Squares of all nodes. Only nodes that have changed are filled again. */
function squaresOf(d) {
  const before = cache.nodes;
  if (before === d.nodes) return cache.cells;
  const count = Object.keys(d.nodes).length;
  const squares = d.perNode > 16 ? 8 : Math.max(1, d.perNode);
  const same = before && cache.cells.squares === squares && cache.names.length === count && cache.names.every((name) => d.nodes[name]);
  if (!same) {
    cache.names = Object.keys(d.nodes).sort(new Intl.Collator('en', { numeric: true }).compare);
    cache.cells = { squares, codes: new Uint8Array(count * squares), work: new Int32Array(count * squares), layoutKey: (cache.cells?.layoutKey ?? 0) + 1 };
  }
  cache.names.forEach((name, i) => {
    const node = d.nodes[name];
    if (same && node === before[name]) return;
    if (same && String(node.path) !== String(before[name].path)) cache.cells.layoutKey += 1;
    fill(node, i * squares, squares, d.perNode, cache.cells.codes, cache.cells.work);
  });
  cache.nodes = d.nodes;
  return cache.cells;
}

function fill(node, start, squares, perNode, codes, work) {
  const scale = perNode > 16 ? squares / Math.max(1, node.size) : 1;
  const total = Math.min(squares, Math.round(node.size * scale));
  const rest = node.state === 'cordoned' || node.state === 'silent' ? 'u' : '.';
  codes.fill(NONE, start + total, start + squares).fill(CODES.indexOf(rest), start, start + total);
  work.fill(-1, start, start + squares);
  let at = 0;
  let sum = 0;
  // Victims hold their room until they have exited.
  const use = [...(node.use ?? [])].sort((a, b) => (b[2] === 'V') - (a[2] === 'V'));
  for (const [index, number, letter] of use) {
    sum += number * scale;
    const end = Math.min(total, Math.round(sum));
    codes.fill(Math.max(0, CODES.indexOf(letter)), start + at, start + end);
    work.fill(index ?? -1, start + at, start + end);
    at = Math.max(at, end);
  }
}

function paint(d, cells, mode, time, answer) {
  const { squares, codes, work } = cells;
  const colours = new Uint8Array(codes.length).fill(NONE);
  const letters = new Uint8Array(codes.length);
  const key = colourKey(d, mode, time);
  const amounts = new Array(key.entries.length).fill(0);
  const selected = [];
  const given = answer ? new Set([...answer.nodes, ...answer.victims.flatMap((v) => v.nodes)]) : null;
  const isOther = (name, node) => !matches(fields(d, name, node)) || (state.ns !== '' && !(node.use ?? []).some(([index]) => d.workloads?.[index]?.namespace === state.ns));
  cache.names.forEach((name, i) => {
    const node = d.nodes[name];
    let mine = false;
    for (let s = i * squares; s < (i + 1) * squares; s += 1) {
      if (codes[s] === NONE) continue;
      if (work[s] >= 0 && d.workloads?.[work[s]]?.name === state.w && state.w) mine = true;
      const letter = given?.has(name) ? answered(answer, d.workloads?.[work[s]], CODES[codes[s]]) : CODES[codes[s]];
      colours[s] = key.of(node, letter, work[s]);
      amounts[colours[s]] += key.nodes ? 1 / Math.min(node.size, squares) : d.perNode > 16 ? node.size / squares : 1;
      letters[s] = letter.charCodeAt(0);
    }
    if (mine) selected.push(i);
    const dim = answer ? !given.has(name) : (state.f !== '' || state.ns !== '') && isOther(name, node);
    if (dim) for (let s = i * squares; s < (i + 1) * squares; s += 1) if (colours[s] !== NONE) colours[s] += DIM;
  });
  return { colours, letters, selected, entries: key.entries.map((e, i) => ({ ...e, amount: amounts[i] })), palette: palette(key.entries) };
}

/** Letter of a square on a node of an answer: V for work that is evicted, N for free room of new members. */
function answered(answer, workload, letter) {
  if (letter === '.') return 'N';
  const evicted = answer.victims.some((v) => workload && v.namespace === workload.namespace && v.name.startsWith(`${workload.name.split('/')[1]}-`));
  return evicted ? 'V' : letter;
}

function fields(d, name, node) {
  const uses = (node.use ?? []).map(([index, , letter]) => [d.workloads?.[index], LETTERS[letter]]);
  const used = (node.use ?? []).reduce((sum, [, n]) => sum + n, 0);
  const states = uses.map(([, s]) => s);
  if (used < node.size) states.push(node.state === 'cordoned' || node.state === 'silent' ? 'unusable' : 'free');
  return { node: name, path: (node.path ?? []).join(' '), workload: uses.map(([w]) => w?.name ?? '').join(' '), phase: uses.map(([w]) => w?.phase ?? '').join(' '), state: `${states.join(' ')} ${node.state}`, agent: node.agent, signal: node.signal };
}

/** Entries of the legend, and which of them a square has. `nodes`: the legend counts nodes. */
function colourKey(d, mode, time) {
  const states = CODES.map((c) => ({ colour: LETTERS[c], label: STATES[LETTERS[c]]?.[1] ?? '', letter: c, pattern: PATTERN[c] ?? 'none' }));
  const index = (letter) => Math.max(0, states.findIndex((e) => e.letter === letter));
  const idle = states.filter((e) => 'ru.o'.includes(e.letter));
  const byWorkload = (entries, of) => ({ entries: [...idle, ...entries], of: (_, letter, work) => ('RSXV'.includes(letter) && work >= 0 ? idle.length + of(d.workloads?.[work], work) : Math.max(0, idle.findIndex((e) => e.letter === letter))) });
  if (mode === 'workload') {
    return byWorkload(Array.from({ length: 10 }, (_, i) => ({ colour: `c${i}`, label: i === 0 ? 'one colour each workload' : '', pattern: 'none' })), (_, work) => work % 10);
  }
  if (mode === 'namespace') {
    const names = [...new Set(Object.values(d.workloads ?? {}).map((w) => w.namespace))].sort();
    return byWorkload(names.slice(0, 30).map((n, i) => ({ colour: `c${i % 10}`, label: n, pattern: i < 10 ? 'none' : i < 20 ? 'diagonal' : 'lines' })), (w) => Math.max(0, names.indexOf(w?.namespace)) % 30);
  }
  if (mode === 'priority') {
    const all = [...new Set(Object.values(d.workloads ?? {}).map((w) => w.priority ?? 0))].sort((a, b) => a - b);
    const step = (p) => (all.length < 2 ? 2 : Math.round((all.indexOf(p) / (all.length - 1)) * 5));
    const entries = Array.from({ length: 6 }, (_, i) => ({ colour: `s${i}`, label: all.filter((p) => step(p) === i).join(', '), pattern: 'none' }));
    return byWorkload(entries, (w) => step(w?.priority ?? 0));
  }
  if (mode === 'free-from') return freeFrom(time, states, index);
  if (mode === 'agent') {
    const entries = [['c2', 'Supervised: restarts in place'], ['c1', 'Agent: restarts in place without a supervisor'], ['bad', 'none: members are recreated'], ['free', 'not known']].map(([colour, label], i) => ({ colour, label, pattern: i === 2 ? 'cross' : 'none' }));
    return { nodes: true, entries, of: (n) => (AGENTS.includes(n.agent) ? AGENTS.indexOf(n.agent) : 3) };
  }
  if (mode === 'incidents') {
    const entries = ['none in 24 h', '1', '2 to 3', '4 to 7', '8 and more'].map((label, i) => ({ colour: i === 0 ? 'free' : `s${i + 1}`, label, pattern: i === 4 ? 'cross' : i === 3 ? 'diagonal' : 'none' }));
    return { nodes: true, entries, of: (n) => (n.incidents > 0 ? Math.min(4, 1 + Math.floor(Math.log2(n.incidents))) : 0) };
  }
  return { entries: states, of: (_, letter) => index(letter) };
}

function freeFrom(time, states, index) {
  const limits = [[900_000, 'within 15 min'], [3_600_000, 'within 1 h'], [14_400_000, 'within 4 h'], [86_400_000, 'within 24 h'], [Infinity, 'later']];
  const entries = limits.map(([, label], i) => ({ colour: `s${i + 1}`, label, pattern: 'none' }));
  entries.push({ ...states[index('o')], label: 'unknown', letter: undefined }, states[index('.')], states[index('u')]);
  return {
    entries,
    of: (n, letter) => {
      if (letter === '.') return 6;
      if (letter === 'u') return 7;
      if (!n.until) return 5;
      const left = Date.parse(n.until) - time;
      return limits.findIndex(([limit]) => left < limit);
    },
  };
}

function palette(entries) {
  const style = getComputedStyle(document.body);
  const value = (name) => style.getPropertyValue(`--${name}`).trim();
  const ground = rgb(value('panel'));
  const css = [];
  const packed = [];
  entries.forEach((entry, i) => {
    const first = rgb(value(entry.colour));
    const bright = 0.3 * first[0] + 0.59 * first[1] + 0.11 * first[2] > 135;
    const ink = rgb(value(`on-${entry.colour}`) || (bright ? '#10161c' : '#ffffff'));
    for (const [at, part] of [[i, 1], [i + DIM, 0.22]]) {
      const one = mix(first, ground, part);
      const two = mix(mix(ink, first, 0.45), ground, part);
      css[at] = [text(one), text(two), entry.pattern, text(mix(ink, ground, Math.max(part, 0.4)))];
      packed[at] = [pack(one), pack(two), entry.pattern];
    }
  });
  return { css, packed, ink: value('ink'), faint: value('faint'), box: value('box'), inner: value('panel'), accent: value('accent') };
}

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const mix = (a, b, part) => a.map((x, i) => Math.round(x * part + b[i] * (1 - part)));
const text = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
const pack = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;

function legend({ entries, arrows }) {
  return h('ul.legend', { 'data-panel': 'legend' }, entries.filter((e) => e.label && (e.amount > 0 || e.letter || e.label.startsWith('one colour'))).map((e) => h('li', { key: `${e.colour} ${e.label}` }, h('span.swatch', { class: e.colour, style: { '--of': `var(--${e.colour})`, '--on': `var(--on-${e.colour}, var(--ink))` }, 'aria-hidden': 'true' }, e.letter ?? ''), h('span', {}, e.label), h('b', {}, amount(e.amount) === '0' || e.label.startsWith('one colour') ? '' : amount(e.amount)))), arrows.length > 0 && h('li', { key: 'arrows' }, h('b.arrow', { 'aria-hidden': 'true' }, '→'), 'from victims to the nodes of their preemptor'), h('li.space'), h('li.faint', {}, 'drag moves, wheel zooms, Shift and drag selects nodes'));
}

function side(d, shown, time) {
  return h('aside', { 'data-panel': 'selection', 'aria-label': 'Selection' }, box.length > 0 ? boxCard(d) : null, nodeCard(d, time), workloadCard(d, shown), preemptions(d), !state.n && !state.w && box.length === 0 ? h('p.faint', {}, 'Choose a square for its node and workload.') : null);
}

function boxCard(d) {
  const kinds = {};
  for (const name of box) for (const [, n, letter] of d.nodes[name]?.use ?? []) kinds[LETTERS[letter]] = (kinds[LETTERS[letter]] ?? 0) + n;
  const size = box.reduce((sum, name) => sum + (d.nodes[name]?.size ?? 0), 0);
  return h('div.card', { key: 'box' },
    h('h3', {}, `${count(box.length, 'node')} selected`),
    h('p', {}, `${amount(size)} ${d.resource}: `, Object.entries(kinds).map(([k, n]) => `${STATES[k][1]} ${n}`).join(', ') || 'free'),
    button(`What-if: drain these ${count(box.length, 'node')}`, () => go({ page: 'whatif', d: box.join(',') }), { title: 'w' }),
    button('Clear', () => {
      box = [];
      refresh();
    }));
}

function nodeCard(d, time) {
  const n = d.nodes[state.n];
  if (!state.n) return null;
  if (!n) return h('div.card', { key: 'node' }, h('h3', {}, state.n), h('p', {}, 'This node is not among the nodes that the page reads.'));
  const used = (n.use ?? []).reduce((sum, [, number]) => sum + number, 0);
  return h('div.card', { key: 'node' },
    h('h3', {}, state.n),
    h('p.faint', {}, (n.path ?? []).map((value, i) => `${d.levels?.[i]?.split('/').at(-1) ?? ''} ${value}`).join(', ')),
    h('dl', {}, [['use', `${used} of ${n.size}`], ['state', n.state], ['agent', n.agent ?? 'not known'], ['incidents, 24 h', String(n.incidents ?? 0)], ['free from', n.until ? startsBy(n.until, time).replace('by ', '') || clock(n.until, time) : ''], ['signal', n.signal ?? '']].filter(([, v]) => v !== '').map(([k, v]) => [h('dt', {}, k), h('dd', {}, v)])),
    h('ul', {}, (n.use ?? []).map(([index, number, letter], i) => h('li', { key: String(i) }, h('span.swatch', { class: LETTERS[letter] }, letter), h('b', {}, String(number)), d.workloads?.[index] ? workloadLink(d.workloads[index].name) : STATES[LETTERS[letter]][1]))),
    button('What-if: drain this node', () => go({ page: 'whatif', d: state.n })),
    command(`kubectl describe node ${state.n}`),
  );
}

function workloadCard(d, shown) {
  if (!state.w) return null;
  const w = Object.values(d.workloads ?? {}).find((x) => x.name === state.w);
  const domains = new Set(shown.selected.map((i) => (d.nodes[shown.names[i]].path ?? []).join('/')));
  return h('div.card', { key: 'workload' },
    h('h3', {}, workloadLink(state.w)),
    w ? h('p', {}, `${w.phase ?? ''}, priority ${w.priority ?? 0}`) : h('p', {}, 'This workload holds no node.'),
    shown.selected.length > 0 && h('p', {}, `${count(shown.selected.length, 'node')}${d.levels?.length > 0 ? ` in ${count(domains.size, d.levels.at(-1).split('/').at(-1))}` : ''}, outlined`),
    command(`kubectl lockstep status ${target(state.w)} -o wide`),
  );
}

/** Preemptions of the selected workload; without one, all of them. */
function preemptions(d) {
  const link = (number) => (d.workloads?.[number] ? workloadLink(d.workloads[number].name) : 'a pod, or a gang that you may not read');
  return (d.preemptions ?? []).filter((p) => !state.w || isSelected(d, p)).slice(0, 20).map((p, i) =>
    h('div.card', { key: `preemption ${i}`, 'data-panel': 'preemption' },
      h('h3', {}, 'Preemption in progress'),
      h('p', {}, link(p.preemptor), ' ', evicts(p.victims.length, p)),
      h('ul', {}, p.victims.slice(0, 20).map((v, k) => h('li', { key: String(k) }, h('span.swatch.leaving', { 'aria-hidden': 'true' }, 'V'), link(v.workload), v.nodes.length > 0 && h('span.faint', {}, count(v.nodes.length, 'node'))))),
    ));
}

function nodesTable(d, time) {
  const rows = cache.names.map((id) => ({ id, ...d.nodes[id] })).filter((r) => matches(fields(d, r.id, r)));
  const uses = (r) => (r.use ?? []).map(([index, n, letter]) => `${n} ${letter} ${d.workloads?.[index]?.name ?? ''}`.trim()).join(', ');
  return table({
    name: 'map', height: Math.max(300, innerHeight - 240), rows, open: (r) => go({ n: r.id }), selected: state.n,
    none: empty('No node matches the filter.'),
    columns: [
      { id: 'node', label: 'Node', width: '12%', value: (r) => r.id },
      { id: 'path', label: (d.levels ?? []).map((key) => key.split('/').at(-1)).join('/') || 'Domain', width: '11%', value: (r) => (r.path ?? []).join('/') },
      { id: 'used', label: 'Used', num: true, width: '3.8rem', sort: (r) => (r.use ?? []).reduce((sum, u) => sum + u[1], 0), value: (r) => `${(r.use ?? []).reduce((sum, u) => sum + u[1], 0)}/${r.size}` },
      { id: 'state', label: 'State', width: '4.8rem', value: (r) => r.state },
      { id: 'incidents', label: 'Incidents', num: true, width: '4.8rem', value: (r) => r.incidents ?? 0 },
      { id: 'agent', label: 'Agent', width: '5.6rem', value: (r) => r.agent ?? '' },
      { id: 'until', label: 'Free from', width: '5.2rem', sort: (r) => r.until, value: (r) => clock(r.until, time) },
      { id: 'use', label: 'Use', value: uses },
    ] });
}
