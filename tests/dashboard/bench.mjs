// Times and sizes of the page in a browser, as a table for docs/benchmarks.md.

import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { gzipSync } from 'node:zlib';
import { launch, open, until } from './browser.mjs';
import { PAGE } from './program.mjs';
import { address, follow, gangs, kubectl, nodes, resident } from './served.mjs';

const PROBE = 'batch/probe';
const ROUNDS = 5;
const LIMIT_MS = 120_000;

async function measure() {
  const browser = await launch();
  const result = { nodes, gangs, atFirst: resident().now };
  result.queue = [];
  for (let i = 0; i < ROUNDS; i += 1) result.queue.push(await queueOf(browser, address('#/queue')));
  const page = await open(browser, 'about:blank');
  await page.addInitScript(countFrames);
  result.map = await mapOf(page, address('#/map'));
  result.push = await pushes(page);
  result.pan = await pan(page);
  await page.keyboard.press('0');
  for (let i = 0; i < 9; i += 1) await page.keyboard.press('+');
  result.near = await pan(page);
  result.memory = await memory(browser);
  result.program = resident();
  await browser.close();
  return result;
}

/** Until the first rows, and until they have shares, which the engine computes. */
async function queueOf(browser, address) {
  const page = await open(browser, 'about:blank');
  const start = performance.now();
  await page.goto(address);
  const row = page.locator('[data-table=queue] tbody tr');
  await row.first().waitFor({ timeout: LIMIT_MS });
  const rows = performance.now() - start;
  await row.filter({ hasText: '%' }).first().waitFor({ timeout: LIMIT_MS });
  const shares = performance.now() - start;
  await page.context().close();
  return { rows, shares };
}

/** Until the canvas has a coloured square. */
async function mapOf(page, address) {
  const start = performance.now();
  await page.goto(address);
  await until(() => page.evaluate(() => {
    const canvas = document.querySelector('canvas');
    if (!canvas || canvas.width < 2) return false;
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, 120);
    const colours = new Set();
    for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) colours.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
    return colours.size > 4;
  }), 'a map', LIMIT_MS);
  return performance.now() - start;
}

/** A gang starts on 32 nodes, and is suspended again. */
async function pushes(page) {
  const followed = follow('map');
  const probe = () => Object.values(followed.documents.map?.workloads ?? {}).find((w) => w.name === PROBE);
  const isIn = (phase) => until(() => {
    if (followed.ended) throw followed.ended;
    return probe()?.phase === phase;
  }, `${PROBE} is ${phase}`, LIMIT_MS);
  await isIn('Suspended');
  const rounds = [];
  for (let i = 0; i < ROUNDS; i += 1) {
    followed.sizes.patch.length = 0;
    await page.evaluate(() => {
      window.frames.length = 0;
    });
    suspend(false);
    await isIn('Running');
    rounds.push({ bytes: [...followed.sizes.patch], ms: Math.max(...(await page.evaluate(() => window.frames))) });
    suspend(true);
    await isIn('Suspended');
  }
  followed.stop();
  await followed.done;
  return { document: followed.sizes.document[0], rounds };
}

function suspend(value) {
  const [namespace, name] = PROBE.split('/');
  kubectl('patch', 'trainingworkload', name, '-n', namespace, '--type=merge', '-p', JSON.stringify({ spec: { suspend: value } }));
}

/** Main-thread time in each callback of a frame, and the time between frames. */
function countFrames() {
  window.frames = [];
  window.gaps = [];
  let last = 0;
  const ask = window.requestAnimationFrame.bind(window);
  window.requestAnimationFrame = (callback) => ask((time) => {
    const start = performance.now();
    callback(time);
    window.frames.push(performance.now() - start);
    if (time !== last) window.gaps.push(time - last);
    last = time;
  });
}

async function pan(page) {
  const { x, y, width, height } = await page.locator('canvas').boundingBox();
  await page.waitForTimeout(300);
  await page.mouse.move(x + width / 2, y + height / 2);
  await page.mouse.down();
  await page.evaluate(() => {
    window.frames.length = 0;
    window.gaps.length = 0;
  });
  for (let i = 0; i < 120; i += 1) await page.mouse.move(x + width / 2 + (i % 60) * 3, y + height / 2 + (i % 40) * 2);
  await page.mouse.up();
  return page.evaluate(() => {
    const at = (values, part) => values.sort((a, b) => a - b)[Math.floor(part * (values.length - 1))];
    return { median: at(window.frames, 0.5), p95: at(window.frames, 0.95), gap: at(window.gaps, 0.5) };
  });
}

/** Proportional set sizes in MB: of the tab, and of all processes of the browser. */
async function memory(browser) {
  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send('SystemInfo.getProcessInfo');
  const sizes = await Promise.all(processInfo.map(async ({ id, type }) => {
    const text = await readFile(`/proc/${id}/smaps_rollup`, 'utf8').catch(() => '');
    return [type, Number(/^Pss:\s+(\d+)/m.exec(text)?.[1] ?? 0) / 1024];
  }));
  const tabs = sizes.filter(([type]) => type === 'renderer').map(([, size]) => size);
  return { tab: Math.max(...tabs), all: sizes.reduce((sum, [, size]) => sum + size, 0) };
}

const files = await Promise.all((await readdir(PAGE)).map((name) => readFile(PAGE + name)));
const code = files.reduce((sum, f) => sum + f.length, 0);
const packed = files.reduce((sum, f) => sum + gzipSync(f).length, 0);
// Results of earlier sizes are columns of the same table.
const [, , kept] = process.argv;
const results = existsSync(kept) ? JSON.parse(readFileSync(kept, 'utf8')) : [];
results.push(await measure());
writeFileSync(kept, JSON.stringify(results));

const row = (label, of) => console.log(`| ${label} | ${results.map(of).join(' | ')} |`);
const kib = (bytes) => `${(bytes / 1024).toFixed(bytes < 102_400 ? 1 : 0)} KiB`;
const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];
row('', (r) => `${r.nodes.toLocaleString('en')} nodes, ${r.gangs} gangs`);
row('---', () => '---');
const later = (r, part) => `${Math.round(r.queue[0][part])} ms, ${Math.round(median(r.queue.slice(1).map((q) => q[part])))} ms`;
row('first rows of the queue: first reader, later readers', (r) => later(r, 'rows'));
row('the same with shares and places of the engine', (r) => later(r, 'shares'));
row('whole map', (r) => `${Math.round(r.map)} ms`);
row('document of the map', (r) => kib(r.push.document));
row('a gang starts on 32 nodes: pushes', (r) => median(r.push.rounds.map(({ bytes }) => bytes.length)));
row('each push', (r) => {
  const all = r.push.rounds.flatMap(({ bytes }) => bytes);
  return `median ${kib(median(all))}, largest ${kib(Math.max(...all))}`;
});
row('main thread for a frame of them, at most', (r) => `${Math.max(...r.push.rounds.map(({ ms }) => ms)).toFixed(1)} ms`);
const frames = (p) => `${p.median.toFixed(1)} ms, 95 %: ${p.p95.toFixed(1)} ms, a frame each ${p.gap.toFixed(1)} ms`;
row('panning the whole map, main thread each frame', (r) => frames(r.pan));
row('panning enlarged, main thread each frame', (r) => frames(r.near));
row('memory of the program: before the first page, at the end, at most', (r) => `${Math.round(r.atFirst)} MB, ${Math.round(r.program.now)} MB, ${Math.round(r.program.most)} MB`);
row('memory of the tab, of the whole browser', (r) => `${Math.round(r.memory.tab)} MB, ${Math.round(r.memory.all)} MB`);
console.log(`\nCode of the page: ${Math.round(code / 1024)} KiB, ${Math.round(packed / 1024)} KiB packed.`);
