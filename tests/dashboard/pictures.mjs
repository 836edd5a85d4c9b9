// Pictures of the page for the docs: `node pictures.mjs FOLDER`.

import { execFileSync } from 'node:child_process';
import { launch, open, panel } from './browser.mjs';
import { cluster } from './fixture.mjs';
import { program } from './program.mjs';

const PAGES = { overview: ['#/overview', 'day'], queue: ['#/queue', 'queue'], workload: ['#/workload?w=ml/llama', 'members'], map: ['#/map?w=ml/llama&n=n17', 'legend'] };

const folder = process.argv[2];
const server = await program(cluster({ nodes: 160, gangs: 30 }));
const browser = await launch();
for (const colorScheme of ['light', 'dark']) {
  for (const [name, [address, last]] of Object.entries(PAGES)) {
    const page = await open(browser, server.open(address), { colorScheme, viewport: { width: 1280, height: 880 } });
    await panel(page, last);
    await page.waitForTimeout(400);
    const path = `${folder}/dashboard-${name}-${colorScheme}.png`;
    await page.screenshot({ path });
    execFileSync('pngquant', ['--force', '--skip-if-larger', '--strip', '--speed', '1', '--output', path, '--', path]);
  }
}
await browser.close();
await server.stop();
