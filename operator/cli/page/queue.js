// When does a gang start, and which gangs are before it?

import { age, clock, percent, startsBy } from './format.js';
import { go, matches, state, view } from './state.js';
import { empty, missing, panel, scope, table, waiting, workloadLink } from './ui.js';
import { h } from './vdom.js';

export function page({ queue: q }, now) {
  if (!q) return [waiting()];
  const rows = Object.entries(q.rows ?? {}).map(([id, g]) => ({ ...g, id, name: `${g.namespace}/${g.workload}` }));
  rows.sort(byPlace);
  const selected = rows.find((r) => r.name === state.w) ?? rows.find((r) => q.reservations?.[r.id]);
  return [list(q, rows, now), h('div.columns.wide', { key: 'columns' }, timeline(q, selected, now), shares(q))];
}

function byPlace(a, b) {
  const place = (r) => r.position ?? Infinity;
  if (place(a) !== place(b)) return place(a) - place(b);
  return b.priority - a.priority || String(a.queuedAt ?? '').localeCompare(b.queuedAt ?? '') || a.id.localeCompare(b.id);
}

function list(q, rows, now) {
  const shown = rows.filter((r) => (!state.ns || r.namespace === state.ns) && matches({ name: r.name, workload: r.workload, namespace: r.namespace, state: r.state, reason: r.reason, message: r.message, needs: r.needs, priority: r.priority }));
  return panel(
    { name: 'queue', title: 'Waiting gangs', unit: String(shown.length), command: `kubectl lockstep queue${scope()}`, grow: true },
    q.onlyNamespace && (missing('nodes', 'podgroups') ?? empty(`Only namespace ${q.onlyNamespace} is read. Places are those that the manager has written to the gangs.`)),
    table({
      name: 'queue', height: Math.max(220, innerHeight - 520), rows: shown,
      open: (r) => go(state.w === r.name ? { page: 'workload', w: r.name } : { w: r.name }), selected: rows.find((r) => r.name === state.w)?.id,
      none: rows.length > 0 ? empty('No gang matches the filter.') : empty('No gang waits.', `kubectl lockstep queue${scope()}`),
      columns: [
        { id: 'place', label: '#', num: true, width: '3rem', title: 'Place in the queue', sort: (r) => r.position ?? 1e9, value: (r) => r.position ?? '-' },
        { id: 'workload', label: 'Workload', width: '19%', value: (r) => r.name, cell: (r) => workloadLink(r.name) },
        { id: 'priority', label: 'Priority', num: true, width: '5rem', value: (r) => r.priority },
        { id: 'share', label: 'Share', num: true, width: '5rem', title: 'Part of the cluster that the namespace has, divided by its weight', value: (r) => r.share ?? -1, cell: (r) => percent(r.share) || (q.onlyNamespace == null ? 'none' : '') },
        { id: 'needs', label: 'Needs', width: '7.5rem', value: (r) => r.needs, cell: (r) => (r.needs ?? '').replace(/ \S+\/\S+$/, '') },
        { id: 'state', label: 'State', width: '5.8rem', value: (r) => r.state.toLowerCase() },
        { id: 'since', label: 'Queued', num: true, width: '4.8rem', sort: (r) => r.queuedAt, value: (r) => age(r.queuedAt, now) },
        { id: 'start', label: 'Start', width: '7.8rem', title: 'Latest start', sort: (r) => r.startsBy ?? '9', value: (r) => startText(r, now) },
        { id: 'message', label: 'Why', value: (r) => r.message || r.reason },
      ] }),
  );
}

function startText(row, now) {
  return startsBy(row.startsBy, now) || (row.ahead ? `after ${row.ahead}` : '');
}

function timeline(q, row, now) {
  const verb = `kubectl lockstep queue${scope()} -o wide`;
  const r = row && q.reservations?.[row.id];
  const title = row ? `Reserved nodes of ${row.name}` : 'Reserved nodes';
  if (!r) {
    const sentence = row ? `No node is reserved for ${row.name}.` : 'No gang has reserved nodes.';
    return panel({ name: 'reservation', title, command: verb }, empty(row?.message ? `${sentence} ${row.message}` : sentence));
  }
  const nodes = Object.entries(r.nodes).map(([id, n]) => ({ id, ...n }));
  nodes.sort((a, b) => String(a.until ?? '9').localeCompare(b.until ?? '9') || a.id.localeCompare(b.id, 'en', { numeric: true }));
  const free = nodes.filter((n) => n.kind === 'free').length;
  const unit = `${nodes.length} nodes, ${free} free${r.startsAt ? `, start ${startsBy(r.startsAt, now)}` : ''}`;
  return panel({ name: 'reservation', title, unit, command: verb }, view.table ? reservedTable(nodes, now) : gantt(nodes, r, now));
}

function reservedTable(nodes, now) {
  return table({
    name: 'reserved', rows: nodes, height: 260, open: (r) => go({ page: 'map', n: r.id }),
    columns: [
      { id: 'node', label: 'Node', width: '30%', value: (r) => r.id },
      { id: 'kind', label: 'Now', width: '6rem', value: (r) => r.kind },
      { id: 'holder', label: 'Held by', value: (r) => r.holder },
      { id: 'until', label: 'Until', width: '7rem', value: (r) => clock(r.until, now) },
    ] });
}

function gantt(nodes, r, now) {
  const ends = nodes.map((n) => Date.parse(n.until ?? '')).filter((t) => t > now);
  const last = Math.max(now + 600_000, Date.parse(r.startsAt ?? '') || 0, ...ends);
  const at = (time) => `${Math.min(100, Math.max(0, ((time - now) / (last - now)) * 90)).toFixed(2)}%`;
  const shown = nodes.slice(0, 200);
  return h('div.gantt', { style: { 'max-height': '260px' } },
    h('div.head', {},
      h('span', {}, 'node'),
      h('div', {}, h('span.tick', { style: { left: '0%' } }, `now ${clock(new Date(now).toISOString(), now)}`), Date.parse(r.startsAt) > now && h('span.tick.start', { style: { left: at(Date.parse(r.startsAt)) } }, `${clock(r.startsAt, now)} at the latest`)),
    ),
    shown.map((n) => {
      const until = n.kind === 'free' ? '0%' : n.until ? at(Date.parse(n.until)) : '100%';
      return h('div.lane', { key: n.id, title: n.holder ? `${n.id}: ${n.holder} until ${n.until ? clock(n.until, now) : 'an unknown time'}` : n.kind === 'free' ? `${n.id}: free, reserved` : n.id },
        h('span', {}, n.id),
        h('div', {},
          n.kind !== 'free' && h('i', { class: { backfill: 'starting', runs: 'running' }[n.kind] ?? 'other', style: { left: '0%', width: until } }, n.kind === 'backfill' ? `backfill ${n.holder ?? ''}` : n.holder ?? 'other pods, or not known'),
          until !== '100%' && h('i.reserved', { style: { left: until, width: `calc(100% - ${until})` } }, 'r'),
        ));
    }),
    nodes.length > shown.length && h('p.faint', {}, `${nodes.length - shown.length} more nodes: t shows the table.`),
  );
}

function shares(q) {
  const rows = Object.entries(q.shares ?? {}).map(([id, s]) => ({ id, ...s }));
  rows.sort((a, b) => (b.share ?? -1) - (a.share ?? -1) || a.id.localeCompare(b.id));
  const most = Math.max(0.0001, ...rows.map((r) => r.share ?? 0));
  return panel(
    { name: 'shares', title: 'Shares', unit: 'of the cluster, by weight', command: 'kubectl lockstep top' },
    rows.length === 0
      ? missing('nodes') ?? empty('No namespace has capacity.')
      : h('div.shares', {},
          rows.slice(0, 60).map((r) =>
            h('div', { key: r.id, title: `${r.id}: share ${percent(r.share)}, weight ${r.weight}` },
              h('span.name', {}, r.id),
              h('span.track', {}, h('i', { style: { width: `${((r.share ?? 0) / most) * 100}%` } })),
              h('b', {}, percent(r.share) || '-'),
              h('span.faint', {}, `weight ${r.weight}`),
            ))));
}
