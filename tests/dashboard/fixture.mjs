// Documents of a made-up cluster, as the program sends them. The same numbers give the same documents.

const KINDS = ['ContainerExit', 'ContainerExit', 'NodeLost', 'Hang', 'ContainerExit', 'Preempted', 'PodDeleted'];
const ACTIONS = { NodeLost: 'RecreateGang', Preempted: 'RecreateGang', PodDeleted: 'RestartPod' };
const NAMES = ['llama', 'probe', 'tuning', 'vision', 'speech', 'agents', 'reward', 'embed', 'distill', 'eval'];

/** A cluster of `nodes` nodes with 8 accelerators each and `gangs` workloads. */
export function cluster({ nodes = 40, gangs = 8, seed = 7, now = Date.now() } = {}) {
  const random = generator(seed);
  const at = (secondsAgo) => new Date(now - secondsAgo * 1000).toISOString();
  const state = { random, at, now, nodes: {}, workloads: {}, rows: {}, reservations: {}, incidents: {}, queue: [] };
  makeNodes(state, nodes);
  makeWorkloads(state, gangs);
  makeIncidents(state);
  makePreemption(state, gangs);
  return { ...documents(state), workloadNamed: (name) => workloadOf(state, name) };
}

function generator(seed) {
  let x = seed;
  return (below) => {
    x = (x * 1103515245 + 12345) % 2147483648;
    return Math.floor((x / 2147483648) * below);
  };
}

function makeNodes(s, count) {
  const perRack = count > 200 ? 32 : 14;
  for (let i = 0; i < count; i += 1) {
    const rack = Math.floor(i / perRack);
    const broken = i % 61 === 37 ? 'cordoned' : i % 97 === 59 ? 'silent' : i % 53 === 21 ? 'signal' : 'ready';
    s.nodes[`n${i + 1}`] = {
      path: [`b${Math.floor(rack / 8) + 1}`, `r${rack + 1}`],
      size: 8,
      state: broken,
      use: [],
      incidents: 0,
      agent: i % 29 === 28 ? 'Agent' : i % 83 === 40 ? 'none' : 'Supervised',
      ...(broken === 'signal' ? { signal: 'MaintenanceScheduled, leaves in 2h' } : {}),
    };
  }
}

function makeWorkloads(s, count) {
  const names = Object.keys(s.nodes);
  let next = 0;
  const running = Math.ceil(count * 0.72);
  const each = Math.max(1, Math.floor((names.length * 0.92) / running));
  for (let i = 0; i < count; i += 1) {
    const namespace = ['ml', 'research', 'vision', 'speech'][i % 4];
    const name = `${namespace}/${NAMES[i % NAMES.length]}${i < NAMES.length ? '' : `-${i}`}`;
    const priority = [10, 10, 100, 0, 50][i % 5];
    const waits = i >= running;
    const phase = waits ? (i % 7 === 5 ? 'Stalled' : 'Pending') : i % 11 === 4 ? 'Restarting' : i % 13 === 6 ? 'Starting' : i % 17 === 2 ? 'Preempting' : 'Running';
    s.workloads[i] = { name, namespace, priority, phase };
    if (waits) {
      makeWaiting(s, i, name, namespace, priority, phase);
      continue;
    }
    const want = Math.max(1, each + s.random(3) - 1);
    for (let taken = 0; taken < want && next < names.length; next += 1) {
      const node = s.nodes[names[next]];
      if (node.state === 'cordoned' || node.state === 'silent') continue;
      const letter = { Restarting: 'X', Starting: 'S', Preempting: 'V' }[phase] ?? 'R';
      node.use.push([i, taken === want - 1 && i % 3 === 0 ? 5 : 8, letter]);
      if (i % 2 === 0) node.until = new Date(s.now + (600 + i * 900) * 1000).toISOString();
      taken += 1;
    }
  }
  const first = s.queue.find((g) => g.reservation);
  if (!first) return;
  const id = `${first.namespace}/${first.podGroup}`;
  const reserved = {};
  for (const node of first.reservation.nodes.map((n) => n.node)) {
    const use = s.nodes[node].use[0];
    if (use) reserved[node] = { holder: s.workloads[use[0]].name, until: new Date(s.now + 1_900_000 + Object.keys(reserved).length * 560_000).toISOString(), kind: Object.keys(reserved).length % 4 === 1 ? 'backfill' : 'runs' };
    else {
      reserved[node] = { kind: 'free' };
      s.nodes[node].use.push([Object.values(s.workloads).findIndex((w) => w.name === `${first.namespace}/${first.workload}`), 8, 'r']);
    }
  }
  s.reservations[id] = { startsAt: first.reservation.startsAt, nodes: reserved };
}

function makeWaiting(s, i, name, namespace, priority, phase) {
  const place = s.queue.length;
  const held = phase === 'Stalled' || place % 5 === 4;
  const names = Object.keys(s.nodes);
  const width = Math.min(240, Math.max(2, Math.round(names.length / 7)));
  s.queue.push({
    position: held ? undefined : place + 1,
    namespace,
    workload: name.split('/')[1],
    podGroup: `${name.split('/')[1]}-workers-59f4`,
    priority,
    share: [0.41, 0.22, 0.18, 0.09][i % 4],
    state: held ? 'Held' : place === 0 ? 'Reserves' : 'Waits',
    queuedAt: s.at(600 + (i % 40) * 731),
    reservation: place === 0 ? { since: s.at(1200), startsAt: new Date(s.now + 7_440_000).toISOString(), nodes: names.slice(-Math.round(width * 1.45), -Math.round(width * 0.45)).map((node) => ({ node, members: { workers: 1 } })) } : undefined,
    reason: phase === 'Stalled' ? 'InvalidPriorityClass' : held ? 'VolumeMissing' : 'InsufficientCapacity',
    message: phase === 'Stalled' ? 'priority class "hihg" does not exist' : held ? 'claim "data" not found' : place === 0 ? `${width} nodes are reserved for this gang` : `insufficient nvidia.com/gpu: ${1 + (i % 6)} pods need ${8 * (1 + (i % 6))} more in rack r${1 + (i % 5)}`,
    needs: `${place === 0 ? width : 1 + (i % 6)} x 8 nvidia.com/gpu`,
    startsBy: place === 0 ? new Date(s.now + 7_440_000).toISOString() : undefined,
    ahead: held ? undefined : place,
  });
}

/** A gang of high priority takes nodes of the gangs that are being preempted, and one pod that the reader may not read. */
function makePreemption(s, number) {
  const leaving = Object.keys(s.workloads).filter((i) => s.workloads[i].phase === 'Preempting').map(Number);
  const victims = leaving.map((workload) => ({ workload, nodes: Object.keys(s.nodes).filter((n) => s.nodes[n].use.some(([i]) => i === workload)) }));
  const nodes = victims.flatMap((v) => v.nodes.slice(0, 2));
  s.workloads[number] = { name: 'ml/urgent', namespace: 'ml', priority: 1000, phase: 'Pending' };
  s.preemptions = [{ preemptor: number, nodes, victims: [...victims, { workload: null, nodes: [] }], cost: 4680, atLeast: 3960, proven: false, nextBest: { cost: 15_480 } }];
}

function makeIncidents(s) {
  const names = Object.keys(s.nodes);
  const running = Object.values(s.workloads).filter((w) => !['Pending', 'Stalled'].includes(w.phase));
  const sick = names[Math.min(16, names.length - 1)];
  running.forEach((w, i) => {
    for (let k = 0; k < 1 + ((i + 3) % 5); k += 1) {
      const kind = KINDS[(i + k * 3) % KINDS.length];
      const node = k % 3 === 1 ? sick : names[s.random(names.length)];
      const seconds = 400 + ((i * 7919 + k * 15013) % 85_000);
      const totalMs = 318 + s.random(4000) + (kind === 'NodeLost' ? 38_000 : 0);
      const inPlace = !ACTIONS[kind];
      s.nodes[node].incidents += 1;
      s.incidents[`${w.name}/${k + 1}`] = {
        at: s.at(seconds),
        workload: w.name,
        cause: { kind, pod: `${w.name.split('/')[1]}-workers-0-${k}-9c1e`, node, container: 'trainer', exitCode: kind === 'ContainerExit' ? [1, 137, 139][k % 3] : undefined, reason: kind === 'ContainerExit' ? ['Error', 'OOMKilled', 'Error'][k % 3] : kind, message: kind === 'ContainerExit' ? `container trainer ended with exit code ${[1, 137, 139][k % 3]}` : `${kind} on ${node}`, rule: '', time: s.at(seconds) },
        node,
        exitCode: kind === 'ContainerExit' ? [1, 137, 139][k % 3] : undefined,
        domain: 'workers',
        attempt: k + 2,
        action: ACTIONS[kind] ?? 'RestartGang',
        counted: kind !== 'Preempted',
        totalMs,
        phases: { detect: kind === 'NodeLost' ? 38_000 : 30 + (totalMs % 90), decide: 12 + (totalMs % 31), stop: 120 + (totalMs % 700), barrier: inPlace ? 9 + (totalMs % 37) : 0, start: inPlace ? 0 : 800 + (totalMs % 2600) },
        lostAcceleratorSeconds: 900 + s.random(20_000),
        restartAcceleratorSeconds: 40 + s.random(900),
        recoveredAt: s.at(seconds - 3),
      };
    }
  });
}

function sums(s) {
  const by = { R: 0, S: 0, X: 0, V: 0, r: 0, o: 0, free: 0, unusable: 0 };
  for (const node of Object.values(s.nodes)) {
    let used = 0;
    for (const [, n, letter] of node.use) {
      by[letter] += n;
      used += n;
    }
    by[node.state === 'cordoned' || node.state === 'silent' ? 'unusable' : 'free'] += node.size - used;
  }
  return by;
}

function documents(s) {
  const by = sums(s);
  const rows = Object.fromEntries(s.queue.map((g) => [`${g.namespace}/${g.podGroup}`, clean(g)]));
  const all = Object.values(s.incidents).sort((a, b) => a.at.localeCompare(b.at));
  const byCause = {};
  for (const i of all) byCause[i.cause.kind] = (byCause[i.cause.kind] ?? 0) + 1;
  const lost = all.reduce((sum, i) => sum + i.lostAcceleratorSeconds, 0);
  const restart = all.reduce((sum, i) => sum + i.restartAcceleratorSeconds, 0);
  const total = Object.keys(s.nodes).length * 8;
  const needs = needsOf(s);
  return clean({
    frame: {
      version: '0.1.0', context: 'prod', user: 'ana', server: 'https://10.0.0.1:6443', namespaces: ['ml', 'research', 'speech', 'vision'],
      freshness: { state: 'live', since: s.at(0), message: '' },
      leader: { holder: 'lockstep-manager-a', renewedAt: s.at(2), old: false },
      workloads: Object.keys(s.workloads).length, nodes: Object.keys(s.nodes).length, needs: needs.length, unreadable: [], missing: [], otherPods: 'no',
    },
    overview: {
      resource: 'nvidia.com/gpu', total,
      bar: [['running', by.R], ['starting', by.S], ['restarting', by.X], ['leaving', by.V], ['reserved', by.r], ['free', by.free], ['unusable', by.unusable]].map(([state, amount]) => ({ state, amount })),
      idle: [
        { reason: 'reserved', amount: by.r, text: 'reserved for ml/distill (starts by 14:10 at the latest)' },
        { reason: 'fragmented', amount: Math.floor(by.free * 0.6), text: 'free in pieces smaller than any waiting gang needs (largest hole: 3 nodes in rack r3)' },
        { reason: 'noDemand', amount: by.free - Math.floor(by.free * 0.6), text: 'free, and no gang waits for them' },
        { reason: 'unusable', amount: by.unusable, text: 'on nodes that are cordoned or not ready' },
      ],
      needs,
      waits: { gangs: s.queue.length, accelerators: s.queue.length * 64, first: s.queue.slice(0, 8) },
      day: { since: s.at(86_400), incidents: all.length, lostAcceleratorSeconds: lost, restartAcceleratorSeconds: restart, goodput: 0.973, byCause, marks: all.map(({ at, workload, cause }) => ({ at, workload, cause: cause.kind })), atLeast: true },
    },
    queue: { rows, shares: { ml: { share: 0.41, weight: 1 }, research: { share: 0.22, weight: 2 }, vision: { share: 0.18, weight: 1 }, speech: { share: 0.09, weight: 1 } }, reservations: s.reservations },
    map: { resource: 'nvidia.com/gpu', perNode: 8, levels: ['topology.example/block', 'topology.example/rack'], nodes: s.nodes, workloads: s.workloads, preemptions: s.preemptions },
    incidents: { rows: s.incidents },
    health: healthOf(s),
    workload: workloadOf(s, s.workloads[0].name),
    list: { list: Object.fromEntries(Object.values(s.workloads).map((w) => [w.name, { phase: w.phase, reason: w.phase === 'Running' ? 'AllMembersReady' : 'InsufficientCapacity', message: w.phase === 'Running' ? 'all members are ready or have succeeded' : 'waiting in the scheduling queue', ready: w.phase === 'Running' ? '32/32' : '0/32', attempt: 2, accelerators: w.phase === 'Pending' ? 0 : 256, priority: w.priority, since: s.at(4000) }])) },
  });
}

function needsOf(s) {
  const stalled = Object.values(s.workloads).filter((w) => w.phase === 'Stalled').slice(0, 3);
  return [
    ...stalled.map((w) => ({ workload: w.name, reason: 'Stalled: InvalidPriorityClass', since: s.at(900), next: 'Create the priority class "hihg", or suspend the workload and correct spec.priorityClassName.', command: `kubectl lockstep explain ${w.name.split('/')[1]} -n ${w.namespace}` })),
    { workload: s.workloads[0].name, reason: '3 restarts in 20 min on one node', since: s.at(1130), next: 'All three began on node n17. Cordon it, and the gang moves at its next restart.', command: 'kubectl cordon n17' },
    { node: 'n41', reason: 'no ready agent', since: s.at(3300), next: 'Failed gangs are recreated there instead of restarted in place.', command: 'kubectl lockstep agents' },
  ];
}

/** The document of one workload. */
function workloadOf(s, name) {
  const w = Object.values(s.workloads).find((x) => x.name === name);
  if (!w) return { notFound: `Workload ${name} does not exist, or you may not read it.` };
  const [namespace, workload] = name.split('/');
  const index = Number(Object.keys(s.workloads).find((k) => s.workloads[k] === w));
  const nodes = Object.keys(s.nodes).filter((n) => s.nodes[n].use.some(([i, , letter]) => i === index && letter !== 'r'));
  const members = {};
  nodes.forEach((node, n) => {
    for (let m = 0; m < 8; m += 1) {
      const rank = n * 8 + m;
      const slow = rank === 11 || rank === 29;
      members[`workers/0/${rank}`] = { rank, node, pod: `${workload}-workers-0-${rank}-9c1e`, phase: 'Running', step: 18_240 - (slow ? 12 : 0), behind: slow ? 12 : 0, arrived: w.phase === 'Restarting' ? m % 3 > 0 : undefined, ready: w.phase === 'Running' || m % 3 > 0 };
    }
  });
  const restarts = Object.entries(s.incidents).filter(([, i]) => i.workload === name).map(([id, i]) => ({ id, ...i }));
  restarts.sort((a, b) => a.at.localeCompare(b.at));
  const queued = s.queue.find((g) => g.workload === workload && g.namespace === namespace);
  const first = Math.max(21_600, ...restarts.map((r) => (s.now - Date.parse(r.at)) / 1000 + 3000));
  const phases = [['Pending', 'Queued', first], ['Starting', 'Scheduled', first - 1500], ['Running', 'AllMembersReady', first - 1560], ...restarts.flatMap((r) => [['Restarting', r.action, (s.now - Date.parse(r.at)) / 1000], ['Running', 'AllMembersReady', (s.now - Date.parse(r.at)) / 1000 - 240]])];
  const target = `${workload} -n ${namespace}`;
  const late = Object.keys(members).filter((m) => members[m].arrived === false);
  const { victims, ...evicts } = s.preemptions.find((p) => s.workloads[p.preemptor].name === name) ?? {};
  return clean({
    status: { namespace, workload, phase: w.phase, reason: queued ? queued.reason : 'AllMembersReady', message: queued ? queued.message : 'all members are ready or have succeeded', ready: queued ? `0/${members.length ?? 64}` : `${Object.values(members).filter((m) => m.ready).length}/${Object.keys(members).length}`, attempt: restarts.length + 1, accelerators: nodes.length * 8, created: s.at(first + 20), groups: [], topology: ['topology.example/block', 'topology.example/rack'], nodes: nodes.map((node, n) => ({ node, domain: s.nodes[node].path.join('/'), members: [`workers/0/${n * 8}-${n * 8 + 7}`], ready: 8, count: 8 })), restarting: [], failures: [], budget: { left: 7, of: 10, windowSeconds: 86_400 }, next: ['no action needed'], progress: { step: 18_240, stepTime: s.at(4), summary: '42 %, 3.5 h left' } },
    explain: { namespace, workload, phase: w.phase, preemptions: 0, conditions: [], gangs: [{ gang: 'workers', podGroup: `${workload}-workers-59f4`, priority: w.priority, state: queued ? 'Waits' : 'Placed', members: 64, nodes: nodes.length, message: queued?.message ?? '', ...(victims ? { evicts: { ...evicts, victims: victims.length } } : {}) }], events: [{ time: s.at(3000), kind: 'TrainingWorkload', name: workload, warning: false, reason: 'Scheduled', message: 'all members have nodes', count: 1 }, { time: s.at(1130), kind: 'TrainingWorkload', name: workload, warning: true, reason: 'RestartGang', message: 'restarting all 40 pods in place (attempt 3, 2 of 10 restarts used): container trainer ended with exit code 137 (OOMKilled)', count: 1 }, { time: s.at(1127), kind: 'TrainingWorkload', name: workload, warning: false, reason: 'Recovered', message: 'all 40 pods are running again after 0.3 s (attempt 3, no pod recreated)', count: 1 }] },
    phases: queued ? [{ phase: 'Pending', reason: queued.reason, since: queued.queuedAt }] : phases.map(([phase, reason, ago]) => ({ phase, reason, since: s.at(ago) })),
    restarts,
    checkpoint: queued ? {} : { step: 18_240, savedStep: 18_000, savedAt: s.at(1200), ratePerMinute: 12.1 },
    budget: { used: 3, limit: 10 },
    goodput: 0.968,
    members: queued ? null : members,
    arrivals: w.phase === 'Restarting' ? { arrived: Object.keys(members).length - late.length, expected: Object.keys(members).length, late } : null,
    slowest: queued ? [] : Object.entries(members).filter(([, m]) => m.behind > 0).map(([member, m]) => ({ member, step: m.step, behind: m.behind })),
    queue: queued ?? null,
    command: { 'log of the first failure': `kubectl lockstep logs ${target} --failed`, restart: `kubectl lockstep restart ${target}`, checkpoint: `kubectl lockstep checkpoint ${target}` },
  });
}

function healthOf(s) {
  const names = Object.keys(s.nodes);
  const checks = [['Ok', 'kubernetes', 'API server 1.37.0'], ['Ok', 'definitions', 'all kinds are served'], ['Ok', 'managers', '2 pods are ready in lockstep-system'], ['Ok', 'lease', 'lockstep-manager-a leads, renewed 2 s ago'], ['Ok', 'policies', 'all policies are bound'], ['Warn', 'agents', '1 of 40 nodes has no ready agent: members there are recreated'], ['Warn', 'names', 'other projects serve kinds called PodGroup: use lpg'], ['Ok', 'objects', 'all objects can be read']];
  return {
    doctor: { checks: checks.map(([level, check, message]) => ({ level, check, message, page: 'docs/cli.md#doctor' })) },
    agents: { byTier: { Supervised: names.filter((n) => s.nodes[n].agent === 'Supervised').length, Agent: names.filter((n) => s.nodes[n].agent === 'Agent').length }, byVersion: { '0.1.0': names.length - 1 }, missing: names.filter((n) => s.nodes[n].agent === 'none') },
    nodes: { mode: 'Move', signals: names.filter((n) => s.nodes[n].signal).map((node) => ({ node, signal: 'MaintenanceScheduled', level: 'Leaving', since: s.at(1800), deadline: new Date(s.now + 7_200_000).toISOString(), workloads: s.nodes[node].use.map(([i]) => s.workloads[i].name) })) },
    configuration: 'scheduling:\n  backend: Lockstep\nnodeHealth:\n  mode: Move\n',
    unreadable: [],
  };
}

/** The same value without undefined and null fields, as JSON of the program has it. */
function clean(value) {
  return JSON.parse(JSON.stringify(value, (_, v) => (v === null ? undefined : v)));
}
