// Is the cluster well used, and does anything need the reader?

import { age, amount, clock, count, gpuHours, percent, startsBy } from './format.js';
import { address, go, matches, state, view } from './state.js';
import { STATES, command, empty, figure, missing, nodeLink, panel, scope, swatch, table, waiting, workloadLink } from './ui.js';
import { h } from './vdom.js';

export function page({ overview: o }, now) {
  if (!o) return [waiting()];
  return [
    o.tenant ? held(o) : accelerators(o),
    h('div.columns', { key: 'columns' }, needs(o, now), waits(o, now)),
    day(o, now),
  ];
}

function held({ tenant, resource }) {
  return panel(
    { name: 'accelerators', title: 'Accelerators', unit: resource, command: `kubectl lockstep top${scope()}` },
    h('dl.figures', {},
      figure('held', amount(tenant.held), 'accounting.accelerators'),
      figure('requested', amount(tenant.requested), 'templates of workloads without all their members'),
    ),
    missing('nodes') ?? empty('Totals of the cluster need the right to list nodes: ClusterRole lockstep-dashboard.'),
  );
}

function accelerators({ bar, idle, resource, total }) {
  const parts = (bar ?? []).filter((p) => p.amount > 0);
  if (!total) {
    return panel(
      { name: 'accelerators', title: 'Accelerators', command: 'kubectl lockstep top' },
      empty('No node has accelerators, and no CPU is allocatable. Check that nodes are ready.', 'kubectl get nodes'),
    );
  }
  return panel(
    { name: 'accelerators', title: resource === 'cpu' ? 'CPU' : 'Accelerators', unit: `${amount(total)} ${resource}`, command: 'kubectl lockstep top' },
    view.table
      ? table({
          name: 'accelerators', rows: parts.map((p) => ({ id: p.state, ...p })),
          columns: [
            { id: 'state', label: 'State', width: '14rem', value: (r) => STATES[r.state][1] },
            { id: 'amount', label: 'Amount', num: true, width: '9rem', value: (r) => r.amount, cell: (r) => amount(r.amount) },
            { id: 'part', label: 'Part', num: true, width: '7rem', value: (r) => r.amount / total, cell: (r) => percent(r.amount / total) },
            { id: 'rest', label: '', value: () => '' },
          ] })
      : [bars(parts, total), legend(parts, total)],
    idle && h('ul.idle', { 'data-panel': 'idle', 'aria-label': 'Idle because' }, h('li.lead', {}, 'Idle because'), idle.filter((i) => i.amount > 0).map((i) => h('li', { key: i.reason }, h('b', {}, amount(i.amount)), ` ${i.text}`)), idle.every((i) => i.amount === 0) && h('li', {}, 'nothing is idle.')),
  );
}

function bars(parts, total) {
  return h('div.bar', { role: 'img', 'aria-label': parts.map((p) => `${STATES[p.state][1]} ${p.amount}`).join(', ') },
    parts.map((p) =>
      h('button', {
        key: p.state, type: 'button', class: p.state, style: { flex: `${p.amount} 1 0` },
        title: `${STATES[p.state][1]}: ${amount(p.amount)} (${percent(p.amount / total)}). Opens the map.`,
        onclick: () => go({ page: 'map', color: 'state', f: `state:${p.state}` }),
      }, p.amount / total > 0.02 ? STATES[p.state][0] : '')));
}

function legend(parts, total) {
  return h('ul.legend', {},
    parts.map((p) => h('li', { key: p.state }, swatch(p.state), h('span', {}, STATES[p.state][1]), h('b', {}, amount(p.amount)), h('span.faint', {}, percent(p.amount / total)))),
  );
}

function needs(o, now) {
  const rows = (o.needs ?? []).filter((n) => (!state.ns || n.workload?.startsWith(`${state.ns}/`)) && matches({ name: n.workload ?? n.node, workload: n.workload, node: n.node, reason: n.reason, next: n.next }));
  return panel(
    { name: 'needs', title: 'Needs you', unit: rows.length > 0 ? String(rows.length) : null, command: state.w ? null : `kubectl lockstep doctor${scope()}` },
    rows.length === 0
      ? empty('Nothing needs a change.')
      : h('ol.needs', {},
          rows.map((n) =>
            h('li', { key: `${n.workload ?? ''} ${n.node ?? ''} ${n.reason}` },
              h('div', {}, n.workload ? workloadLink(n.workload) : n.node ? nodeLink(n.node) : null, h('span.reason', {}, n.reason), h('span.since', { title: n.since ?? '' }, age(n.since, now))),
              h('p', {}, n.next),
              n.command && command(n.command),
            ))));
}

function waits({ waits: w }, now) {
  const rows = (w?.first ?? [])
    .map((g) => ({ ...g, id: `${g.namespace}/${g.podGroup}`, name: `${g.namespace}/${g.workload}` }))
    .filter((g) => (!state.ns || g.namespace === state.ns) && matches({ name: g.name, reason: g.reason, message: g.message, state: g.state }));
  return panel(
    { name: 'waits', title: 'Waits', unit: w ? `${count(w.gangs, 'gang')}, ${count(w.accelerators, 'accelerator')}` : null, command: `kubectl lockstep queue${scope()}` },
    table({
      name: 'waits', height: 340, rows, open: (r) => go({ page: 'queue', w: r.name }), selected: rows.find((r) => r.name === state.w)?.id,
      none: empty('No gang waits.'),
      columns: [
        { id: 'position', label: '#', num: true, width: '2.6rem', value: (r) => r.position ?? '-' },
        { id: 'workload', label: 'Workload', width: '25%', value: (r) => r.name },
        { id: 'state', label: 'State', width: '5rem', value: (r) => r.state.toLowerCase() },
        { id: 'since', label: 'Since', num: true, width: '3.8rem', sort: (r) => r.queuedAt, value: (r) => age(r.queuedAt, now) },
        { id: 'start', label: 'Start', width: '7.4rem', value: (r) => startsBy(r.reservation?.startsAt, now) },
        { id: 'message', label: 'Why', value: (r) => r.message ?? r.reason },
      ] }),
    w && w.gangs > rows.length && h('a.more', { href: address({ page: 'queue' }) }, `All ${count(w.gangs, 'gang')}`),
  );
}

function day({ day: d, resource }, now) {
  if (!d) return null;
  const kinds = Object.entries(d.byCause ?? {}).sort((a, b) => b[1] - a[1]);
  const least = d.atLeast ? 'at least ' : '';
  return panel(
    { name: 'day', title: 'Last 24 h', unit: resource, command: state.ns ? null : 'kubectl lockstep top' },
    h('dl.figures', {},
      figure('goodput', percent(d.goodput), 'accelerator time that is neither lost work nor cost of restarts'),
      figure('lost work', `${least}${gpuHours(d.lostAcceleratorSeconds)}`, 'history[].lostAcceleratorSeconds'),
      figure('restarts', `${least}${gpuHours(d.restartAcceleratorSeconds)}`, 'history[].restartAcceleratorSeconds'),
      figure('incidents', `${least}${amount(d.incidents)}`, kinds.map(([kind, n]) => `${kind} ${n}`).join(', ')),
    ),
    d.incidents === 0
      ? empty('No incident in the last 24 h.')
      : [
          h('ul.kinds', {}, kinds.map(([kind, n]) => h('li', { key: kind }, h('a.link', { href: address({ page: 'incidents', f: `cause:${kind}` }) }, kind), h('b', {}, amount(n))))),
          view.table ? marksTable(d, now) : marks(d, now),
        ]);
}

/** Incidents in 96 quarters of an hour, by the colour of their cause. */
function marks(d, now) {
  const start = now - 86_400_000;
  const bins = Array.from({ length: 96 }, () => []);
  for (const m of d.marks ?? []) bins[Math.floor((Date.parse(m.at) - start) / 900_000)]?.push(m);
  const most = Math.max(4, ...bins.map((b) => b.length));
  const time = (part) => new Date(start + part * 86_400_000).toISOString();
  return h('div.day', { role: 'img', 'aria-label': `${count(d.incidents, 'incident')} over 24 hours; t shows the table` },
    [0, 0.25, 0.5, 0.75, 1].map((part) => h('span.tick', { key: `tick ${part}`, style: { left: `${part * 100}%` } }, part === 1 ? 'now' : clock(time(part), Date.parse(time(part))))),
    bins.map((bin, i) => {
      bin.sort((a, b) => causeClass(a.cause).localeCompare(causeClass(b.cause)));
      const title = bin.slice(0, 12).map((m) => `${clock(m.at, now, true)} ${m.workload}: ${m.cause}`).join('\n');
      return h('div', { key: `bin ${i}`, title, onclick: bin.length > 0 ? () => go({ page: 'incidents', w: bin[0].workload }) : null }, bin.map((m, k) => h('i', { key: String(k), class: causeClass(m.cause), style: { height: `${100 / most}%` } })));
    }));
}

/** Colour class of the kind of a cause: what failed, what hung, what was planned. */
export function causeClass(kind) {
  if (['NodeLost', 'NodeFaulty', 'PodFailed', 'PodDeleted'].includes(kind)) return 'leaving';
  if (kind === 'Hang') return 'reserved';
  return kind === 'ContainerExit' ? 'restarting' : 'starting';
}

function marksTable(d, now) {
  return table({
    name: 'marks', rows: (d.marks ?? []).map((m, i) => ({ ...m, id: String(i) })), open: (r) => go({ page: 'workload', w: r.workload }),
    columns: [
      { id: 'at', label: 'Time', width: '8rem', value: (r) => clock(r.at, now, true) },
      { id: 'workload', label: 'Workload', width: '20rem', value: (r) => r.workload },
      { id: 'cause', label: 'Cause', value: (r) => r.cause },
    ] });
}
