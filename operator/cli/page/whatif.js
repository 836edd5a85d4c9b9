// Would it fit, what would it cost, and what changes that?

import { amount, count, gpuHours } from './format.js';
import { go, state, view } from './state.js';
import { request, store } from './store.js';
import { drawing, input } from './map.js';
import { button, copy, empty, evicts, figure, membersByNode, missing, panel, refresh, scope, table, victims } from './ui.js';
import { h } from './vdom.js';

const PAUSE_MS = 250;
const form = { manifest: '', of: '', like: '', count: 0, preemption: true };
const answer = { value: null, error: '', asked: '', serial: 0 };
const kept = [];
let timer = 0;

/** Values of the manifest that have a control: the first line of each key in each group. */
const KEYS = [
  ['replicas', /^(\s*(?:- )?replicas:\s*)(\d+)/gm],
  ['minCount', /^(\s*(?:- )?minCount:\s*)(\d+)/gm],
  ['priorityClassName', /^(\s*(?:- )?priorityClassName:\s*)(\S+)/gm],
];

export function page({ map: d }, now) {
  if (state.w && form.of !== state.w) void choose(state.w);
  ask();
  return [
    h('div.columns.editor', { key: 'columns' }, [editor(d), result(d, now)]),
    kept.length > 0 ? variants() : null,
    answer.value?.screen ? screen() : null,
  ].filter(Boolean);
}

async function choose(workload) {
  form.of = workload;
  try {
    const { manifest } = await request(`manifest?workload=${encodeURIComponent(workload)}`);
    if (form.of === workload) form.manifest = manifest;
    answer.error = '';
  } catch (error) {
    answer.error = error.message;
  }
  refresh();
}

function question() {
  if (form.manifest.trim() === '') return null;
  return {
    manifest: form.manifest,
    drained: state.d.split(',').filter(Boolean),
    ...(form.count > 0 && form.like ? { added: { like: form.like, count: form.count } } : {}),
    preemption: form.preemption,
  };
}

/** Sends the question when the reader pauses, and once for the same question. */
function ask() {
  const body = question();
  const text = JSON.stringify(body);
  if (!body || text === answer.asked) return;
  answer.asked = text;
  clearTimeout(timer);
  timer = setTimeout(async () => {
    try {
      const value = await request('whatif', body);
      if (answer.asked !== text) return;
      Object.assign(answer, { value, error: '', serial: answer.serial + 1 });
    } catch (error) {
      if (answer.asked === text) Object.assign(answer, { value: null, error: error.message });
    }
    refresh();
  }, PAUSE_MS);
}

function editor(d) {
  const nodes = Object.keys(d?.nodes ?? {});
  return panel(
    { name: 'manifest', title: 'Manifest', unit: form.of ? `of ${form.of}` : null, actions: button('Copy the manifest', () => copy(form.manifest)) },
    h('textarea.manifest', {
      value: form.manifest, spellcheck: 'false', 'aria-label': 'Manifest of a TrainingWorkload',
      placeholder: 'Paste the manifest of a TrainingWorkload, or choose a workload on another page and press w.',
      oninput: (e) => change({ manifest: e.target.value }),
      ondragover: (e) => e.preventDefault(),
      ondrop: async (e) => {
        e.preventDefault();
        change({ manifest: (await e.dataTransfer.files[0]?.text()) ?? e.dataTransfer.getData('text') });
      },
    }),
    h('div.controls-grid', {}, KEYS.flatMap(([key, pattern]) => [...form.manifest.matchAll(pattern)].map((found, i) => control(key, pattern, found, i)))),
    h('h3', {}, 'Cluster'),
    h('div.controls-grid', {},
      h('label', {}, 'drained nodes'),
      h('input', { type: 'text', value: state.d, placeholder: 'n1,n2', 'aria-label': 'drained nodes', onchange: (e) => go({ d: e.target.value.replaceAll(/\s/g, '') }) }),
      h('label', {}, 'added nodes'),
      h('span.pair', {},
        h('input', { type: 'number', min: '0', max: '1000', value: String(form.count), 'aria-label': 'number of added nodes', oninput: (e) => change({ count: Number(e.target.value), like: form.like || nodes[0] || '' }) }),
        ' like ',
        h('input', { type: 'text', value: form.like, list: 'nodes', 'aria-label': 'added nodes are like', placeholder: nodes[0] ?? 'node', onchange: (e) => change({ like: e.target.value }) }),
        h('datalist', { id: 'nodes' }, nodes.slice(0, 200).map((n) => h('option', { value: n, key: n }))),
      ),
      h('label', {}, 'preemption'),
      h('span.pair', {}, h('input', { type: 'checkbox', checked: form.preemption, 'aria-label': 'preemption', onchange: (e) => change({ preemption: e.target.checked }) }), ' may evict work of lower priority'),
    ));
}

function change(fields) {
  Object.assign(form, fields);
  refresh();
}

function control(key, pattern, found, index) {
  const [, , value] = found;
  const set = (text) => {
    let at = -1;
    change({ manifest: form.manifest.replace(pattern, (line, start) => (++at === index && text !== '' ? `${start}${text}` : line)) });
  };
  const number = key !== 'priorityClassName';
  return [
    h('label', { key: `label ${key} ${index}` }, key),
    number
      ? h('span.pair', { key: `control ${key} ${index}` }, h('input', { type: 'range', min: '1', max: String(Math.max(64, 2 ** Math.ceil(Math.log2(2 * value)))), value, 'aria-label': key, oninput: (e) => set(e.target.value) }), h('input', { type: 'number', min: '1', value, 'aria-label': `${key}, number`, oninput: (e) => set(e.target.value) }))
      : h('input', { key: `control ${key} ${index}`, type: 'text', value, 'aria-label': key, onchange: (e) => set(e.target.value) }),
  ];
}

/** The verdict of all gangs in one sentence. */
function verdict(report) {
  const victims = report.gangs.reduce((sum, g) => sum + g.victims.length, 0);
  if (!report.fits) return 'Does not fit';
  if (victims > 0) return `Fits after evicting ${count(victims, 'victim')}`;
  return report.gangs.some((g) => g.verdict === 'FitsOnceOthersHaveLeft') ? 'Fits after terminating pods have exited' : report.gangs.some((g) => g.verdict === 'Unknown') ? 'kube-scheduler places it' : 'Fits';
}

function costOf(report) {
  return report.gangs.reduce((sum, g) => sum + g.cost, 0);
}

function result(d, now) {
  const report = answer.value?.report;
  const verb = `kubectl lockstep whatif -f -${scope()}`;
  if (!report) {
    const lacks = missing('nodes');
    return panel({ name: 'answer', title: 'Answer', command: verb }, lacks, answer.error ? empty(answer.error) : empty(form.manifest === '' ? 'Choose a workload or paste a manifest.' : 'The engine computes the answer.'));
  }
  const gangs = report.gangs;
  const nodes = gangs.flatMap((g) => g.nodes.map((n) => n.node));
  const evicted = gangs.flatMap((g) => g.victims);
  return panel(
    { name: 'answer', title: 'Answer', command: verb, actions: button('Keep for comparison', () => keep(report)) },
    answer.error && h('p.attention', {}, answer.error),
    store.docs.frame?.otherPods === 'no' && h('p.attention', {}, 'Pods of other controllers count as free. Page Health can load them.'),
    h('p.verdict', { class: report.fits ? (evicted.length > 0 ? 'costs' : 'fits') : 'not' }, verdict(report)),
    gangs.filter((g) => g.reason || g.victims.length > 0).map((g) => h('p', { key: g.gang }, h('b', {}, `${g.gang} `), g.reason ?? evicts(g.victims.length, g))),
    h('dl.figures', {},
      figure('cost', gpuHours(costOf(report))),
      figure('placed', gangs.map((g) => `${amount(g.placed)} of ${amount(g.members)}`).join(', ')),
      figure('nodes', amount(new Set(nodes).size)),
    ),
    evicted.length > 0 ? victims('whatif-victims', evicted) : null,
    nodes.length === 0 || !d?.nodes ? null : view.table ? membersByNode('whatif-nodes', gangs.flatMap((g) => g.nodes.map((n) => ({ ...n, id: `${g.gang} ${n.node}` })))) : [h('div.mapped.small', { key: 'map' }, drawing(input(d, now, { nodes, victims: evicted, key: String(answer.serial) }), d)), h('p.faint', { key: 'letters' }, 'Outlined: nodes of the answer. N: free there. V: work that is evicted.')],
  );
}

function keep(report) {
  const values = KEYS.flatMap(([key, pattern]) => [...form.manifest.matchAll(pattern)].map((m) => `${key} ${m[2]}`));
  const cluster = [state.d && `without ${state.d}`, form.count > 0 && `${form.count} more nodes`, !form.preemption && 'no preemption'].filter(Boolean);
  kept.push({ id: String(answer.serial) + kept.length, report, values: [...values, ...cluster].join(', ') });
  if (kept.length > 3) kept.shift();
  refresh();
}

function variants() {
  return panel(
    { name: 'variants', title: 'Compared', unit: 'the last three that you kept', actions: button('Clear', () => { kept.length = 0; refresh(); }) },
    table({
      name: 'variants', rows: kept.map((k, i) => ({ ...k, letter: 'ABC'[i] })),
      columns: [
        { id: 'letter', label: '', width: '2rem', value: (r) => r.letter },
        { id: 'values', label: 'With', value: (r) => r.values },
        { id: 'verdict', label: 'Answer', width: '22rem', value: (r) => verdict(r.report) },
        { id: 'cost', label: 'Cost', num: true, width: '7rem', value: (r) => costOf(r.report), cell: (r) => gpuHours(costOf(r.report)) },
        { id: 'placed', label: 'Placed', num: true, width: '9rem', value: (r) => r.report.gangs.map((g) => `${g.placed} of ${g.members}`).join(', ') },
      ] }),
  );
}

function screen() {
  return panel({ name: 'screen', title: 'As the terminal prints it, with its assumptions', unit: store.docs.frame?.freshness?.state === 'snapshot' ? 'snapshot' : null }, h('pre', {}, answer.value.screen));
}
