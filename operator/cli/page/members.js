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
  const grouped = members.length > LIMIT;
  const cells = grouped ? groups(members, slow) : members.map((m) => [m, ...memberState(m, slow), describe(m)]);
  const rows = [];
  for (let i = 0; i < cells.length; i += 32) rows.push(cells.slice(i, i + 32));
  return h('div.members', { role: 'img', 'aria-label': `${count(members.length, 'member')} by rank; t shows the table` },
    rows.map((row, i) =>
      h('div', { key: `row ${i}` },
        h('span', {}, String(row[0][0].rank ?? i * 32)),
        row.map(([m, name, letter, title]) => h('i', { key: m.id, class: name, title }, letter)),
      )),
    grouped && h('p.faint', {}, 'One square for 32 ranks, in the state of the worst. t shows each member.'),
  );
}

function groups(members, slow) {
  const cells = [];
  for (let i = 0; i < members.length; i += 32) {
    const part = members.slice(i, i + 32);
    const states = part.map((m) => [m, ...memberState(m, slow)]);
    states.sort((a, b) => ORDER.indexOf(a[1]) - ORDER.indexOf(b[1]));
    const [worst, name, letter] = states[0];
    cells.push([part[0], name, letter, `ranks ${part[0].rank} to ${part.at(-1).rank}; ${describe(worst)}`]);
  }
  return cells;
}

function describe(m) {
  const parts = [`rank ${m.rank}: ${m.id}`, m.node ?? 'no node', m.ready ? 'ready' : m.phase ?? 'no pod', m.arrived === false ? 'not at the barrier' : m.arrived ? 'at the barrier' : ''];
  if (m.step !== null && m.step !== undefined) parts.push(`step ${amount(m.step)}`);
  if (m.behind > 0) parts.push(`${amount(m.behind)} behind`);
  return parts.filter(Boolean).join(', ');
}
