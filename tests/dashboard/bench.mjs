// Times and sizes of the page in a browser, as a table for docs/benchmarks.md.

import { readdir, readFile } from 'node:fs/promises';
import { gzipSync } from 'node:zlib';
import { launch, open, until } from './browser.mjs';
import { cluster } from './fixture.mjs';
import { PAGE, program } from './program.mjs';

const SIZES = [[1000, 200], [5000, 500]];

async function measure(nodes, gangs) {
  const docs = cluster({ nodes, gangs });
  const server = await program(docs);
  const browser = await launch();
  const result = { nodes, gangs };
  result.rows = await firstOf(browser, server.open('#/queue'), '[data-table=queue] tbody tr');
  const page = await open(browser, 'about:blank');
  await page.addInitScript(countFrames);
  result.map = await mapOf(page, server.open('#/map'));
  result.document = JSON.stringify(docs.map).length;
  result.push = await pushes(page, server, docs);
  result.pan = await pan(page);
  await page.keyboard.press('0');
  for (let i = 0; i < 9; i += 1) await page.keyboard.press('+');
  result.near = await pan(page);
  result.memory = await memory(browser);
  await browser.close();
  await server.stop();
  return result;
}

async function firstOf(browser, address, selector) {
  const page = await open(browser, 'about:blank');
  const start = performance.now();
  await page.goto(address);
  await page.locator(selector).first().waitFor();
  const took = performance.now() - start;
  await page.context().close();
  return took;
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
  }), 'a map', 30_000);
  return performance.now() - start;
}

/** Half a second of changes of a busy cluster: one gang starts on 32 nodes. Until it is drawn. */
async function pushes(page, server, docs) {
  const names = Object.keys(docs.map.nodes);
  const took = [];
  for (let i = 0; i < 10; i += 1) {
    const nodes = Object.fromEntries(names.slice(i * 32, i * 32 + 32).map((n) => [n, { use: [[3, 8, i % 2 === 0 ? 'S' : 'X']] }]));
    const before = await page.evaluate(() => window.frames.length);
    server.push('map', { nodes });
    await page.waitForTimeout(500);
    took.push(...(await page.evaluate((from) => window.frames.slice(from), before)));
  }
  return { bytes: Math.max(...server.pushed), ms: Math.max(...took) };
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
const results = [];
for (const [nodes, gangs] of SIZES) results.push(await measure(nodes, gangs));
const row = (label, of) => console.log(`| ${label} | ${results.map(of).join(' | ')} |`);
row('', (r) => `${r.nodes.toLocaleString('en')} nodes, ${r.gangs} workloads`);
row('---', () => '---');
row('first rows of the queue', (r) => `${Math.round(r.rows)} ms`);
row('whole map', (r) => `${Math.round(r.map)} ms`);
row('document of the map', (r) => `${Math.round(r.document / 1024)} KiB`);
row('push: a gang starts on 32 nodes', (r) => `${(r.push.bytes / 1024).toFixed(1)} KiB, ${r.push.ms.toFixed(1)} ms of the main thread at most`);
const frames = (p) => `${p.median.toFixed(1)} ms, 95 %: ${p.p95.toFixed(1)} ms, a frame each ${p.gap.toFixed(1)} ms`;
row('panning the whole map, main thread each frame', (r) => frames(r.pan));
row('panning enlarged, main thread each frame', (r) => frames(r.near));
row('memory of the tab, of the whole browser', (r) => `${Math.round(r.memory.tab)} MB, ${Math.round(r.memory.all)} MB`);
console.log(`\nCode of the page: ${Math.round(code / 1024)} KiB, ${Math.round(packed / 1024)} KiB packed.`);
