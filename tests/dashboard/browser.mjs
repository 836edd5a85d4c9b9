// A headless browser, and what the tests read from the page.

import { createRequire } from 'node:module';

const { chromium } = createRequire(new URL('../../target/dashboard/', import.meta.url))('playwright-core');

/** Starts the browser that `CHROMIUM` names. */
export function launch(more = []) {
  return chromium.launch({
    executablePath: process.env.CHROMIUM || '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', ...more],
  });
}

/** Opens an address. `faults` collects errors of the page; `hosts` the hosts that it requests. */
export async function open(browser, address, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  await context.grantPermissions(['clipboard-read', 'clipboard-write']);
  const page = await context.newPage();
  page.faults = [];
  page.hosts = new Set();
  page.on('pageerror', (error) => page.faults.push(error.message));
  page.on('console', (message) => {
    if (message.type() === 'error' && !/Failed to load resource|net::ERR/.test(message.text())) page.faults.push(message.text());
  });
  page.on('request', (request) => page.hosts.add(new URL(request.url()).host));
  await page.goto(address);
  return page;
}

/** Text of a panel. */
export async function panel(page, name) {
  const element = page.locator(`[data-panel="${name}"]`).first();
  await element.waitFor({ timeout: 10_000 });
  return (await element.innerText()).replaceAll(/\s+/g, ' ');
}

/** Waits until a condition of the page holds. */
export async function until(check, what, timeout = 10_000) {
  const end = Date.now() + timeout;
  for (;;) {
    if (await check()) return;
    if (Date.now() > end) throw new Error(`not within ${timeout} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
