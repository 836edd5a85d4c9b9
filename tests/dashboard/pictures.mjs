// Pictures of the page for the docs: `node pictures.mjs FOLDER GALLERY`. GALLERY becomes a page with links to all pictures.

import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { dirname, relative } from 'node:path';
import { launch, open, until } from './browser.mjs';
import { address, follow, nodes } from './served.mjs';

/** Size of the pictures that pages of the docs show. Other pictures are in a folder of their own. */
const SHOWN = { nodes: 500, width: 1280 };
const VIEWPORTS = [{ width: 1280, height: 880 }, { width: 1920, height: 1080 }];
const GANG = 'ml/llama';
const LIMIT_MS = 120_000;
const SIZES = [500, 5000];
const THEMES = ['light', 'dark'];

/** Views, and what they have when they are complete. */
async function views() {
  const node = await worstNode();
  return {
    overview: ['#/overview', '[data-panel=day]'],
    queue: ['#/queue?w=ml/pretrain', '[data-table=queue] tbody tr'],
    workload: [`#/workload?w=${GANG}`, '[data-panel=members] .members'],
    map: [`#/map?w=${GANG}&n=${node}`, '[data-panel=legend]'],
    whatif: ['#/whatif?w=ml/pretrain', '[data-panel=screen]'],
    incidents: ['#/incidents', '[data-table=incidents] tbody tr'],
    health: ['#/health', '[data-panel=doctor] .checks'],
  };
}

/** Name of the node with most incidents. */
async function worstNode() {
  const followed = follow('map');
  await until(() => {
    if (followed.ended) throw followed.ended;
    return followed.documents.map;
  }, 'the document of the map', LIMIT_MS);
  followed.stop();
  await followed.done;
  const [[name]] = Object.entries(followed.documents.map.nodes).sort(([, a], [, b]) => b.incidents - a.incidents);
  return name;
}

function pathOf(folder, { name, size, theme, width }) {
  if (size === SHOWN.nodes && width === SHOWN.width) return `${folder}/dashboard-${name}-${theme}.png`;
  return `${folder}/dashboard/${size}-${name}-${theme}-${width}.png`;
}

/** Writes a page with the pictures that exist. */
function gallery(path, folder, names) {
  const widths = VIEWPORTS.map(({ width }) => width);
  const link = (picture, label) => (existsSync(pathOf(folder, picture)) ? `[${label}](${relative(dirname(path), pathOf(folder, picture))})` : '-');
  const links = (name, size, theme) => widths.map((width) => link({ name, size, theme, width }, `${width}`)).join(', ');
  const columns = SIZES.flatMap((size) => THEMES.map((theme) => ({ size, theme })));
  const title = (name) => (name === 'whatif' ? 'What-if' : `${name[0].toUpperCase()}${name.slice(1)}`);
  const line = (cells) => `| ${cells.join(' | ')} |`;
  const rows = names.map((name) => line([title(name), ...columns.map(({ size, theme }) => links(name, size, theme))]));
  const shown = names.map((name) => `## ${title(name)}\n\n![${title(name)}](${relative(dirname(path), pathOf(folder, { name, size: SHOWN.nodes, theme: 'light', width: SHOWN.width }))})\n`);
  writeFileSync(path, `# Pictures of the dashboard

\`make pictures-dashboard\` takes them over a real control plane whose nodes are hollow: 500 nodes with 200 gangs, and 5,000 nodes with 500
gangs. The cluster is full: 30 gangs wait. A preemption is in progress, and members have failed. Links name the width in pixels.

${[line(['page', ...columns.map(({ size, theme }) => `${size.toLocaleString('en')} nodes, ${theme}`)]), line(['---', ...columns.map(() => '---')]), ...rows].join('\n')}

${shown.join('\n')}`);
}

const [, , folder, page] = process.argv;
mkdirSync(`${folder}/dashboard`, { recursive: true });
const browser = await launch();
const all = await views();
for (const [name, [view, last]] of Object.entries(all)) {
  for (const theme of THEMES) {
    for (const viewport of VIEWPORTS) await take(view, last, { theme, viewport, path: pathOf(folder, { name, size: nodes, theme, width: viewport.width }) });
  }
  console.log(`${name}: 4 pictures`);
}
await browser.close();
gallery(page, folder, Object.keys(all));

async function take(view, last, { theme, viewport, path }) {
  const opened = await open(browser, address(view), { colorScheme: theme, viewport });
  await opened.locator(last).first().waitFor({ timeout: LIMIT_MS });
  // The canvas is drawn in the frame after its element.
  await opened.waitForTimeout(400);
  await opened.screenshot({ path });
  execFileSync('pngquant', ['--force', '--skip-if-larger', '--strip', '--speed', '1', '--output', path, '--', path]);
  await opened.context().close();
}
