// Is the installation healthy, and what may this reader not see?

import { age, clock, count } from './format.js';
import { matches } from './state.js';
import { request, store } from './store.js';
import { button, command, empty, missing, nodeLink, panel, refresh, scope, table, waiting, workloadLink } from './ui.js';
import { h } from './vdom.js';

let pods = '';

export function page({ health: d }, now) {
  if (!d) return [waiting()];
  return [
    h('div.columns.wide', { key: 'columns' }, [checks(d), h('div.stack', {}, [agents(d), rights()])]),
    signals(d, now),
    h('div.columns', { key: 'more' }, [configuration(d), unreadable(d)]),
  ];
}

function checks({ doctor }) {
  const rows = (doctor?.checks ?? []).map((c, i) => ({ ...c, id: `${i} ${c.check}` }));
  const bad = rows.filter((c) => c.level !== 'Ok').length;
  return panel(
    { name: 'doctor', title: 'Checks', unit: rows.length > 0 ? (bad > 0 ? `${bad} of ${rows.length} need attention` : `${rows.length} ok`) : null, command: `kubectl lockstep doctor${scope()}` },
    rows.length === 0
      ? empty(store.docs.frame?.freshness?.state === 'snapshot' ? 'The checks need a connection to the cluster.' : 'The checks are running.')
      : h('ul.checks', {},
          rows.filter((c) => matches({ check: c.check, message: c.message, level: c.level })).map((c) =>
            h('li', { key: c.id }, h('span.level', { class: c.level.toLowerCase() }, c.level === 'Ok' ? '✓ ok' : c.level === 'Warn' ? '! warn' : '✕ fail'), h('b', {}, c.check), h('span', {}, c.message, c.level !== 'Ok' && c.page ? h('small.faint', {}, ` ${c.page}`) : null)),
          )));
}

function agents({ agents: a }) {
  const part = (title, values) => [h('dt', {}, title), h('dd', {}, Object.entries(values ?? {}).map(([k, n]) => `${k} ${n}`).join(', ') || 'none')];
  return panel(
    { name: 'agents', title: 'Node agents', command: 'kubectl lockstep agents' },
    !a || Object.keys(a.byTier ?? {}).length === 0 ? missing('nodeagents') ?? empty('No node agent reports. Failed gangs are recreated instead of restarted in place.', 'kubectl apply -k config/overlays/full') : h('dl.list', {}, part('by tier', a.byTier), part('by version', a.byVersion)),
    (a?.missing ?? []).length > 0 && h('p.attention', {}, `${count(a.missing.length, 'node')} without agent: `, a.missing.slice(0, 12).map((n, i) => [i > 0 ? ', ' : '', nodeLink(n)]), a.missing.length > 12 ? ` and ${a.missing.length - 12} more` : ''),
  );
}

function rights() {
  const f = store.docs.frame ?? {};
  const rows = f.missing ?? [];
  return panel(
    { name: 'rights', title: 'Rights of the reader', unit: f.user ?? '', command: `kubectl auth can-i --list${scope()}` },
    rows.length === 0 ? h('p', {}, 'All objects of the page can be read.') : rows.map((m) => h('div.right', { key: `${m.verb} ${m.what}` }, h('p', {}, h('b', {}, `${m.verb} ${m.what}: `), m.message), m.command && command(m.command))),
    f.otherPods === 'no' &&
      h('div', {}, h('p', {}, 'Pods of other controllers are not read: the map shows only gangs.'), button('Load other pods', async () => {
        pods = 'The program loads the pods.';
        try {
          await request('pods', {});
        } catch (error) {
          pods = error.message;
        }
        refresh();
      })),
    pods && f.otherPods !== 'yes' && h('p.faint', {}, pods),
    f.otherPods === 'loading' && h('p', {}, 'Pods of other controllers are being loaded.'),
  );
}

function signals({ nodes }, now) {
  const rows = (nodes?.signals ?? []).map((s) => ({ ...s, id: `${s.node} ${s.signal}` }));
  return panel(
    { name: 'signals', title: 'Nodes with signals', unit: nodes?.mode ? `nodeHealth.mode: ${nodes.mode}` : null, command: 'kubectl lockstep nodes' },
    table({
      name: 'signals', height: 240,
      rows: rows.filter((r) => matches({ node: r.node, signal: r.signal, level: r.level, workload: r.workloads.join(' ') })),
      none: missing('nodes') ?? empty('No node has a signal.'),
      columns: [
        { id: 'node', label: 'Node', width: '18%', value: (r) => r.node, cell: (r) => nodeLink(r.node) },
        { id: 'signal', label: 'Signal', width: '22%', value: (r) => r.signal },
        { id: 'level', label: 'Level', width: '7rem', value: (r) => r.level },
        { id: 'since', label: 'Since', num: true, width: '5rem', sort: (r) => r.since, value: (r) => age(r.since, now) },
        { id: 'from', label: 'Counts from', width: '7rem', value: (r) => clock(r.countsFrom, now) },
        { id: 'deadline', label: 'Deadline', width: '7rem', value: (r) => clock(r.deadline, now) },
        { id: 'workloads', label: 'Workloads', value: (r) => r.workloads.join(', '), cell: (r) => r.workloads.map((w, i) => [i > 0 ? ', ' : '', workloadLink(w)]) },
      ] }),
  );
}

function configuration(d) {
  return panel(
    { name: 'configuration', title: 'Configuration of the manager', command: 'kubectl get configmap -n lockstep-system -o yaml' },
    d.configuration ? h('pre', {}, d.configuration) : missing('configmaps') ?? empty('The manager has no configuration of its own: all settings are the defaults.'),
  );
}

function unreadable(d) {
  const rows = d.unreadable ?? [];
  return panel(
    { name: 'unreadable', title: 'Unreadable objects', unit: rows.length > 0 ? String(rows.length) : null, command: `kubectl lockstep doctor${scope()}` },
    rows.length === 0 ? empty('All objects can be read.') : h('ul.plain', {}, rows.map((text) => h('li', { key: text }, text))),
  );
}
