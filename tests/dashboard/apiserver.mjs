// A stub of the API server: lists and watches of a few objects over HTTP, for the real program.

import { createServer } from 'node:http';
import { writeFile } from 'node:fs/promises';

const GPU = 'nvidia.com/gpu';
const KINDS = {
  '/apis/training.lockstep.dev/v1alpha1/trainingworkloads': 'TrainingWorkload',
  '/apis/scheduling.lockstep.dev/v1alpha1/podgroups': 'PodGroup',
  '/apis/training.lockstep.dev/v1alpha1/nodeagents': 'NodeAgent',
  '/apis/training.lockstep.dev/v1alpha1/restartorders': 'RestartOrder',
  '/api/v1/nodes': 'Node',
  '/api/v1/pods': 'Pod',
  '/api/v1/namespaces': 'Namespace',
  '/api/v1/events': 'Event',
  '/apis/scheduling.k8s.io/v1/priorityclasses': 'PriorityClass',
  '/apis/policy/v1/poddisruptionbudgets': 'PodDisruptionBudget',
};

/** Starts a stub with these objects by kind. `refused`: kinds that the reader may not list. */
export async function apiServer(objects, refused = []) {
  const watches = new Set();
  let version = 100;
  const self = { port: 0, refused };
  const server = createServer((request, response) => {
    const url = new URL(request.url, 'http://127.0.0.1');
    const path = url.pathname.replace(/\/namespaces\/[^/]+\//, '/');
    const kind = KINDS[path];
    const send = (status, body) => response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
    if (url.pathname === '/version') return send(200, { major: '1', minor: '37', gitVersion: 'v1.37.0' });
    if (!kind || request.method !== 'GET') return send(404, status(404, 'NotFound', `${url.pathname} not found`));
    const plural = path.split('/').at(-1);
    if (self.refused.includes(plural)) return send(403, status(403, 'Forbidden', `${plural} is forbidden: User "ana" cannot list resource "${plural}" in API group "" at the cluster scope`));
    if (!url.searchParams.get('watch')) return send(200, { kind: `${kind}List`, apiVersion: versionOf(path), metadata: { resourceVersion: String(version) }, items: objects[kind] ?? [] });
    response.writeHead(200, { 'content-type': 'application/json' });
    response.flushHeaders();
    const entry = { kind, response };
    watches.add(entry);
    response.on('close', () => watches.delete(entry));
    return undefined;
  });
  self.listen = (port = 0) => new Promise((resolve) => {
    server.listen(port, '127.0.0.1', () => {
      self.port = server.address().port;
      resolve();
    });
  });
  self.change = (kind, object) => {
    version += 1;
    object.metadata.resourceVersion = String(version);
    objects[kind] = [...objects[kind].filter((o) => o.metadata.uid !== object.metadata.uid), object];
    for (const w of watches) if (w.kind === kind) w.response.write(`${JSON.stringify({ type: 'MODIFIED', object })}\n`);
  };
  self.close = () => new Promise((resolve) => {
    server.close(resolve);
    server.closeAllConnections();
  });
  self.kubeconfig = (path) => writeFile(path, JSON.stringify({
    apiVersion: 'v1', kind: 'Config', 'current-context': 'stub',
    contexts: [{ name: 'stub', context: { cluster: 'stub', user: 'ana' } }],
    clusters: [{ name: 'stub', cluster: { server: `http://127.0.0.1:${self.port}` } }],
    users: [{ name: 'ana', user: {} }],
  }));
  await self.listen();
  return self;
}

function versionOf(path) {
  return path.startsWith('/api/') ? 'v1' : path.split('/').slice(2, 4).join('/');
}

function status(code, reason, message) {
  return { kind: 'Status', apiVersion: 'v1', metadata: {}, status: 'Failure', message, reason, code };
}

/** Nodes in two racks, and one workload that runs in the first. */
export function objects(now = Date.now()) {
  const at = (secondsAgo) => new Date(now - secondsAgo * 1000).toISOString().replace(/\.\d+Z/, 'Z');
  const nodes = Array.from({ length: 8 }, (_, i) => ({
    metadata: { name: `n${i + 1}`, uid: `node-${i}`, resourceVersion: '1', labels: { 'topology.kubernetes.io/rack': `r${Math.floor(i / 4) + 1}` } },
    spec: { unschedulable: i === 7 },
    status: { allocatable: { cpu: '64', memory: '512Gi', pods: '110', [GPU]: '8' }, capacity: { cpu: '64', memory: '512Gi', pods: '110', [GPU]: '8' }, conditions: [{ type: 'Ready', status: 'True', lastTransitionTime: at(600) }] },
  }));
  const cause = { kind: 'ContainerExit', exitCode: 137, reason: 'OOMKilled', pod: 'llama-workers-0-1', node: 'n2', container: 'trainer', message: '<script>document.title="taken"</script>', rule: '', time: at(1800) };
  return {
    Node: nodes,
    Namespace: [{ metadata: { name: 'ml', uid: 'ns-ml', resourceVersion: '1' } }],
    TrainingWorkload: [{
      apiVersion: 'training.lockstep.dev/v1alpha1',
      kind: 'TrainingWorkload',
      metadata: { name: 'llama', namespace: 'ml', uid: 'tw-llama', generation: 1, resourceVersion: '1', creationTimestamp: at(7200) },
      spec: { groups: [{ name: 'workers', replicas: 4, template: { spec: { containers: [{ name: 'trainer', image: 'registry.example/trainer:1', command: ['torchrun', 'train.py'], resources: { limits: { [GPU]: 8 } } }] } } }] },
      status: {
        phase: 'Running', reason: 'AllMembersReady', message: 'all members are ready or have succeeded', ready: '4/4', attempt: 2, accounting: { accelerators: 32 },
        history: [{ time: at(1800), attempt: 2, domain: 'workload', cause, action: 'RestartGang', counted: true, phases: { detectMs: 90, decideMs: 35, stopMs: 165, barrierMs: 28, startMs: 0 }, lostAcceleratorSeconds: 7200, restartAcceleratorSeconds: 64, recoveredAt: at(1798) }],
      },
    }],
  };
}
