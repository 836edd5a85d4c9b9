// Draws a dashboard as far as ours go: it reads the file that Grafana imports and asks Prometheus what Grafana asks.
"use strict";

// What `picture.js` says: the dashboard, where Prometheus is, since when to show, and what the reader has chosen; the address of the page
// may choose something else.
const { dashboard, prometheus, since, rateInterval } = window.PICTURE;
const chosen = { ...window.PICTURE.chosen, ...Object.fromEntries(new URLSearchParams(location.search)) };
const ROW = 30, COLUMNS = 24, GAP = 6;
const COLOURS = ["#1f77b4", "#e07b00", "#2f9e44", "#c92a2a", "#7048e8", "#0b7285", "#a61e4d", "#868e96", "#5c940d", "#862e9c"];

const to = Math.floor(Date.now() / 1000), from = since, seconds = to - from, step = Math.max(1, Math.round(seconds / 300));

function asked(expr) {
  return Object.entries({ ...chosen, __rate_interval: rateInterval })
    .reduce((text, [name, value]) => text.replaceAll("${" + name + "}", value).replaceAll("$" + name, value), expr);
}

async function ask(target, now) {
  const parameters = new URLSearchParams({ query: asked(target.expr), ...(now ? { time: to } : { start: from, end: to, step }) });
  const answer = await fetch(`http://${prometheus}/api/v1/${now ? "query" : "query_range"}?${parameters}`);
  const body = await answer.json();
  if (body.status !== "success") throw new Error(`${target.expr}: ${body.error}`);
  return body.data.result.map(series => ({ ...series, name: named(target.legendFormat, series.metric) }));
}

function named(legend, labels) {
  const text = legend.replace(/{{\s*(\w+)\s*}}/g, (_, label) => labels[label] || (label === "priority_class" ? "(no class)" : "-"));
  return text.trim();
}

function short(value) {
  const size = Math.abs(value);
  for (const [from, by, suffix] of [[1e9, 1e9, " G"], [1e6, 1e6, " M"], [1e4, 1e3, " K"]]) {
    if (size >= from) return trimmed(value / by) + suffix;
  }
  return trimmed(value);
}

function trimmed(value) {
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : Math.abs(value) >= 0.1 || value === 0 ? 2 : 3;
  return String(Number(value.toFixed(digits)));
}

function duration(value) {
  if (value === 0) return "0 s";
  for (const [from, by, suffix] of [[172800, 86400, " d"], [5400, 3600, " h"], [90, 60, " min"], [1, 1, " s"], [0.001, 0.001, " ms"]]) {
    if (value >= from) return trimmed(value / by) + suffix;
  }
  return trimmed(value * 1e6) + " µs";
}

function bytes(value) {
  for (const [by, suffix] of [[2 ** 30, " GiB"], [2 ** 20, " MiB"], [2 ** 10, " KiB"]]) {
    if (value >= by) return trimmed(value / by) + suffix;
  }
  return trimmed(value) + " B";
}

const DECIMAL = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
const DURATIONS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200];
const UNITS = { short, s: duration, bytes, percentunit: v => trimmed(v * 100) + " %", ops: v => trimmed(v) + " /s", reqps: v => trimmed(v) + " /s" };

// Axes have the number alone where the unit is a word.
function unitOf(panel, axis) {
  const { unit } = panel.fieldConfig.defaults;
  if (!unit.startsWith("suffix:")) return UNITS[unit];
  return axis ? short : value => short(value) + unit.slice("suffix:".length);
}

function element(kind, parent, text, name) {
  const made = document.createElement(kind);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

// A property that an override of the panel gives to a series or a column.
function property(panel, name, id) {
  const found = panel.fieldConfig.overrides.find(o => o.matcher.options === name);
  return found?.properties.find(p => p.id === id)?.value;
}

function colour(panel, name, at) {
  const fixed = property(panel, name, "color")?.fixedColor ?? property(panel, name, "thresholds")?.steps[1].color;
  return fixed ?? COLOURS[at % COLOURS.length];
}

// The colour of a value by the thresholds of its panel.
function graded(panel, value) {
  return panel.fieldConfig.defaults.thresholds?.steps.findLast(step => step.value === null || value >= step.value).color;
}

// Halfway to white, and not transparent: what lies below must not shine through.
function light(colour) {
  const parts = [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
  return `rgb(${parts.map(part => Math.round((part + 255) / 2)).join(", ")})`;
}

// Values at every step; null where there is none.
function onGrid(series) {
  const known = new Map(series.values.map(([time, value]) => [Math.round((time - from) / step), Number(value)]));
  return times.map((_, at) => (Number.isFinite(known.get(at)) ? known.get(at) : null));
}

const times = Array.from({ length: Math.floor(seconds / step) + 1 }, (_, at) => from + at * step);

function graph(box, panel, all) {
  const stacked = panel.fieldConfig.defaults.custom.stacking !== undefined;
  const unit = unitOf(panel), onAxis = unitOf(panel, true);
  const shown = all.map((series, at) => ({ name: series.name, values: onGrid(series), colour: colour(panel, series.name, at) }))
    .filter(series => series.values.some(v => v !== null));
  if (!shown.length) return element("div", box, "no data", "empty");
  const place = element("div", box, undefined, "graph");
  const legend = element("div", box, undefined, "legend");
  for (const { name, values, colour } of shown) {
    const entry = element("span", legend);
    element("i", entry).style.background = colour;
    entry.append(name);
    const last = values.at(-1) ?? values.at(-2);
    element("b", entry, last === null ? "-" : unit(last));
  }
  let drawn = shown.map(series => series.values);
  if (stacked) {
    const sums = times.map(() => 0);
    drawn = drawn.map(values => values.map((v, at) => (sums[at] += v ?? 0)));
  }
  const most = Math.max(...drawn.flat().filter(v => v !== null));
  const series = shown.map(({ colour }) => ({
    stroke: colour, width: stacked ? 1 : 1.8, fill: stacked ? light(colour) : undefined, points: { show: false }, spanGaps: false,
  }));
  const order = shown.map((_, at) => at);
  // Of what lies on top of each other the highest is drawn first.
  if (stacked) order.reverse();
  const axis = { stroke: "#6b7280", font: "11px DejaVu Sans", grid: { stroke: "#eceff1", width: 1 }, ticks: { show: false } };
  const upwards = { ...axis, size: 58, space: 22, values: (_, ticks) => ticks.map(onAxis) };
  // Where uPlot's own steps are no numbers that people like.
  if (onAxis === short && most >= 2) upwards.incrs = DECIMAL.filter(by => by >= 1);
  if (unit === duration) upwards.incrs = DURATIONS;
  if (unit === bytes) upwards.incrs = DECIMAL.map(by => by * 2 ** 20);
  const top = most > 0 ? most * 1.08 : 1;
  new uPlot({
    width: place.clientWidth, height: place.clientHeight, legend: { show: false }, cursor: { show: false }, padding: [6, 8, 0, 0],
    scales: { x: { time: false, range: [0, seconds] }, y: { range: [0, top] } },
    axes: [{ ...axis, size: 26, gap: 6, incrs: [30, 60, 120, 300, 600, 1200, 3600], values: (_, ticks) => ticks.map(clock) }, upwards],
    series: [{}, ...order.map(at => series[at])],
    hooks: { draw: [plot => marks(plot, panel, top)] },
  }, [times.map(time => time - from), ...order.map(at => drawn[at])], place);
}

// Dashed lines: where a threshold begins, and when an annotation does.
function marks(plot, panel, top) {
  const { left, top: above, width, height } = plot.bbox;
  const line = (colour, ...[x, y, toX, toY]) => {
    plot.ctx.strokeStyle = colour;
    plot.ctx.beginPath();
    plot.ctx.moveTo(x, y);
    plot.ctx.lineTo(toX, toY);
    plot.ctx.stroke();
  };
  plot.ctx.save();
  plot.ctx.setLineDash([4, 3]);
  for (const { value, color } of panel.fieldConfig.defaults.thresholds?.steps.slice(1) ?? []) {
    const y = plot.valToPos(value, "y", true);
    if (value <= top) line(color, left, y, left + width, y);
  }
  for (const { colour, time } of annotations) {
    const x = plot.valToPos(time - from, "x", true);
    line(colour, x, above, x, above + height);
  }
  plot.ctx.restore();
}

let annotations = [];

// When each annotation of the dashboard begins.
async function annotated() {
  const all = await Promise.all(dashboard.annotations.list.map(async ({ expr, iconColor }) => {
    const values = (await ask({ expr, legendFormat: "" })).map(onGrid);
    const holds = times.map((_, at) => values.some(series => series[at] > 0));
    return times.filter((_, at) => holds[at] && !holds[at - 1]).map(time => ({ time, colour: iconColor }));
  }));
  return all.flat();
}

// Minutes and seconds since the beginning.
function clock(passed) {
  return `${Math.floor(passed / 60)}:${String(Math.round(passed) % 60).padStart(2, "0")}`;
}

function numbers(box, panel, all) {
  if (!all.length) return element("div", box, "no data", "empty");
  const unit = unitOf(panel);
  const place = element("div", box, undefined, all.length > 6 ? "numbers many" : all.length > 1 ? "numbers some" : "numbers");
  for (const series of all) {
    const each = element("div", place), value = Number(series.value[1]);
    const text = element("strong", each, unit(value));
    text.style.color = graded(panel, value);
    // As in Grafana, a long value has smaller letters.
    if (all.length === 1) text.style.fontSize = `${Math.min(27, (box.clientWidth - 20) / (0.65 * text.textContent.length))}px`;
    box.style.borderLeft = `5px solid ${graded(panel, value)}`;
    if (all.length > 1) each.append(series.name);
  }
}

function table(box, panel, all) {
  if (!all.length) return element("div", box, "no data", "empty");
  const unit = unitOf(panel);
  const labels = Object.keys(all[0].metric).sort((a, b) => rank(a) - rank(b));
  const counts = all.some(series => series.value[1] !== "1");
  const place = element("table", box), head = element("tr", place);
  for (const label of labels) element("th", head, label);
  if (counts) element("th", head, "value", "value");
  const rows = all.map(series => [...labels.map(label => series.metric[label] || "-"), ...(counts ? [unit(Number(series.value[1]))] : [])]);
  rows.sort((a, b) => a.join().localeCompare(b.join()));
  for (const row of rows.slice(0, Math.floor((box.clientHeight - 50) / 21))) {
    const line = element("tr", place);
    row.forEach((text, at) => {
      const cell = element("td", line, text, counts && at === labels.length ? "value" : undefined);
      if (property(panel, labels[at], "links")) cell.className = "link";
      cell.style.color = property(panel, labels[at], "mappings")?.[0].options[text]?.color ?? "";
    });
  }
}

function rank(label) {
  const order = ["namespace", "name", "condition", "status", "phase", "reason", "instance", "version"];
  return order.includes(label) ? order.indexOf(label) : order.length;
}

function states(box, panel, all) {
  const ever = all.filter(series => series.values.some(([, v]) => Number(v) === 1));
  if (!ever.length) return element("div", box, "no data", "empty");
  const place = element("div", box, undefined, "states");
  ever.sort((a, b) => a.name.localeCompare(b.name));
  ever.forEach((series, index) => {
    const row = element("div", place, undefined, "row");
    element("span", row, series.name, "name");
    const track = element("div", row, undefined, "track");
    const values = onGrid(series);
    for (let at = 0; at < values.length; at++) {
      if (values[at] !== 1) continue;
      let end = at;
      while (values[end] === 1) end++;
      const bar = element("span", track);
      bar.style.left = `${(100 * at) / values.length}%`;
      bar.style.width = `${(100 * (end - at)) / values.length}%`;
      bar.style.background = colour(panel, series.name, index);
      at = end;
    }
  });
  const axis = element("div", place, undefined, "axis");
  for (let at = 0; at <= 6; at++) element("span", axis, clock((seconds * at) / 6));
}

async function draw() {
  document.querySelector("h1").textContent = dashboard.title;
  const place = document.querySelector("main"), across = place.clientWidth / COLUMNS;
  const choices = document.querySelector("#chosen");
  for (const variable of dashboard.templating.list) {
    const value = chosen[variable.name];
    if (value === undefined) continue;
    choices.append(`${variable.label} `);
    element("b", choices, value === ".*" ? "All" : value);
    choices.append("   ");
  }
  for (const link of dashboard.links) element("a", document.querySelector("#links"), link.title);
  annotations = await annotated();
  let bottom = 0;
  for (const panel of dashboard.panels) {
    const { x, y, w, h } = panel.gridPos, box = element("section", place);
    box.style.left = `${x * across}px`;
    box.style.top = `${y * ROW}px`;
    box.style.width = `${w * across - (x + w < COLUMNS ? GAP : 0)}px`;
    box.style.height = `${h * ROW - GAP}px`;
    bottom = Math.max(bottom, (y + h) * ROW);
    if (panel.type === "row") {
      box.className = "row";
      element("h2", box, panel.title);
      continue;
    }
    const head = element("h2", box, panel.title);
    if (panel.links) element("a", head, "runbook");
    const now = panel.type === "stat" || panel.type === "table";
    const answers = await Promise.all(panel.targets.map(target => ask(target, now)));
    const kinds = { timeseries: graph, stat: numbers, table, "state-timeline": states };
    kinds[panel.type](box, panel, answers.flat());
  }
  place.style.height = `${bottom}px`;
}

draw().then(() => { document.title = "drawn"; }, error => { document.body.textContent = `not drawn: ${error.stack}`; });
