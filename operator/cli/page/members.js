// The members of a workload by rank, one square each, 32 in a row.

import { amount, count } from './format.js';
import { STATES } from './ui.js';
import { h } from './vdom.js';

const LIMIT = 1024;

/** State of a member, as on the map. */
function memberState(m, slow) {
  if (m.phase === 'Failed') return ['unusable', 'F'];
  if (m.arrived === false) return ['restarting', 'X'];
  if (m.arrived) return ['starting', 'b'];
  if (m.ready) return slow.has(m.id) ? ['reserved', 's'] : ['running', ''];
  if (!m.node) return ['free', '.'];
  return m.phase === 'Running' ? ['restarting', 'X'] : ['starting', STATES.starting[0]];
}

const ORDER = ['unusable', 'restarting', 'reserved', 'starting', 'free', 'running'];

/** Squares by rank. Above 1,024 members, one square for each 32 ranks, in the state of the worst. */
export function memberGrid(members, slow) {
  const each = members.length > LIMIT ? 32 : 1;
  const squares = chunks(members, each).map((part) => square(part, slow));
  return h('div.members', { role: 'img', 'aria-label': `${count(members.length, 'member')} by rank; t shows the table` },
    chunks(squares, 32).map((row, i) =>
      h('div', { key: `row ${i}` }, h('span', {}, String(row[0].rank ?? i * 32)), row.map(({ id, name, letter, title }) => h('i', { key: id, class: name, title }, letter)))),
    each > 1 && h('p.faint', {}, 'One square for 32 ranks, in the state of the worst. t shows each member.'),
  );
}

function chunks(list, size) {
  return Array.from({ length: Math.ceil(list.length / size) }, (_, i) => list.slice(i * size, (i + 1) * size));
}

function square(part, slow) {
  const states = part.map((m) => [m, ...memberState(m, slow)]);
  states.sort((a, b) => ORDER.indexOf(a[1]) - ORDER.indexOf(b[1]));
  const [worst, name, letter] = states[0];
  const [{ id, rank }, last] = [part[0], part.at(-1)];
  return { id, rank, name, letter, title: (part.length > 1 ? `ranks ${rank} to ${last.rank}; ` : '') + describe(worst) };
}

function describe(m) {
  const parts = [`rank ${m.rank}: ${m.id}`, m.node ?? 'no node', m.ready ? 'ready' : m.phase ?? 'no pod', m.arrived === false ? 'not at the barrier' : m.arrived ? 'at the barrier' : ''];
  if (m.step !== null && m.step !== undefined) parts.push(`step ${amount(m.step)}`);
  if (m.behind > 0) parts.push(`${amount(m.behind)} behind`);
  return parts.filter(Boolean).join(', ');
}
