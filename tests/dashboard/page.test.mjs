// The page in a browser, over a server that plays the program.

import assert from 'node:assert/strict';
import { readFile, readdir } from 'node:fs/promises';
import { after, before, beforeEach, test } from 'node:test';
import { launch, open, panel, until } from './browser.mjs';
import { cluster } from './fixture.mjs';
import { PAGE, program } from './program.mjs';

const NOW = Date.now();
let browser;
let server;

before(async () => {
  browser = await launch();
});
after(async () => {
  await browser.close();
});
beforeEach(async (context) => {
  server = await program(cluster({ nodes: 40, gangs: 11, now: NOW }));
  const own = server;
  context.after(async () => {
    await Promise.all(browser.contexts().map((c) => c.close()));
    await own.stop();
  });
});

const view = (address, options) => open(browser, server.open(address), options);

test('each panel of the seven pages shows a value of its document', async () => {
  const page = await view('#/overview');
  const expected = {
    overview: { accelerators: '320 nvidia.com/gpu', idle: 'free, and no gang waits', needs: '3 restarts in 20 min on one node', waits: 'ml/distill', day: '97.3 %' },
    queue: { queue: 'research/eval', reservation: 'Reserved nodes of ml/distill', shares: '41.0 %' },
    'workload?w=ml/llama': { workload: '18,240 (12.1/min)', timeline: 'Running', restarts: 'ContainerExit', incident: 'detect', members: '32 of 32 ready', slowest: 'workers/0/11', nodes: 'b1/r1', events: 'OOMKilled' },
    'workload?w=ml/speech': { members: 'arrived, late: workers/0/0, workers/0/3' },
    'workload?w=ml/urgent': { preemption: 'workers evicts 2 units for 1.3 GPU-h; no set costs less than 1.1 GPU-h. Next best: 4.3 GPU-h.' },
    'map?n=n1': { map: '40 nodes; block > rack > node', legend: 'from victims to the nodes of their preemptor', selection: 'block b1, rack r1', preemption: 'ml/urgent evicts 2 units' },
    'map?w=vision/tuning': { preemption: 'ml/urgent evicts 2 units for 1.3 GPU-h; no set costs less than 1.1 GPU-h. Next best: 4.3 GPU-h. V vision/tuning' },
    whatif: { manifest: 'Manifest', answer: 'Choose a workload or paste a manifest.' },
    incidents: { 'nodes-by-cause': 'n17', times: 'RestartGang', spreads: 'barrier', incidents: 'PodDeleted' },
    health: { doctor: 'API server 1.37.0', agents: 'Supervised', rights: 'All objects of the page can be read.', signals: 'MaintenanceScheduled', configuration: 'backend: Lockstep', unreadable: 'All objects can be read.' },
  };
  for (const [address, panels] of Object.entries(expected)) {
    await page.goto(`${page.url().split('#')[0]}#/${address}`);
    for (const [name, text] of Object.entries(panels)) {
      const shown = await panel(page, name);
      assert.ok(shown.includes(text), `${address}, ${name}: "${text}" is not in "${shown}"`);
    }
  }
  assert.deepEqual(page.faults, []);
});

test('the token leaves the address', async () => {
  const page = await view('#/queue?w=ml/distill');
  await panel(page, 'queue');
  assert.equal(new URL(page.url()).hash, '#/queue?w=ml/distill');
  await page.reload();
  assert.match(await panel(page, 'queue'), /ml\/distill/);
});

test('without a token the page says how to get one', async () => {
  const page = await open(browser, `http://127.0.0.1:${server.port}/`);
  await until(async () => (await page.innerText('body')).includes('kubectl lockstep dashboard'), 'a sentence about the token');
  assert.ok(!(await page.innerText('body')).includes('ml/llama'));
});

test('a wrong token shows the same sentence', async () => {
  const page = await open(browser, `http://127.0.0.1:${server.port}/#t=0000`);
  await until(async () => (await page.innerText('body')).includes('no longer valid'), 'a sentence about the token');
});

test('keys open pages, move in tables, filter and go back', async () => {
  const page = await view('#/overview');
  await panel(page, 'needs');
  const hash = () => new URL(page.url()).hash;
  await page.keyboard.press('2');
  await panel(page, 'queue');
  await page.keyboard.press('j');
  await page.keyboard.press('j');
  await page.keyboard.press('Enter');
  assert.equal(hash(), '#/queue?w=research/eval');
  await page.keyboard.press('/');
  await page.keyboard.type('state:reserves');
  await until(async () => (await page.locator('[data-table=queue] tbody tr').count()) === 1, 'one row after the filter');
  await page.keyboard.press('Escape');
  await page.keyboard.press('Escape');
  await until(async () => !hash().includes('f='), 'no filter');
  await page.keyboard.press('g');
  await page.keyboard.press('m');
  await panel(page, 'map');
  await page.keyboard.press('c');
  assert.match(hash(), /color=workload/);
  await page.keyboard.press('?');
  await page.locator('[role=dialog]').waitFor();
  await page.keyboard.press('Escape');
  await until(async () => (await page.locator('[role=dialog]').count()) === 0, 'no dialog');
  await page.keyboard.press('3');
  await panel(page, 'why');
  await page.keyboard.press('l');
  await until(async () => (await page.evaluate(() => navigator.clipboard.readText())) === 'kubectl lockstep logs eval -n research --failed', 'the command in the clipboard');
});

test('brackets step through the incidents of a workload', async () => {
  const page = await view('#/workload?w=ml/llama');
  await panel(page, 'restarts');
  await page.keyboard.press('[');
  assert.match(page.url(), /i=ml\/llama\/1/);
});

test('t shows a table instead of each picture', async () => {
  const page = await view('#/overview');
  await panel(page, 'day');
  await page.keyboard.press('t');
  for (const [key, tables] of [['1', ['accelerators', 'marks']], ['2', ['reserved']], ['4', ['map']], ['6', ['spreads']]]) {
    await page.keyboard.press(key);
    for (const name of tables) await page.locator(`[data-table="${name}"]`).waitFor();
  }
  assert.equal(await page.locator('canvas').count(), 0);
});

test('names from the cluster stay text', async () => {
  const name = '<script>document.title="taken"</script><img src=x onerror=alert(1)>';
  const docs = server.docs;
  docs.overview.needs.unshift({ workload: `ml/${name}`, reason: name, next: name });
  docs.queue.rows['ml/evil'] = { namespace: 'ml', workload: name, podGroup: 'evil', priority: 1, state: 'Waits', message: name, needs: '1 n x 8' };
  docs.map.nodes[name] = { path: [name, name], size: 8, state: 'ready', use: [], incidents: 0 };
  docs.incidents.rows.evil = { at: new Date(NOW).toISOString(), workload: `ml/${name}`, cause: { kind: name, message: name }, node: name, domain: '', attempt: 1, action: name, counted: true };
  const page = await view('#/overview');
  for (const [key, panels] of [['1', 'needs'], ['2', 'queue'], ['4', 'map'], ['6', 'incidents']]) {
    await page.keyboard.press(key);
    await panel(page, panels);
    assert.equal(await page.locator('main img, main script').count(), 0);
  }
  assert.match(await panel(page, 'incidents'), /<script>/);
  assert.doesNotMatch(await page.title(), /taken/);
  assert.deepEqual(page.faults, []);
});

test('a cut connection is stale at once, and live again after it', async () => {
  const page = await view('#/queue');
  await until(async () => (await page.innerText('#freshness')) === 'live', 'live');
  server.down = true;
  server.cut();
  await until(async () => /^stale/.test(await page.innerText('#freshness')), 'stale', 5000);
  assert.match(await page.getAttribute('body', 'class'), /stale/);
  assert.match(await panel(page, 'queue'), /ml\/distill/);
  server.down = false;
  await until(async () => (await page.innerText('#freshness')) === 'live', 'live again', 15_000);
});

test('a silent program is stale within the beat limit', async () => {
  const page = await view('#/queue');
  await panel(page, 'queue');
  server.beats = false;
  await until(async () => /^stale/.test(await page.innerText('#freshness')), 'stale', 14_500);
});

test('a patch changes its row and nothing else', async () => {
  const page = await view('#/queue');
  await panel(page, 'queue');
  await page.focus('#filter');
  const before = await page.evaluate(() => {
    window.rows = [...document.querySelectorAll('[data-table=queue] tbody tr')];
    return window.rows.map((r) => r.getBoundingClientRect().top);
  });
  const [first] = Object.keys(server.docs.queue.rows);
  server.push('queue', { rows: { [first]: { message: 'changed in the cluster' } } });
  await until(async () => (await panel(page, 'queue')).includes('changed in the cluster'), 'the change on the screen', 1000);
  const after = await page.evaluate(() => [...document.querySelectorAll('[data-table=queue] tbody tr')].map((r, i) => (r === window.rows[i] ? r.getBoundingClientRect().top : 'another row')));
  assert.deepEqual(after, before);
  assert.equal(await page.evaluate(() => document.activeElement.id), 'filter');
});

test('space pauses the page, and space resumes it', async () => {
  const page = await view('#/queue');
  await panel(page, 'queue');
  await page.keyboard.press(' ');
  const [first] = Object.keys(server.docs.queue.rows);
  server.push('queue', { rows: { [first]: { message: 'after the pause' } } });
  await until(async () => /^paused/.test(await page.innerText('#freshness')), 'paused');
  assert.doesNotMatch(await panel(page, 'queue'), /after the pause/);
  await page.keyboard.press(' ');
  await until(async () => (await panel(page, 'queue')).includes('after the pause'), 'the change');
});

test('a tenant sees own amounts, and the right that lacks with its command', async () => {
  const { frame, overview, queue } = server.docs;
  Object.assign(frame, { namespace: 'vision', namespaces: ['vision'], nodes: null, missing: [{ what: 'nodes', verb: 'list', message: 'Totals need the right to list nodes.', command: 'kubectl create clusterrolebinding ana-lockstep --clusterrole=lockstep-dashboard --user=ana' }] });
  Object.assign(overview, { total: null, bar: [], idle: [], tenant: { held: 64, requested: 40 } });
  queue.onlyNamespace = 'vision';
  for (const row of Object.values(queue.rows)) delete row.share;
  server.docs.map.nodes = {};
  const page = await view('#/overview');
  const shown = await panel(page, 'accelerators');
  for (const text of ['64', '40', 'Totals need the right to list nodes.', '--clusterrole=lockstep-dashboard']) assert.ok(shown.includes(text), `${text} is not in ${shown}`);
  assert.ok(await page.isDisabled('#namespace'));
  for (const [key, name] of [['2', 'queue'], ['4', 'map'], ['7', 'rights']]) {
    await page.keyboard.press(key);
    await until(async () => (await panel(page, name)).includes('Totals need the right'), `the sentence on page ${key}`);
    // An unknown share is not a namespace without a share.
    assert.doesNotMatch(await panel(page, name), /\bnone\b/);
  }
});

test('states without data have a sentence and a command', async () => {
  const { frame, docs } = { frame: server.docs.frame, docs: server.docs };
  docs.list = { list: {} };
  docs.queue = { rows: {}, shares: {}, reservations: {} };
  docs.incidents = { rows: {} };
  docs.health = { agents: { byTier: {}, byVersion: {}, missing: [] }, nodes: { signals: [] }, unreadable: ['TrainingWorkload ml/old: unknown field spec.gang'] };
  docs.overview = { ...docs.overview, total: 0, bar: [], idle: [], needs: [], waits: { gangs: 0, accelerators: 0, first: [] }, day: { incidents: 0, marks: [], byCause: {} } };
  frame.leader = { holder: 'lockstep-manager-a', renewedAt: new Date(NOW - 300_000).toISOString(), old: true };
  const page = await view('#/overview');
  const sentences = { 1: { 'no-leader': 'No manager leads since', accelerators: 'No node has accelerators', needs: 'Nothing needs a change.', waits: 'No gang waits.', day: 'No incident' }, 2: { queue: 'No gang waits.', reservation: 'No gang has reserved nodes.' }, 3: { workloads: 'samples/06-without-accelerators.yaml' }, 6: { incidents: 'No incident is recorded.' }, 7: { doctor: 'checks are running', agents: 'config/overlays/full', unreadable: 'unknown field spec.gang' } };
  for (const [key, panels] of Object.entries(sentences)) {
    await page.keyboard.press(key);
    for (const [name, text] of Object.entries(panels)) assert.ok((await panel(page, name)).includes(text), `page ${key}, ${name}`);
  }
  assert.deepEqual(page.faults, []);
});

test('a snapshot, a missing installation and an unknown workload are named', async () => {
  Object.assign(server.docs.frame, { freshness: { state: 'snapshot', since: new Date(NOW - 3 * 86_400_000).toISOString() }, leader: null });
  const page = await view('#/workload?w=ml/gone');
  await until(async () => /^snapshot of .*3d old$/.test(await page.innerText('#freshness')), 'the age of the snapshot');
  assert.equal(await page.locator('[data-panel=no-leader]').count(), 0);
  server.send('workload', { notFound: 'Workload ml/gone does not exist.' });
  await until(async () => (await panel(page, 'workload')).includes('does not exist'), 'the sentence');
  server.send('frame', { ...server.docs.frame, notInstalled: 'Lockstep is not installed in cluster prod.' });
  await until(async () => (await page.innerText('main')).includes('not installed in cluster prod'), 'the sentence');
});

test('light and dark follow the system, and the switch', async () => {
  const ground = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await view('#/overview', { colorScheme: 'light' });
  await panel(light, 'needs');
  const dark = await view('#/overview', { colorScheme: 'dark' });
  await panel(dark, 'needs');
  assert.notEqual(await ground(light), await ground(dark));
  await light.click('[aria-label="Light or dark"]');
  await until(async () => (await ground(light)) === (await ground(dark)), 'dark after the switch');
});

test('the text of both themes has the contrast of WCAG AA', async () => {
  for (const colorScheme of ['light', 'dark']) {
    const page = await view('#/overview', { colorScheme });
    await panel(page, 'day');
    const low = await page.evaluate(lowContrast);
    assert.deepEqual(low, [], colorScheme);
  }
});

function lowContrast() {
  const parse = (text) => (/rgba?\(([^)]+)\)/.exec(text)?.[1] ?? '').split(/[ ,/]+/).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const element of document.querySelectorAll('body *')) {
    if (![...element.childNodes].some((n) => n.nodeType === 3 && n.nodeValue.trim())) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color).slice(0, 3)), light(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5 && !element.closest('[disabled]')) low.push(`${element.tagName} ${element.className} "${element.textContent.slice(0, 30)}" ${ratio.toFixed(2)}`);
  }
  return low;
}

test('a click on the map selects node and workload; a box goes to what-if', async () => {
  const page = await view('#/map');
  await panel(page, 'map');
  const canvas = page.locator('canvas');
  const { x, y } = await canvas.boundingBox();
  await until(async () => {
    for (const dx of [40, 80, 120]) await page.mouse.click(x + dx, y + 50);
    return /n=n\d+/.test(page.url());
  }, 'a selected node');
  assert.match(page.url(), /w=ml\/llama/);
  assert.match(await panel(page, 'selection'), /8 of 8/);
  await page.keyboard.down('Shift');
  await page.mouse.move(x + 5, y + 20);
  await page.mouse.down();
  await page.mouse.move(x + 320, y + 120, { steps: 4 });
  await page.mouse.up();
  await page.keyboard.up('Shift');
  await until(async () => /nodes selected/.test(await panel(page, 'selection')), 'the sum of the box');
  await page.keyboard.press('w');
  await until(async () => /#\/whatif\?.*d=n1,/.test(page.url()), 'the drained nodes in the address');
});

/** Number of pixels of the canvas in the colour of arrows and outlines. */
function marked() {
  const canvas = document.querySelector('canvas');
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const accent = getComputedStyle(document.body).getPropertyValue('--accent').trim();
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(accent.slice(i, i + 2), 16));
  let found = 0;
  for (let i = 0; i < data.length; i += 4) if (data[i] === r && data[i + 1] === g && data[i + 2] === b) found += 1;
  return found;
}

test('the whole map of 20,000 nodes fits, and of 5,000 with three pixels for each square', async () => {
  const page = await view('#/map');
  const fit = (nodes, width, height) => page.evaluate(async (given) => {
    const { groupNodes, place } = await import('/assets/layout.js');
    const names = Array.from({ length: given.nodes }, (_, i) => String(i));
    const records = Object.fromEntries(names.map((name, i) => [name, { path: [`zone-${Math.floor(i / 128)}`, `rack-${Math.floor(i / 16)}`] }]));
    const placed = place(groupNodes(names, records), given.nodes, 8, given.width, given.height);
    return { cell: placed.cell, inside: placed.width <= given.width && placed.height <= given.height };
  }, { nodes, width, height });
  assert.deepEqual(await fit(500, 800, 620), { cell: 6, inside: true });
  assert.deepEqual(await fit(5_000, 1_450, 810), { cell: 3, inside: true });
  assert.deepEqual(await fit(5_000, 830, 560), { cell: 1.5, inside: true });
  assert.deepEqual(await fit(20_000, 1_450, 810), { cell: 1, inside: true });
});

test('arrows lead from victims to their preemptor until the preemption ends', async () => {
  const page = await view('#/map');
  await panel(page, 'preemption');
  await until(async () => (await page.evaluate(marked)) > 50, 'an arrow');
  server.push('map', { preemptions: [{ ...server.docs.map.preemptions[0], nodes: server.docs.map.preemptions[0].victims[0].nodes }] });
  await until(async () => (await page.evaluate(marked)) > 50, 'an arrow to the nodes of the victim itself');
  server.push('map', { preemptions: [] });
  await until(async () => (await page.evaluate(marked)) === 0, 'no arrow');
  assert.equal(await page.locator('[data-panel=preemption]').count(), 0);
});

test('a workload without part in a preemption hides its card, not its arrow', async () => {
  const page = await view('#/map?w=ml/urgent');
  await panel(page, 'preemption');
  await page.locator('[data-panel=preemption] .link', { hasText: 'vision/tuning' }).press('Enter');
  await until(async () => /#\/workload\?w=vision\/tuning/.test(page.url()), 'the page of the victim');
  await page.goto(`${page.url().split('#')[0]}#/map?w=ml/llama`);
  await panel(page, 'legend');
  assert.equal(await page.locator('[data-panel=preemption]').count(), 0);
  assert.match(await panel(page, 'legend'), /from victims to the nodes of their preemptor/);
});

test('box plots show least, quartiles, median and most, also as numbers', async () => {
  const stops = [100, 200, 300, 400, 5000];
  server.docs.incidents.rows = Object.fromEntries(stops.map((stop, i) => [`ml/llama/${i}`, { at: new Date(NOW - i).toISOString(), workload: 'ml/llama', cause: { kind: 'Hang' }, node: 'n1', domain: '', attempt: i, action: 'RestartGang', counted: true, totalMs: stop, phases: { detect: 10, decide: 0, stop, barrier: 1, start: 0 } }]));
  const page = await view('#/incidents', { viewport: { width: 400, height: 800 } });
  await panel(page, 'spreads');
  const lanes = page.locator('[data-panel=spreads] .lane');
  assert.deepEqual(await lanes.evaluateAll((all) => all.map((l) => l.title)), [
    'RestartGang detect: 10 ms to 10 ms, middle half 10 ms to 10 ms, median 10 ms',
    'RestartGang stop: 100 ms to 5.0 s, middle half 200 ms to 400 ms, median 300 ms',
    'RestartGang barrier: 1 ms to 1 ms, middle half 1 ms to 1 ms, median 1 ms',
  ]);
  // The axis has four decades: 200 ms are at log(200) / 4.
  const left = await lanes.nth(1).locator('.box').evaluate((e) => parseFloat(e.style.left));
  assert.ok(Math.abs(left - 25 * Math.log10(200)) < 0.01, String(left));
  const inside = await page.locator('[data-panel=spreads]').evaluate((e) => e.scrollWidth <= e.clientWidth);
  assert.ok(inside, 'the picture is wider than its panel');
  await page.keyboard.press('t');
  const row = page.locator('[data-table=spreads] tbody tr', { hasText: 'stop' });
  await row.waitFor();
  assert.deepEqual(await row.locator('td').allInnerTexts(), ['RestartGang stop', '5', '100 ms', '200 ms', '300 ms', '400 ms', '5.0 s']);
});

test('what-if answers after a control moves, and shows errors as text', async () => {
  const page = await view('#/whatif?w=ml/llama');
  await until(async () => (await panel(page, 'answer')).includes('Fits after evicting 1 victim'), 'the answer');
  assert.match(await panel(page, 'answer'), /podgroup ml\/young-workers-77aa/);
  await page.fill('[aria-label="replicas, number"]', '2');
  await until(async () => /Fits cost/i.test(await panel(page, 'answer')), 'the second answer');
  await page.click('text=Keep for comparison');
  assert.match(await panel(page, 'variants'), /replicas 2/);
  assert.match(await panel(page, 'screen'), /Assumes that/);
  await page.fill('textarea', 'kind: Nothing');
  await until(async () => (await panel(page, 'answer')).includes('a number is needed'), 'the error');
});

test('the page requests nothing from another host, and its policy allows no inline script', async () => {
  const page = await view('#/overview');
  for (const key of ['1', '2', '3', '4', '5', '6', '7']) {
    await page.keyboard.press(key);
    await page.locator('[data-panel]').first().waitFor();
  }
  assert.deepEqual([...page.hosts], [`127.0.0.1:${server.port}`]);
  await page.evaluate(() => {
    const script = document.createElement('script');
    script.textContent = 'window.taken = true';
    document.body.append(script);
  });
  assert.equal(await page.evaluate(() => window.taken), undefined);
});

test('of ten thousand incidents only the visible rows exist', async () => {
  for (let i = 0; i < 10_000; i += 1) {
    server.docs.incidents.rows[`ml/llama/x${i}`] = { at: new Date(NOW - i * 5000).toISOString(), workload: 'ml/llama', cause: { kind: 'Hang', message: `number ${i}` }, node: 'n3', domain: '', attempt: i, action: 'RestartGang', counted: true, totalMs: 300, lostAcceleratorSeconds: 10, restartAcceleratorSeconds: 1 };
  }
  const page = await view('#/incidents');
  await panel(page, 'incidents');
  const rows = page.locator('[data-table=incidents] tbody tr');
  assert.ok((await rows.count()) < 100);
  const [download] = await Promise.all([page.waitForEvent('download'), page.click('text=Export CSV')]);
  const lines = (await readFile(await download.path(), 'utf8')).split('\n');
  assert.equal(lines[0].split(',')[0], 'at');
  assert.ok(lines.length > 10_000);
  await page.locator('[data-table=incidents]').evaluate((e) => e.scrollTo(0, 28 * 9000));
  await until(async () => /number 89\d\d/.test(await panel(page, 'incidents')), 'rows after a scroll');
});

test('a hidden tab closes its stream', async () => {
  const page = await view('#/queue');
  await panel(page, 'queue');
  const streams = () => server.requests.filter((r) => r.startsWith('/api/stream')).length;
  const before = streams();
  const turn = (hidden) => page.evaluate((h) => {
    Object.defineProperty(document, 'hidden', { value: h, configurable: true });
    document.dispatchEvent(new Event('visibilitychange'));
  }, hidden);
  await turn(true);
  await until(() => server.streams() === 0, 'no stream');
  assert.doesNotMatch((await page.getAttribute('body', 'class')) ?? '', /stale/);
  await turn(false);
  await until(() => streams() === before + 1, 'a new stream');
});

test('the page has at most 3,000 lines and 250 KB', async () => {
  const files = await Promise.all((await readdir(PAGE)).map((name) => readFile(PAGE + name, 'utf8')));
  const lines = files.reduce((sum, text) => sum + text.split('\n').length - 1, 0);
  const bytes = files.reduce((sum, text) => sum + Buffer.byteLength(text), 0);
  assert.ok(lines <= 3000 && bytes <= 250_000, `${lines} lines, ${bytes} bytes`);
});

test('a column sorts a table by click and by Enter, and the order stays', async () => {
  const page = await view('#/incidents');
  await panel(page, 'incidents');
  const first = () => page.locator('[data-table=incidents] tbody tr td:nth-child(4)').first().innerText();
  const number = async () => Number((await first()).slice(1));
  await page.click('[data-table=incidents] th:has-text("Node")');
  const nodes = Object.values(server.docs.incidents.rows).map((r) => Number(r.node.slice(1)));
  await until(async () => (await number()) === Math.min(...nodes), 'the first node');
  await page.locator('[data-table=incidents] th:has-text("Node")').press('Enter');
  await until(async () => (await number()) === Math.max(...nodes), 'the last node');
  const before = await first();
  server.push('incidents', { rows: { 'ml/new': { at: new Date(NOW).toISOString(), workload: 'ml/new', cause: { kind: 'Hang' }, node: 'n1', domain: '', attempt: 1, action: 'RestartGang', counted: true } } });
  await until(async () => (await panel(page, 'incidents')).includes('ml/new'), 'the new row');
  assert.equal(await first(), before);
});

test('a chosen namespace filters all pages', async () => {
  const page = await view('#/overview');
  await panel(page, 'needs');
  await page.selectOption('#namespace', 'research');
  await until(async () => !(await panel(page, 'waits')).includes('ml/distill'), 'the gangs of the namespace');
  assert.match(await panel(page, 'waits'), /research\/eval/);
  assert.doesNotMatch(await panel(page, 'needs'), /ml\/llama/);
  for (const [key, name] of [['2', 'queue'], ['3', 'workloads'], ['6', 'incidents']]) {
    await page.keyboard.press(key);
    await until(async () => /research\//.test(await panel(page, name)), `page ${key}`);
    assert.doesNotMatch(await panel(page, name), /ml\//);
  }
  assert.match(page.url(), /ns=research/);
});
