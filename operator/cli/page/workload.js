// What happened, what was lost, and does it train?

import { PHASES, age, amount, cause, clock, duration, gpuHours, percent, startsBy, target } from './format.js';
import { causeClass } from './overview.js';
import { go, matches, state, view } from './state.js';
import { command, empty, evicts, figure, membersByNode, missing, nodeLink, panel, phase, phaseClass, scope, table, waiting, workloadLink } from './ui.js';
import { memberGrid } from './members.js';
import { h } from './vdom.js';

export function page({ workload: d }, now) {
  if (!d) return [waiting()];
  if (d.list || (!state.w && !d.status)) return [choose(d.list, now)];
  if (d.notFound) return [panel({ name: 'workload', title: state.w, command: 'kubectl get tw -A' }, empty(d.notFound))];
  return [
    head(d, now),
    d.status.phase === 'Pending' || d.queue ? why(d, now) : null,
    timeline(d, now),
    h('div.columns', { key: 'columns' }, [restarts(d, now), members(d)]),
    evictions(d),
    h('div.columns', { key: 'more' }, [nodes(d), happened(d, now)]),
  ].filter(Boolean);
}

function choose(list, now) {
  const rows = Object.entries(list ?? {})
    .map(([id, w]) => ({ ...w, id, namespace: id.split('/')[0] }))
    .filter((w) => (!state.ns || w.namespace === state.ns) && matches({ name: w.id, namespace: w.namespace, phase: w.phase, reason: w.reason, message: w.message, priority: w.priority }));
  const none = !list
    ? empty('Choose a workload in the queue or on the map, or open one by its name.', "kubectl lockstep dashboard --view '#/workload?w=NAMESPACE/NAME'")
    : Object.keys(list).length > 0
      ? empty('No workload matches the filter.')
      : missing('trainingworkloads') ?? empty('No workloads. Start the sample that needs no accelerators:', 'kubectl apply -f samples/06-without-accelerators.yaml');
  return panel(
    { name: 'workloads', title: 'Workloads', unit: list ? String(rows.length) : null, command: `kubectl get tw${scope() || ' -A'} -o wide`, grow: true },
    table({
      name: 'workloads', height: Math.max(300, innerHeight - 190), rows, none, open: (r) => go({ w: r.id, i: '' }),
      columns: [
        { id: 'name', label: 'Workload', width: '22%', value: (r) => r.id, cell: (r) => workloadLink(r.id) },
        { id: 'phase', label: 'Phase', width: '7.5rem', value: (r) => r.phase, cell: (r) => phase(r.phase) },
        { id: 'ready', label: 'Ready', num: true, width: '6rem', value: (r) => r.ready },
        { id: 'accelerators', label: 'Accelerators', num: true, width: '7rem', value: (r) => r.accelerators },
        { id: 'attempt', label: 'Attempt', num: true, width: '5rem', value: (r) => r.attempt },
        { id: 'priority', label: 'Priority', num: true, width: '5rem', value: (r) => r.priority },
        { id: 'since', label: 'Since', num: true, width: '4.5rem', sort: (r) => r.since, value: (r) => age(r.since, now) },
        { id: 'reason', label: 'Reason', width: '11rem', value: (r) => r.reason },
        { id: 'message', label: 'Message', value: (r) => r.message },
      ] }),
  );
}

function head(d, now) {
  const { status: s, checkpoint: c, budget: b } = d;
  const rate = c?.ratePerMinute ? ` (${c.ratePerMinute.toFixed(1)}/min)` : '';
  const step = c?.step ?? s.progress?.step;
  const next = (s.next ?? []).filter(Boolean);
  return panel(
    { name: 'workload', title: state.w, unit: s.created ? `age ${age(s.created, now)}` : null, command: `kubectl lockstep status ${target(state.w)}`, actions: phase(s.phase) },
    h('p.message', {}, s.page ? h('a.link', { href: s.page, target: '_blank', rel: 'noreferrer' }, s.reason) : s.reason, s.reason && ': ', s.message),
    h('dl.figures', {},
      figure('ready', s.ready, 'ready or succeeded members, of all members that should run'),
      figure('accelerators', amount(s.accelerators), 'accounting.accelerators'),
      figure('attempt', amount(s.attempt), 'domains[].attempt'),
      figure('step', step === undefined || step === null ? '' : `${amount(step)}${rate}`, 'progress.step'),
      figure('progress', s.progress?.summary, 'progress.summary'),
      figure('checkpoint', c?.savedAt ? `${c.savedStep === null || c.savedStep === undefined ? '' : `${amount(c.savedStep)}, `}${age(c.savedAt, now)} ago` : 'none reported', 'progress.checkpointStep and checkpointTime'),
      figure('restart budget', b ? (b.limit === null || b.limit === undefined ? `${b.used} used` : `${b.used} of ${b.limit} used`) : '', 'failurePolicy.limits'),
      figure('goodput', percent(d.goodput), 'accelerator time that is neither lost work nor cost of restarts'),
    ),
    s.nodeLeaving && h('p.attention', {}, s.nodeLeaving),
    next.length > 0 && h('p.next', {}, h('b', {}, 'Next: '), next.join('; ')),
    h('div.commands', {}, Object.entries(d.command ?? {}).map(([label, text]) => h('span', { key: label }, h('small', {}, label), command(text)))),
  );
}

function why(d, now) {
  const q = d.queue;
  const place = q?.position ? `Place ${q.position} in the queue, queued for ${age(q.queuedAt, now)}.` : q ? `Outside the queue: ${q.state.toLowerCase()}.` : 'Not in the queue.';
  return panel(
    { name: 'why', title: 'Why it waits', command: `kubectl lockstep explain ${target(state.w)}` },
    h('p', {}, `${place} ${q?.reservation?.startsAt ? `Starts ${startsBy(q.reservation.startsAt, now)}.` : ''}`),
    (d.explain?.gangs ?? []).map((g) => h('div.gang', { key: g.podGroup }, h('b', {}, `${g.gang}: ${g.state}`), h('p', {}, g.message ?? ''))),
    (d.explain?.conditions ?? []).map((c) => h('p', { key: c.type }, h('b', {}, `${c.type} ${c.reason}: `), c.message)),
  );
}

function timeline(d, now) {
  const phases = d.phases ?? [];
  const verb = `kubectl lockstep status ${target(state.w)} -o json`;
  if (phases.length === 0) return panel({ name: 'timeline', title: 'Over time', command: verb }, empty('No change of phase is recorded yet.'));
  const start = Date.parse(phases[0].since);
  const length = Math.max(60_000, now - start);
  const at = (time) => `${Math.max(0, Math.min(100, ((Date.parse(time) - start) / length) * 100)).toFixed(3)}%`;
  const ends = phases.map((p, i) => phases[i + 1]?.since ?? new Date(now).toISOString());
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => new Date(start + part * length).toISOString());
  const saved = d.checkpoint?.savedAt;
  return panel(
    { name: 'timeline', title: 'Over time', unit: `since ${clock(phases[0].since, now)}`, command: verb },
    view.table ? phasesTable(phases, ends, now) : h('div.lanes', { role: 'img', 'aria-label': phases.map((p) => `${p.phase} since ${clock(p.since, now)}`).join(', ') },
      lane('', ticks.map((t, i) => h('span.tick', { key: `tick ${i}`, style: { left: at(t) } }, i === 4 ? 'now' : clock(t, now)))),
      lane('phase', phases.map((p, i) => h('i', { key: `phase ${i}`, class: phaseClass(p.phase), style: { left: at(p.since), width: `calc(${at(ends[i])} - ${at(p.since)})` }, title: `${p.phase} ${p.reason}, ${clock(p.since, now)} to ${clock(ends[i], now)}` }, p.phase))),
      lane('incidents', restartsOf(d).map((r, i) => h('button.mark', { key: r.id, type: 'button', class: `${causeClass(r.cause.kind)} ${r.id === current(d)?.id ? 'selected' : ''}`, style: { left: at(r.at) }, title: `${clock(r.at, now, true)} ${cause(r.cause)}`, onclick: () => go({ i: r.id }) }, letter(i)))),
      lane('lost', restartsOf(d).map((r) => h('span.cost', { key: r.id, style: { left: at(r.at) } }, r.lostAcceleratorSeconds > 0 ? gpuHours(r.lostAcceleratorSeconds) : ''))),
      saved && Date.parse(saved) >= start && lane('saved', h('span.saved', { style: { left: at(saved) }, title: `checkpoint of ${clock(saved, now, true)}` }, '●')),
    ));
}

function phasesTable(phases, ends, now) {
  return table({
    name: 'phases', rows: phases.map((p, i) => ({ ...p, id: String(i), end: ends[i] })),
    columns: [
      { id: 'since', label: 'Since', width: '9rem', value: (r) => clock(r.since, now, true) },
      { id: 'phase', label: 'Phase', width: '8rem', value: (r) => r.phase, cell: (r) => phase(r.phase) },
      { id: 'for', label: 'For', num: true, width: '5rem', value: (r) => duration(Date.parse(r.end) - Date.parse(r.since)) },
      { id: 'reason', label: 'Reason', value: (r) => r.reason },
    ] });
}

function letter(index) {
  return String.fromCharCode(65 + (index % 26));
}

function lane(label, ...children) {
  return h('div.lane', { key: `lane ${label}` }, h('span', {}, label), h('div', {}, children));
}

/** Incidents, oldest first. */
function restartsOf(d) {
  return [...(d.restarts ?? [])].sort((a, b) => a.at.localeCompare(b.at));
}

function current(d) {
  const rows = restartsOf(d);
  return rows.find((r) => r.id === state.i) ?? rows.at(-1);
}

function restarts(d, now) {
  const rows = restartsOf(d);
  const r = current(d);
  const verb = `kubectl lockstep logs ${target(state.w)} --failed`;
  if (!r) return panel({ name: 'restarts', title: 'Incidents', command: verb }, empty('No incident is recorded.'));
  const total = Math.max(1, ...Object.values(r.phases));
  return panel(
    { name: 'restarts', title: 'Incidents', unit: rows.length >= 20 ? 'the last 20; older incidents are not kept' : String(rows.length), command: verb },
    table({
      name: 'restarts', height: 200, rows: rows.map((x, i) => ({ ...x, mark: letter(i) })), open: (x) => go({ i: x.id }), selected: r.id,
      columns: [
        { id: 'mark', label: '', width: '2rem', value: (x) => x.mark },
        { id: 'at', label: 'Time', width: '6.6rem', sort: (x) => x.at, value: (x) => clock(x.at, now, true) },
        { id: 'cause', label: 'Cause', value: (x) => cause(x.cause) },
        { id: 'action', label: 'Action', width: '7.4rem', value: (x) => x.action },
        { id: 'back', label: 'Back after', num: true, width: '5.4rem', sort: (x) => x.totalMs, value: (x) => (x.recoveredAt ? duration(x.totalMs) : 'never') },
        { id: 'lost', label: 'Lost', num: true, width: '5.4rem', sort: (x) => x.lostAcceleratorSeconds, value: (x) => gpuHours(x.lostAcceleratorSeconds) },
      ] }),
    h('div.incident', { 'data-panel': 'incident' },
      h('p', {}, h('b', {}, `${letter(rows.indexOf(r))}: ${cause(r.cause)}`), r.cause.pod ? ` in pod ${r.cause.pod}` : '', r.cause.node ? [' on ', nodeLink(r.cause.node)] : ''),
      r.cause.message && h('p.faint', {}, r.cause.message),
      h('p', {}, `${r.action} of ${r.domain || 'the workload'} to attempt ${r.attempt}; ${r.counted ? 'uses the restart budget' : 'does not use the restart budget'}${r.cause.rule ? `; rule ${r.cause.rule}` : ''}; restart cost ${gpuHours(r.restartAcceleratorSeconds)}.`),
      r.preemptor && h('p', {}, `Preempted by ${r.preemptor.namespace}/${r.preemptor.name}, priority ${r.preemptor.priority}`),
      h('div.steps', {}, PHASES.map((name) => h('div', { key: name }, h('span', {}, name), h('span.track', {}, h('i', { style: { width: `${(r.phases[name] / total) * 100}%` } })), h('b', {}, duration(r.phases[name]))))),
    ));
}

function members(d) {
  const verb = `kubectl lockstep status ${target(state.w)} -o wide`;
  const rows = Object.entries(d.members ?? {}).map(([id, m]) => ({ id, ...m }));
  rows.sort((a, b) => (a.rank ?? 0) - (b.rank ?? 0) || a.id.localeCompare(b.id, 'en', { numeric: true }));
  if (rows.length === 0) return panel({ name: 'members', title: 'Members', command: verb }, missing('pods', 'nodeagents') ?? empty('No member has a pod.'));
  const shown = rows.filter((m) => matches({ name: m.id, rank: m.rank, node: m.node, pod: m.pod, phase: m.phase }));
  const slow = d.slowest ?? rows.filter((m) => m.behind > 1).sort((a, b) => b.behind - a.behind).slice(0, 8).map((m) => ({ ...m, member: m.id }));
  return panel(
    { name: 'members', title: 'Members', unit: `${rows.filter((m) => m.ready).length} of ${rows.length} ready`, command: verb },
    d.arrivals && h('p', { role: 'status', class: d.arrivals.late.length > 0 ? 'attention' : '' }, arrivalsText(d.arrivals)),
    view.table
      ? table({
          name: 'members', rows: shown,
          columns: [
            { id: 'rank', label: 'Rank', num: true, width: '4rem', value: (r) => r.rank },
            { id: 'member', label: 'Member', width: '22%', value: (r) => r.id },
            { id: 'phase', label: 'Phase', width: '7rem', value: (r) => r.phase },
            { id: 'node', label: 'Node', width: '20%', value: (r) => r.node, cell: (r) => r.node && nodeLink(r.node) },
            { id: 'step', label: 'Step', num: true, width: '5.5rem', value: (r) => r.step, cell: (r) => amount(r.step) },
            { id: 'behind', label: 'Behind', num: true, width: '4.5rem', value: (r) => r.behind, cell: (r) => amount(r.behind) },
            { id: 'pod', label: 'Pod', value: (r) => r.pod },
          ] })
      : memberGrid(shown, new Set(slow.map((m) => m.member))),
    h('div.slowest', { 'data-panel': 'slowest' },
      slow.length === 0
        ? h('p.faint', {}, missing('nodeagents') ? 'Steps by member need the right to list NodeAgents.' : 'No member is behind.')
        : [h('p', {}, h('b', {}, 'Slowest')), h('ul', {}, slow.map((m) => h('li', { key: m.member }, `${m.member}: step ${amount(m.step)}, ${amount(m.behind)} behind`)))],
    ));
}

/** Arrivals at the barrier of an open incident. */
function arrivalsText({ arrived, expected, late }) {
  const more = late.length > 8 ? ` and ${late.length - 8} more` : '';
  return `${amount(arrived)} of ${amount(expected)} arrived${late.length > 0 ? `, late: ${late.slice(0, 8).join(', ')}${more}` : ''}`;
}

function evictions(d) {
  const gangs = (d.explain?.gangs ?? []).filter((g) => g.evicts);
  if (gangs.length === 0) return null;
  return panel(
    { name: 'preemption', title: 'Preemption in progress', command: `kubectl lockstep explain ${target(state.w)}` },
    gangs.map((g) => h('p', { key: g.podGroup }, `${g.gang} ${evicts(g.evicts.victims, g.evicts)}`)),
  );
}

function nodes(d) {
  const rows = (d.status.nodes ?? []).map((n, i) => ({ ...n, id: n.node ?? `none ${i}` }));
  return panel(
    { name: 'nodes', title: 'Nodes', unit: rows.length > 0 ? String(rows.length) : null, command: `kubectl lockstep status ${target(state.w)} -o wide` },
    membersByNode('nodes', rows.filter((n) => matches({ name: n.node, node: n.node, domain: n.domain, members: n.members.join(' ') })), (d.status.topology ?? []).map((key) => key.split('/').at(-1)).join('/')),
  );
}

function happened(d, now) {
  const rows = (d.explain?.events ?? []).map((e, i) => ({ ...e, id: `${i} ${e.reason}` })).reverse();
  return panel(
    { name: 'events', title: 'Events', unit: rows.length > 0 ? String(rows.length) : null, command: `kubectl lockstep explain ${target(state.w)}` },
    table({
      name: 'events', height: 250, rows: rows.filter((e) => matches({ reason: e.reason, message: e.message, name: e.name })),
      none: missing('events') ?? empty('No event is kept. The API server keeps events for an hour.'),
      columns: [
        { id: 'time', label: 'Age', num: true, width: '4rem', sort: (r) => r.time, value: (r) => age(r.time, now) },
        { id: 'reason', label: 'Reason', width: '9rem', value: (r) => r.reason, cell: (r) => h('span', { class: r.warning ? 'attention' : '' }, r.reason) },
        { id: 'message', label: 'Message', value: (r) => r.message },
      ] }),
  );
}
