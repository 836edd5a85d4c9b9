// Plays the program: serves the page and its API over documents that a test changes.

import { createServer } from 'node:http';
import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';

export const PAGE = fileURLToPath(new URL('../../operator/cli/page/', import.meta.url));
export const TOKEN = '5f1c00aa5f1c00aa5f1c00aa5f1c00aa';
const POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
const TYPES = { html: 'text/html; charset=utf-8', css: 'text/css', js: 'text/javascript' };
const DOCS = { overview: 'overview', queue: 'queue', workload: 'workload', map: 'map', whatif: 'map', incidents: 'incidents', health: 'health' };

/** Starts a server. `docs` are the documents of `cluster()`; `push` sends patches to all streams. */
export async function program(docs, { port = 0, beats = true } = {}) {
  const streams = new Set();
  const requests = [];
  const self = { docs, requests, answer: whatIf, beats, pushed: [] };
  const server = createServer((request, response) => {
    requests.push(request.url);
    serve(self, streams, request, response).catch((error) => response.writeHead(500).end(error.message));
  });
  await new Promise((resolve) => server.listen(port, '127.0.0.1', resolve));
  const timer = setInterval(() => {
    if (self.beats) for (const s of streams) send(s.response, 'beat', { now: new Date().toISOString() });
  }, 1000);
  self.port = server.address().port;
  self.url = `http://127.0.0.1:${self.port}/#t=${TOKEN}`;
  self.open = (view) => `http://127.0.0.1:${self.port}/#t=${TOKEN}&view=${encodeURIComponent(view)}`;
  self.push = (name, patch) => {
    const text = JSON.stringify({ name, patch });
    self.pushed.push(text.length);
    for (const s of streams) if (s.names.includes(name)) s.response.write(`event: patch\ndata: ${text}\n\n`);
  };
  self.send = (name, value) => {
    for (const s of streams) if (s.names.includes(name)) send(s.response, 'document', { name, value });
  };
  self.cut = () => {
    for (const s of streams) s.response.destroy();
  };
  self.streams = () => streams.size;
  self.stop = async () => {
    clearInterval(timer);
    self.cut();
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  };
  return self;
}

async function serve(self, streams, request, response) {
  const url = new URL(request.url, 'http://127.0.0.1');
  response.setHeader('content-security-policy', POLICY);
  response.setHeader('x-content-type-options', 'nosniff');
  response.setHeader('referrer-policy', 'no-referrer');
  if (!url.pathname.startsWith('/api/')) {
    const name = url.pathname === '/' ? 'index.html' : url.pathname.replace('/assets/', '');
    if (!/^[a-z]+\.(html|css|js)$/.test(name)) return response.writeHead(404).end();
    response.setHeader('content-type', TYPES[name.split('.')[1]]);
    return response.end(await readFile(PAGE + name));
  }
  response.setHeader('cache-control', 'no-store');
  if (request.headers.authorization !== `Bearer ${TOKEN}`) return response.writeHead(401).end();
  if (self.down) return response.destroy();
  if (url.pathname === '/api/stream') return stream(self, streams, url, response);
  if (url.pathname === '/api/manifest') return json(response, 200, { manifest: manifest(url.searchParams.get('workload')) });
  if (url.pathname === '/api/pods') {
    self.docs.frame = { ...self.docs.frame, otherPods: 'yes' };
    self.push('frame', { otherPods: 'yes' });
    return json(response, 200, {});
  }
  if (url.pathname === '/api/whatif') {
    let text = '';
    for await (const part of request) text += part;
    const { status = 200, body } = self.answer(self.docs, JSON.parse(text));
    return json(response, status, body);
  }
  return response.writeHead(404).end();
}

function stream(self, streams, url, response) {
  const view = url.searchParams.get('view');
  const name = DOCS[view];
  const entry = { response, names: ['frame', name] };
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  send(response, 'document', { name: 'frame', value: self.docs.frame });
  const workload = url.searchParams.get('workload');
  const value = name === 'workload' ? (workload ? self.docs.workloadNamed(workload) : self.docs.list) : self.docs[name];
  send(response, 'document', { name, value });
  send(response, 'beat', { now: new Date().toISOString() });
  streams.add(entry);
  response.on('close', () => streams.delete(entry));
}

function send(response, event, data) {
  response.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
}

function json(response, status, body) {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
}

function manifest(name) {
  const [namespace, workload] = (name ?? 'ml/llama').split('/');
  return `apiVersion: training.lockstep.dev/v1alpha1
kind: TrainingWorkload
metadata: {name: ${workload}, namespace: ${namespace}}
spec:
  priorityClassName: high
  groups:
  - name: workers
    replicas: 4
    template:
      spec:
        containers:
        - name: trainer
          image: registry.example/trainer:1
          command: [torchrun, train.py]
          resources: {limits: {nvidia.com/gpu: 8}}
`;
}

function whatIf(docs, { manifest: text, preemption, drained }) {
  const replicas = Number(/replicas: (\d+)/.exec(text)?.[1]);
  if (!replicas) return { status: 400, body: { error: 'spec.groups[0].replicas: a number is needed' } };
  const nodes = Object.keys(docs.map.nodes).filter((n) => !(drained ?? []).includes(n)).slice(0, replicas);
  const victims = replicas > 2 && preemption ? [{ kind: 'podgroup', namespace: 'ml', name: 'young-workers-77aa', uid: 'u1', priority: 10, pods: 10, cost: 4680, lostWork: 4320, nodes: nodes.slice(0, 2) }] : [];
  const fits = replicas <= 2 || preemption;
  const gang = { gang: 'workers', verdict: !fits ? 'DoesNotFit' : victims.length > 0 ? 'Preempts' : 'Fits', members: replicas, minCount: replicas, placed: fits ? replicas : 0, nodes: fits ? nodes.map((node, i) => ({ node, domain: docs.map.nodes[node].path.join('/'), members: [`workers/0/${i}`] })) : [], victims, cost: victims.length > 0 ? 4680 : 0, podsBeyondBudgets: 0, atLeast: victims.length > 0 ? 4680 : 0, proven: victims.length > 0, ...(victims.length > 0 ? { nextBest: { cost: 15480, podsBeyondBudgets: 0, victims: [] } } : {}), ...(fits ? {} : { reason: 'insufficient nvidia.com/gpu: 2 pods need 16 more' }) };
  return { body: { report: { namespace: 'ml', workload: 'llama', priority: 100, takenAt: new Date().toISOString(), fits, gangs: [gang] }, screen: `ml/llama: ${fits ? 'fits' : 'does not fit'}\n\nAssumes that no other gang is queued before it.\n` } };
}
