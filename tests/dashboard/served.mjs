// The program and the cluster that `lockstep-dashboard-cluster` has started.

import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mergePatch } from '../../operator/cli/page/store.js';

const { DASHBOARD, DASHBOARD_PID, DASHBOARD_SIZE, KUBECTL } = process.env;
if (!DASHBOARD) throw new Error('run by lockstep-dashboard-cluster: make bench-dashboard, make pictures-dashboard');

export const [nodes, gangs] = DASHBOARD_SIZE.split('/').map(Number);

/** Address of a view, with the token. */
export function address(view) {
  return `${DASHBOARD}&view=${encodeURIComponent(view)}`;
}

/** Runs kubectl as the administrator. */
export function kubectl(...args) {
  return execFileSync(KUBECTL, args, { encoding: 'utf8' });
}

/** Resident memory of the program in MB: now, and the most so far. */
export function resident() {
  const status = readFileSync(`/proc/${DASHBOARD_PID}/status`, 'utf8');
  const megabytes = (key) => Number(new RegExp(`^${key}:\\s+(\\d+)`, 'm').exec(status)[1]) / 1024;
  return { now: megabytes('VmRSS'), most: megabytes('VmHWM') };
}

/** Follows the stream of a page. `documents` has its documents, `sizes` the bytes of each event by its name. */
export function follow(view) {
  const [url, token] = DASHBOARD.split('#t=');
  const stop = new AbortController();
  const self = { documents: {}, sizes: { document: [], patch: [], beat: [] }, stop: () => stop.abort(), ended: null };
  self.done = read(self, `${url}api/stream?view=${view}`, token, stop.signal).catch((error) => {
    self.ended = error;
  });
  return self;
}

async function read(self, url, token, signal) {
  const response = await fetch(url, { headers: { authorization: `Bearer ${token}` }, signal });
  if (!response.ok) throw new Error(`${url}: ${response.status}`);
  const decoder = new TextDecoder();
  let rest = '';
  for await (const part of response.body) {
    rest += decoder.decode(part, { stream: true });
    const events = rest.split('\n\n');
    rest = events.pop();
    for (const event of events) take(self, event);
  }
  throw new Error('the program has closed the stream');
}

function take(self, text) {
  const [, event, data] = /^event: (\w+)\ndata: (.*)$/s.exec(text);
  const { name, value, patch } = JSON.parse(data);
  if (name !== 'frame') self.sizes[event].push(Buffer.byteLength(text) + 2);
  if (event === 'document') self.documents[name] = value;
  if (event === 'patch') self.documents[name] = mergePatch(self.documents[name], patch);
}
