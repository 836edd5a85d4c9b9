// Which failures repeat, on which nodes, and what did they cost?

import { PHASES, amount, cause, clock, count, duration, gpuHours, target } from './format.js';
import { go, matches, state, view } from './state.js';
import { button, empty, missing, nodeLink, panel, table, waiting, workloadLink } from './ui.js';
import { h } from './vdom.js';

export function page({ incidents: d }, now) {
  if (!d) return [waiting()];
  const all = rowsOf(d);
  const rows = all.filter((r) => (!state.ns || r.workload.startsWith(`${state.ns}/`)) && matches({ workload: r.workload, cause: cause(r.cause), node: r.node, action: r.action, exit: r.exitCode, domain: r.domain, message: r.cause?.message, reason: r.cause?.reason }));
  return [
    h('div.columns.wide', { key: 'columns' }, [matrix(rows), times(rows)]),
    list(rows, all, now),
  ];
}

function rowsOf(d) {
  const rows = Object.entries(d.rows ?? {}).map(([id, r]) => ({ ...r, id }));
  return rows.sort((a, b) => b.at.localeCompare(a.at) || a.id.localeCompare(b.id));
}

function matrix(rows) {
  const nodes = new Map();
  const kinds = new Map();
  for (const r of rows) {
    const kind = r.cause?.kind ?? '';
    kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
    if (!r.node) continue;
    const of = nodes.get(r.node) ?? { total: 0, workloads: new Set() };
    of.total += 1;
    of.workloads.add(r.workload);
    of[kind] = (of[kind] ?? 0) + 1;
    nodes.set(r.node, of);
  }
  const columns = [...kinds.keys()].sort((a, b) => kinds.get(b) - kinds.get(a)).slice(0, 6);
  const most = Math.max(1, ...[...nodes.values()].map((n) => n.total));
  return panel(
    { name: 'nodes-by-cause', title: 'Nodes by cause', unit: nodes.size > 0 ? count(nodes.size, 'node') : null, command: 'kubectl lockstep nodes' },
    table({
      name: 'nodes-by-cause', height: 380,
      rows: [...nodes].map(([id, n]) => ({ id, ...n })).sort((a, b) => b.total - a.total || a.id.localeCompare(b.id)),
      none: empty('No incident names a node.'), open: (r) => go({ f: `node:${r.id}`, n: r.id }), selected: state.n,
      columns: [
        { id: 'node', label: 'Node', width: '16%', value: (r) => r.id, cell: (r) => nodeLink(r.id) },
        ...columns.map((k) => ({ id: k, label: k, num: true, value: (r) => r[k] ?? 0, cell: (r) => (r[k] ? h('span.heat', { style: { '--part': String(r[k] / most) } }, String(r[k])) : '') })),
        { id: 'total', label: 'All', num: true, width: '3.5rem', value: (r) => r.total },
        { id: 'workloads', label: 'Workloads', num: true, width: '6rem', value: (r) => r.workloads.size },
      ] }),
  );
}

/** The value at a part of sorted values. */
function at(ms, part) {
  return ms.length > 0 ? ms[Math.min(ms.length - 1, Math.floor(part * ms.length))] : null;
}

function times(rows) {
  const actions = new Map();
  for (const r of rows) {
    const of = actions.get(r.action) ?? { id: r.action, count: 0, ms: [], lost: 0, phases: {} };
    of.count += 1;
    if (r.totalMs !== null && r.totalMs !== undefined) of.ms.push(r.totalMs);
    of.lost += r.lostAcceleratorSeconds ?? 0;
    // A phase of 0 ms is no part of the incident.
    for (const name of PHASES) if (r.phases?.[name] > 0) (of.phases[name] ??= []).push(r.phases[name]);
    actions.set(r.action, of);
  }
  const sorted = [...actions.values()].sort((a, b) => b.count - a.count);
  for (const a of sorted) for (const ms of [a.ms, ...Object.values(a.phases)]) ms.sort((x, y) => x - y);
  const quantile = (id, label, part) => ({ id, label, num: true, width: '4.4rem', value: (r) => at(r.ms, part), cell: (r) => duration(at(r.ms, part)) });
  const number = { id: 'count', label: 'Number', num: true, width: '4.7rem', value: (r) => r.ms.length };
  const phases = sorted.flatMap((a) => PHASES.filter((name) => a.phases[name]).map((name) => ({ id: `${a.id} ${name}`, action: a.id, name, ms: a.phases[name] })));
  return panel(
    { name: 'times', title: 'Restarts by action', unit: 'from failure to all members running' },
    table({
      name: 'times', height: 140, rows: sorted,
      none: empty('No incident is recorded.'),
      columns: [
        { id: 'action', label: 'Action', value: (r) => r.id },
        { ...number, value: (r) => r.count },
        quantile('p50', 'Median', 0.5),
        quantile('p95', '95 %', 0.95),
        { id: 'lost', label: 'Lost work', num: true, width: '5.6rem', value: (r) => r.lost, cell: (r) => gpuHours(r.lost) },
      ] }),
    phases.length === 0 ? null : !view.table ? spreads(phases) : table({
      name: 'spreads', height: 252, rows: phases,
      columns: [
        { id: 'phase', label: 'Phase', value: (r) => r.id },
        number, quantile('least', 'Least', 0), quantile('q1', '25 %', 0.25), quantile('q2', 'Median', 0.5), quantile('q3', '75 %', 0.75), quantile('most', 'Most', 1),
      ] }),
  );
}

/** Box plots of phases over a logarithmic axis: least, quartiles, median, most. */
function spreads(phases) {
  const decades = Math.max(3, Math.ceil(Math.log10(Math.max(...phases.map((p) => at(p.ms, 1))))));
  const x = (ms) => (Math.log10(Math.max(1, ms)) / decades) * 100;
  const bar = (kind, from, to) => h(`b.${kind}`, { key: kind, style: { left: `${x(from)}%`, width: `${x(to) - x(from)}%` } });
  return h('div.gantt.spreads', { 'data-panel': 'spreads', tabindex: '0', role: 'group', 'aria-label': 'Durations of the phases by action. t shows the table.' },
    h('div.head', {}, h('span', {}, 'phase'), h('div', {}, Array.from({ length: decades + 1 }, (_, i) => h('span.tick', { key: String(i), style: { left: `${(i / decades) * 100}%` } }, duration(10 ** i)))), h('span', {}, 'median')),
    phases.map(({ id, action, name, ms }, i) => {
      const [least, q1, median, q3, most] = [0, 0.25, 0.5, 0.75, 1].map((part) => at(ms, part));
      const title = `${id}: ${duration(least)} to ${duration(most)}, middle half ${duration(q1)} to ${duration(q3)}, median ${duration(median)}`;
      return [
        phases[i - 1]?.action !== action && h('h3', { key: action }, action),
        h('div.lane', { key: id, title, role: 'img', 'aria-label': title }, h('span', {}, name), h('div', {}, bar('range', least, most), bar('box', q1, q3), bar('median', median, median)), h('b', {}, duration(median))),
      ];
    }));
}

function list(rows, all, now) {
  return panel(
    { name: 'incidents', title: 'Incidents', unit: `${amount(rows.length)}; 20 of each workload are kept`, actions: button('Export CSV', () => save(rows)), command: state.w ? `kubectl lockstep logs ${target(state.w)} --failed` : null, grow: true },
    table({
      name: 'incidents', height: Math.max(260, innerHeight - 640), rows, selected: state.i,
      open: (r) => go(state.i === r.id ? { page: 'workload', w: r.workload, i: r.id } : { w: r.workload, i: r.id }),
      none: all.length > 0 ? empty('No incident matches the filter.') : missing('trainingworkloads') ?? empty('No incident is recorded. Incidents of deleted workloads are not kept.'),
      columns: [
        { id: 'at', label: 'Time', width: '7.6rem', sort: (r) => r.at, value: (r) => clock(r.at, now, true) },
        { id: 'workload', label: 'Workload', width: '14%', value: (r) => r.workload, cell: (r) => workloadLink(r.workload) },
        { id: 'cause', label: 'Cause', width: '14%', value: (r) => cause(r.cause) },
        { id: 'node', label: 'Node', width: '8%', value: (r) => r.node, cell: (r) => r.node && nodeLink(r.node) },
        { id: 'action', label: 'Action', width: '7.6rem', value: (r) => r.action },
        { id: 'counted', label: 'Counted', width: '4.8rem', value: (r) => (r.counted ? 'yes' : 'no') },
        { id: 'back', label: 'Back after', num: true, width: '5.4rem', value: (r) => r.totalMs, cell: (r) => (r.recoveredAt ? duration(r.totalMs) : 'never') },
        { id: 'lost', label: 'Lost', num: true, width: '6.6rem', value: (r) => r.lostAcceleratorSeconds, cell: (r) => gpuHours(r.lostAcceleratorSeconds) },
        { id: 'message', label: 'Message', value: (r) => r.cause?.message },
      ] }),
  );
}

const COLUMNS = ['at', 'workload', 'kind', 'exitCode', 'node', 'domain', 'attempt', 'action', 'counted', 'totalMs', 'lostAcceleratorSeconds', 'restartAcceleratorSeconds', 'recoveredAt', 'message'];

function save(rows) {
  const text = (value) => {
    const plain = String(value ?? '');
    // Spreadsheets run a cell that starts like a formula.
    return `"${/^[=+\-@\t\r]/.test(plain) ? `'${plain}` : plain}"`.replaceAll(/(?!^)"(?!$)/g, '""');
  };
  const lines = rows.map((r) => COLUMNS.map((c) => text({ ...r, kind: r.cause?.kind, message: r.cause?.message }[c])).join(','));
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([`${COLUMNS.join(',')}\n${lines.join('\n')}\n`], { type: 'text/csv' }));
  link.download = 'incidents.csv';
  link.click();
  URL.revokeObjectURL(link.href);
}
