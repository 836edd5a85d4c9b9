// The page over the real program: `LOCKSTEP_PLUGIN` is its path.

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import { apiServer, objects } from './apiserver.mjs';
import { launch, open, panel, until } from './browser.mjs';

const PLUGIN = process.env.LOCKSTEP_PLUGIN;
const options = { skip: PLUGIN ? false : 'LOCKSTEP_PLUGIN is not set' };
const folder = mkdtempSync(join(tmpdir(), 'dashboard-'));
const kubeconfig = join(folder, 'config');
let browser;
let cluster;
const programs = [];

before(async () => {
  browser = await launch();
  cluster = await apiServer(objects());
  await cluster.kubeconfig(kubeconfig);
});
after(async () => {
  for (const p of programs) p.kill();
  await browser.close();
  await cluster.close();
});

/** Starts the program, and returns the address that it prints. */
function dashboard(...args) {
  const child = spawn(PLUGIN, ['dashboard', ...args], { env: { ...process.env, KUBECONFIG: kubeconfig } });
  programs.push(child);
  let text = '';
  child.stderr.on('data', (part) => (text += part));
  return new Promise((resolve, reject) => {
    child.stdout.on('data', (part) => {
      text += part;
      const found = /Serving (http\S+)/.exec(text);
      if (found) resolve(found[1]);
    });
    child.on('exit', () => reject(new Error(text)));
  });
}

async function allPages(page) {
  for (const key of ['1', '2', '3', '4', '5', '6', '7']) {
    await page.keyboard.press(key);
    await page.locator('main [data-panel]').first().waitFor();
  }
}

test('all pages of a live cluster are shown without a fault', options, async () => {
  const page = await open(browser, await dashboard('--view', '#/workload?w=ml/llama'));
  assert.match(await panel(page, 'workload'), /ml\/llama.*Running/);
  assert.match(await panel(page, 'incident'), /exit 137 OOMKilled.*<script>/);
  await page.keyboard.press('1');
  await until(async () => (await panel(page, 'accelerators')).includes('64 nvidia.com/gpu'), 'the accelerators');
  await page.keyboard.press('4');
  assert.match(await panel(page, 'map'), /8 nodes; rack > node/);
  await allPages(page);
  assert.deepEqual(page.faults, []);
  assert.equal(page.hosts.size, 1);
  assert.doesNotMatch(await page.title(), /taken/);
});

test('a change in the cluster is on the screen within two seconds', options, async () => {
  const page = await open(browser, await dashboard('--view', '#/workload?w=ml/llama'));
  await panel(page, 'workload');
  const [llama] = objects().TrainingWorkload;
  llama.status.message = 'changed in the cluster';
  cluster.change('TrainingWorkload', llama);
  await until(async () => (await panel(page, 'workload')).includes('changed in the cluster'), 'the change', 2000);
});

test('a lost API server is stale within twelve seconds, and live again after it', options, async () => {
  const page = await open(browser, await dashboard('--view', '#/overview'));
  const fresh = () => page.innerText('#freshness');
  await until(async () => (await fresh()) === 'live', 'live');
  await cluster.close();
  await until(async () => /^stale/.test(await fresh()), 'stale', 12_000);
  assert.match(await panel(page, 'accelerators'), /64 nvidia.com\/gpu/);
  await cluster.listen(cluster.port);
  await until(async () => (await fresh()) === 'live', 'live again', 45_000);
});

test('without the right to list nodes, a sentence names it', options, async () => {
  cluster.refused = ['nodes'];
  const page = await open(browser, await dashboard('--view', '#/overview'));
  await until(async () => (await panel(page, 'accelerators')).includes('lockstep-dashboard'), 'the role');
  await allPages(page);
  assert.deepEqual(page.faults, []);
  cluster.refused = [];
});

test('a snapshot is shown with its age, and without a cluster', options, async () => {
  const file = join(folder, 'cluster.zst');
  await promisify(execFile)(PLUGIN, ['snapshot', '-o', file], { env: { ...process.env, KUBECONFIG: kubeconfig } });
  const page = await open(browser, await dashboard('--snapshot', file, '--view', '#/map'));
  assert.match(await panel(page, 'map'), /8 nodes/);
  assert.match(await page.innerText('#freshness'), /^snapshot of/);
  await allPages(page);
  assert.deepEqual(page.faults, []);
});

test('what-if answers with the screen of the terminal', options, async () => {
  const page = await open(browser, await dashboard('--view', '#/whatif?w=ml/llama'));
  await panel(page, 'screen');
  assert.match(await panel(page, 'answer'), /Fits|Does not fit/);
});

test('the page of a workload lists all workloads until one is chosen', options, async () => {
  const page = await open(browser, await dashboard('--view', '#/workload'));
  assert.match(await panel(page, 'workloads'), /ml\/llama Running/);
  await page.keyboard.press('j');
  await page.keyboard.press('Enter');
  await panel(page, 'incident');
  assert.match(page.url(), /w=ml\/llama/);
});
