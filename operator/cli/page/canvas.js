// The map as one canvas. Squares are in typed arrays; nothing on the page is an element of a node.

import { groupNodes, place } from './layout.js';

/** Below this size of a square the map is one bitmap, which panning only moves. */
const DETAIL = 9;
/** Pixels of the largest bitmap: an enlarged map of many nodes has hundreds of millions. */
const BITMAP = 16_000_000;
const LETTERS = 12;
const NONE = 255;
export const DIM = 64;

/** Makes the map of a canvas. `on`: `pick(index, square)`, `box(indices)`, `hover(index, square, x, y)`. */
export function createMap(canvas, on) {
  const bitmap = document.createElement('canvas');
  const at = { x: 0, y: 0, zoom: 1 };
  const map = { canvas, on, context: canvas.getContext('2d'), bitmap, bitmapZoom: 0, sprites: new Map(), at, names: [], nodes: null, queued: false, timer: 0 };
  listen(map);
  new ResizeObserver(() => {
    map.nodes = null;
    if (map.input) update(map, map.input);
  }).observe(canvas);
  return map;
}

/**
 * Shows these nodes. `input`: `{names, nodes, squares, colours, letters, palette, outlines, arrows}`. `colours`
 * and `letters` have one byte for each square of each node; 255 is no square. Arrows lead from nodes to nodes.
 */
export function update(map, input) {
  const { width, height } = size(map);
  const moved = map.nodes === null || width !== map.width || height !== map.height || input.layoutKey !== map.layoutKey;
  const painted = moved || input.paintKey !== map.paintKey;
  Object.assign(map, { input, width, height, layoutKey: input.layoutKey, paintKey: input.paintKey, names: input.names, nodes: input.nodes });
  if (moved && width > 0) arrange(map);
  if (painted) {
    map.bitmapZoom = 0;
    map.sprites.clear();
  }
  queue(map);
}

/** Zooms by a factor around a point, by default the middle. 0: the whole map. */
export function zoom(map, factor, x = map.width / 2, y = map.height / 2) {
  if (factor === 0) {
    map.at = whole(map);
  } else {
    const next = Math.min(40, Math.max(Math.min(1, whole(map).zoom), map.at.zoom * factor));
    const by = next / map.at.zoom;
    map.at = { zoom: next, x: x - (x - map.at.x) * by, y: y - (y - map.at.y) * by };
  }
  queue(map);
}

function whole({ placed, width, height }) {
  if (!placed) return { x: 0, y: 0, zoom: 1 };
  const fit = Math.min(1, width / placed.width, height / placed.height);
  return { x: Math.max(0, (width - placed.width * fit) / 2), y: 0, zoom: fit };
}

function size({ canvas }) {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  return { width, height };
}

function arrange(map) {
  const { names, nodes, squares } = map.input;
  map.placed = place(groupNodes(names, nodes), names.length, squares, map.width, map.height);
  [map.x, map.y] = [map.placed.x, map.placed.y];
  map.at = whole(map);
  map.bitmapZoom = 0;
}

function queue(map) {
  if (map.queued) return;
  map.queued = true;
  requestAnimationFrame(() => {
    map.queued = false;
    draw(map);
  });
}

function draw(map) {
  const { context, placed, at, width, height, input } = map;
  if (!placed || !input || width === 0) return;
  const ratio = devicePixelRatio || 1;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  boxes(map);
  const pixels = placed.cell * at.zoom;
  if (pixels < DETAIL && placed.width * placed.height * (at.zoom * ratio) ** 2 < BITMAP) drawBitmap(map, ratio);
  else drawNodes(map, pixels);
  labels(map);
  outlines(map);
  arrows(map);
  if (map.drag?.box) {
    const { x, y, toX, toY } = map.drag;
    context.strokeStyle = input.palette.ink;
    context.setLineDash([4, 3]);
    context.strokeRect(Math.min(x, toX) + 0.5, Math.min(y, toY) + 0.5, Math.abs(toX - x), Math.abs(toY - y));
    context.setLineDash([]);
  }
}

/** A rectangle of the map on the screen, or null if no part of it is in the box (by default, in the window). */
function screen({ at, width, height }, x, y, w, h, box = [0, 0, width, height]) {
  const shown = [x * at.zoom + at.x, y * at.zoom + at.y, w * at.zoom, h * at.zoom];
  const [left, top, wide, high] = shown;
  return left < box[2] && top < box[3] && left + wide > box[0] && top + high > box[1] ? shown : null;
}

function nodeOnScreen(map, node, box) {
  return screen(map, map.x[node], map.y[node], map.placed.nodeW, map.placed.nodeH, box);
}

function boxes(map) {
  const { context, placed, input } = map;
  for (const group of placed.groups) {
    const on = group.depth > 0 && screen(map, group.x, group.y, group.w, group.h);
    if (!on) continue;
    context.fillStyle = group.depth % 2 === 1 ? input.palette.box : input.palette.inner;
    context.fillRect(...on.map(Math.round));
  }
}

function labels(map) {
  const { context, placed, input, at } = map;
  context.font = '11px system-ui, sans-serif';
  context.textBaseline = 'top';
  for (const group of placed.groups) {
    const on = group.header * at.zoom >= 11 && screen(map, group.x, group.y, group.w, group.h);
    const room = on ? on[2] - 8 : 0;
    if (room < 14) continue;
    context.fillStyle = group.depth === 1 ? input.palette.ink : input.palette.faint;
    group.text ??= context.measureText(group.label).width;
    const fits = Math.floor((group.label.length * room) / group.text);
    const text = group.text <= room ? group.label : `${group.label.slice(0, Math.max(1, fits - 1))}…`;
    context.fillText(text, on[0] + 5, on[1] + 2);
  }
}

function drawBitmap(map, ratio) {
  const { context, at, bitmap, placed } = map;
  if (map.bitmapZoom === 0) paint(map, ratio);
  else if (map.bitmapZoom !== at.zoom && !map.timer) {
    // Zooming shows the last bitmap, scaled, until it pauses.
    map.timer = setTimeout(() => {
      map.timer = 0;
      map.bitmapZoom = 0;
      queue(map);
    }, 90);
  }
  const scaled = map.bitmapZoom !== at.zoom;
  context.imageSmoothingEnabled = scaled;
  context.drawImage(bitmap, scaled ? at.x : Math.round(at.x), scaled ? at.y : Math.round(at.y), placed.width * at.zoom, placed.height * at.zoom);
}

/** Patterns of states, so that colour is never alone: true for the pixels in the second colour. */
const PATTERNS = {
  none: () => false,
  diagonal: (x, y) => (x + y) % 4 === 0,
  cross: (x, y) => (x + y) % 4 === 0 || (x - y) % 4 === 0,
  lines: (x, y) => y % 3 === 0,
  columns: (x) => x % 3 === 0,
  dots: (x, y) => x % 3 === 0 && y % 3 === 0,
};

function paint(map, ratio) {
  const { placed, at, bitmap, input, names } = map;
  const scale = at.zoom * ratio;
  bitmap.width = Math.max(1, Math.round(placed.width * scale));
  bitmap.height = Math.max(1, Math.round(placed.height * scale));
  const context = bitmap.getContext('2d');
  const image = context.createImageData(bitmap.width, bitmap.height);
  const pixels = new Uint32Array(image.data.buffer);
  const size = placed.cell * scale;
  const gap = size >= 4 ? 1 : 0;
  const colours = input.palette.packed;
  for (let node = 0; node < names.length; node += 1) {
    for (let square = 0; square < input.squares; square += 1) {
      const colour = input.colours[node * input.squares + square];
      if (colour === NONE) continue;
      const column = square % placed.columns;
      const left = Math.round(map.x[node] * scale + column * size);
      const top = Math.round(map.y[node] * scale + ((square - column) / placed.columns) * size);
      const right = Math.round(map.x[node] * scale + (column + 1) * size) - gap;
      const bottom = Math.round(map.y[node] * scale + ((square - column) / placed.columns + 1) * size) - gap;
      const [first, second, pattern] = colours[colour];
      for (let y = top; y < bottom && y < bitmap.height; y += 1) {
        const row = y * bitmap.width;
        if (pattern === 'none') pixels.fill(first, row + left, row + Math.min(right, bitmap.width));
        else {
          const inside = PATTERNS[pattern];
          for (let x = left; x < right && x < bitmap.width; x += 1) pixels[row + x] = inside(x, y) ? second : first;
        }
      }
    }
  }
  context.putImageData(image, 0, 0);
  map.bitmapZoom = at.zoom;
}

function drawNodes(map, pixels) {
  const { context, at, placed, input, names } = map;
  const size = Math.max(1, Math.floor(pixels) - 1);
  const named = placed.gap * at.zoom >= 11;
  context.font = '10px system-ui, sans-serif';
  context.textBaseline = 'bottom';
  for (let node = 0; node < names.length; node += 1) {
    const on = nodeOnScreen(map, node, [0, 0, map.width, map.height + placed.gap * at.zoom]);
    if (!on) continue;
    const [left, top] = on;
    for (let square = 0; square < input.squares; square += 1) {
      const place = node * input.squares + square;
      if (input.colours[place] === NONE) continue;
      const column = square % placed.columns;
      const row = (square - column) / placed.columns;
      context.drawImage(sprite(map, input.colours[place], size >= LETTERS ? input.letters[place] : 0, size), Math.round(left + column * pixels), Math.round(top + row * pixels), size, size);
    }
    if (named) {
      context.fillStyle = input.palette.faint;
      context.fillText(names[node], left, top - 1, placed.nodeW * at.zoom);
    }
  }
}

function sprite(map, colour, letter, size) {
  const key = (colour * 256 + letter) * 2048 + size;
  const known = map.sprites.get(key);
  if (known) return known;
  if (map.sprites.size > 400) map.sprites.clear();
  const ratio = devicePixelRatio || 1;
  const made = document.createElement('canvas');
  made.width = Math.round(size * ratio);
  made.height = made.width;
  const context = made.getContext('2d');
  const [first, second, pattern] = map.input.palette.css[colour];
  context.fillStyle = first;
  context.fillRect(0, 0, made.width, made.height);
  context.fillStyle = second;
  if (letter === 0) {
    const inside = PATTERNS[pattern];
    for (let y = 0; y < made.height; y += 1) for (let x = 0; x < made.width; x += 1) if (inside(x, y)) context.fillRect(x, y, 1, 1);
  } else {
    context.font = `600 ${Math.round(Math.min(made.height * 0.62, 15 * ratio))}px system-ui, sans-serif`;
    context.textAlign = 'center';
    context.textBaseline = 'middle';
    context.fillStyle = map.input.palette.css[colour][3];
    context.fillText(String.fromCharCode(letter), made.width / 2, made.height / 2 + 0.5);
  }
  map.sprites.set(key, made);
  return made;
}

function outlines(map) {
  const { context, at, placed, input } = map;
  for (const { indices, colour, width, dash } of input.outlines) {
    context.beginPath();
    for (const index of indices) {
      const on = nodeOnScreen(map, index)?.map(Math.round);
      if (on) context.rect(on[0] - 1.5, on[1] - 1.5, on[2] + 2, on[3] + 2);
    }
    context.strokeStyle = colour;
    context.lineWidth = Math.min(width, Math.max(1, placed.gap * at.zoom * 0.75));
    context.setLineDash(dash ?? []);
    context.stroke();
    context.setLineDash([]);
  }
}

/** Arrows between the middles of nodes, with a seam in the colour of the ground. */
function arrows(map) {
  const { context, at, placed, input } = map;
  const mean = (places, list) => list.reduce((sum, i) => sum + places[i], 0) / list.length;
  const middle = (list) => [(mean(map.x, list) + placed.nodeW / 2) * at.zoom + at.x, (mean(map.y, list) + placed.nodeH / 2) * at.zoom + at.y];
  for (const { from, to, width } of input.arrows) {
    const [x, y] = middle(to);
    let [fromX, fromY] = middle(from);
    // If a preemptor takes exactly the nodes of its victim, the arrow points to these from the left.
    if (Math.hypot(x - fromX, y - fromY) < 24) [fromX, fromY] = [x - 40, y - 20];
    const angle = Math.atan2(y - fromY, x - fromX);
    context.beginPath();
    context.moveTo(fromX, fromY);
    context.lineTo(x, y);
    for (const turn of [-0.5, 0.5]) {
      context.moveTo(x, y);
      context.lineTo(x - 14 * Math.cos(angle + turn), y - 14 * Math.sin(angle + turn));
    }
    for (const [colour, more] of [[input.palette.inner, 4], [input.palette.accent, 0]]) {
      context.strokeStyle = colour;
      context.lineWidth = width + more;
      context.stroke();
    }
  }
}

function listen(map) {
  const { canvas } = map;
  const point = (event) => [event.offsetX, event.offsetY];
  canvas.addEventListener('wheel', (event) => {
    event.preventDefault();
    zoom(map, Math.exp(-event.deltaY * 0.0015), ...point(event));
  }, { passive: false });
  canvas.addEventListener('pointerdown', (event) => {
    const [x, y] = point(event);
    map.drag = { x, y, toX: x, toY: y, fromX: map.at.x, fromY: map.at.y, box: event.shiftKey, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener('pointermove', (event) => {
    const [x, y] = point(event);
    if (!map.drag) {
      map.on.hover(squareAt(map, x, y), x, y);
      return;
    }
    Object.assign(map.drag, { toX: x, toY: y });
    map.drag.moved ||= Math.abs(x - map.drag.x) + Math.abs(y - map.drag.y) > 4;
    if (!map.drag.box) Object.assign(map.at, { x: map.drag.fromX + x - map.drag.x, y: map.drag.fromY + y - map.drag.y });
    queue(map);
  });
  canvas.addEventListener('pointerup', (event) => {
    const drag = map.drag;
    map.drag = null;
    if (!drag) return;
    if (drag.box && drag.moved) map.on.box(inBox(map, drag));
    else if (!drag.moved) map.on.pick(squareAt(map, ...point(event)));
    queue(map);
  });
  canvas.addEventListener('pointerleave', () => map.on.hover(null, 0, 0));
}

/** The node at a point, and the square in it: `[index, square]`, or null. */
function squareAt({ at, names, placed, x: left, y: top }, x, y) {
  const [atX, atY] = [(x - at.x) / at.zoom, (y - at.y) / at.zoom];
  const index = names.findIndex((_, i) => atX > left[i] && atX < left[i] + placed.nodeW && atY > top[i] && atY < top[i] + placed.nodeH);
  if (index < 0) return null;
  return [index, Math.floor((atY - top[index]) / placed.cell) * placed.columns + Math.floor((atX - left[index]) / placed.cell)];
}

function inBox(map, { x, y, toX, toY }) {
  const box = [Math.min(x, toX), Math.min(y, toY), Math.max(x, toX), Math.max(y, toY)];
  return [...map.names.keys()].filter((i) => nodeOnScreen(map, i, box));
}
