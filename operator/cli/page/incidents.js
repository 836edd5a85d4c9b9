// Which failures repeat, on which nodes, and what did they cost?

import { amount, cause, clock, count, duration, gpuHours, target } from './format.js';
import { go, matches, state } from './state.js';
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
      name: 'nodes-by-cause', height: 252,
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

function times(rows) {
  const actions = new Map();
  for (const r of rows) {
    const of = actions.get(r.action) ?? { count: 0, ms: [], lost: 0 };
    of.count += 1;
    if (r.totalMs !== null && r.totalMs !== undefined) of.ms.push(r.totalMs);
    of.lost += r.lostAcceleratorSeconds ?? 0;
    actions.set(r.action, of);
  }
  const at = (ms, part) => (ms.length > 0 ? ms.sort((a, b) => a - b)[Math.min(ms.length - 1, Math.floor(part * ms.length))] : null);
  return panel(
    { name: 'times', title: 'Restarts by action', unit: 'from failure to all members running' },
    table({
      name: 'times', height: 252, rows: [...actions].map(([id, a]) => ({ id, ...a })).sort((a, b) => b.count - a.count),
      none: empty('No incident is recorded.'),
      columns: [
        { id: 'action', label: 'Action', value: (r) => r.id },
        { id: 'count', label: 'Number', num: true, width: '4.8rem', value: (r) => r.count },
        { id: 'p50', label: 'Median', num: true, width: '4.8rem', value: (r) => at(r.ms, 0.5), cell: (r) => duration(at(r.ms, 0.5)) },
        { id: 'p95', label: '95 %', num: true, width: '4.8rem', value: (r) => at(r.ms, 0.95), cell: (r) => duration(at(r.ms, 0.95)) },
        { id: 'lost', label: 'Lost work', num: true, width: '6.4rem', value: (r) => r.lost, cell: (r) => gpuHours(r.lost) },
      ] }),
  );
}

function list(rows, all, now) {
  return panel(
    { name: 'incidents', title: 'Incidents', unit: `${amount(rows.length)}; 20 of each workload are kept`, actions: button('Export CSV', () => save(rows)), command: state.w ? `kubectl lockstep logs ${target(state.w)} --failed` : null, grow: true },
    table({
      name: 'incidents', height: Math.max(260, innerHeight - 500), rows, selected: state.i,
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
        { id: 'lost', label: 'Lost', num: true, width: '5.6rem', value: (r) => r.lostAcceleratorSeconds, cell: (r) => gpuHours(r.lostAcceleratorSeconds) },
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
