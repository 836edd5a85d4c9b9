// Where each node is on the map: groups of the topology levels as boxes, nodes in rows, all by arithmetic.

const ROOM = 8;

/** Groups of nodes by their paths. `nodes`: sorted names and their records. */
export function groupNodes(names, nodes) {
  const root = { label: '', children: new Map(), members: [] };
  names.forEach((name, index) => {
    let group = root;
    for (const value of nodes[name].path ?? []) {
      const key = value || 'no label';
      if (!group.children.has(key)) group.children.set(key, { label: key, children: new Map(), members: [] });
      group = group.children.get(key);
    }
    group.members.push(index);
  });
  return finish(root);
}

function finish({ label, children: below, members }) {
  const children = [...below.values()].map(finish);
  children.sort((a, b) => a.label.localeCompare(b.label, 'en', { numeric: true }));
  // Nodes beside deeper groups lack the label of the next level.
  const beside = children.length > 0 && members.length > 0;
  if (beside) children.push({ label: 'no label', children: [], members });
  return { label, children, members: beside ? [] : members };
}

/**
 * Places of `count` nodes by index, and of their groups: with the largest squares with which the whole map fits,
 * else with the smallest ones, in the lowest map.
 */
export function place(root, count, squares, width, height) {
  let best = null;
  for (let cell = 26; cell >= 1 && !best; cell -= cell > 4 ? 1 : 0.5) {
    const unit = sizes(squares, cell);
    if (cell > 1 && count * (unit.nodeW + unit.gap) * (unit.nodeH + unit.gap) > width * height) continue;
    for (let trial = 0; trial < 48; trial += 1) {
      const tried = { unit, columns: 1 + (trial % 16), spread: [1, 2.5, 6][Math.floor(trial / 16)] };
      const size = measure(root, tried, width, 0);
      if (size.w > width || (size.h > height && cell > 1)) continue;
      if (!best || size.h < best.h) best = { ...tried, h: size.h };
    }
  }
  best ??= { unit: sizes(squares, 1), columns: 1, spread: 6 };
  const size = measure(root, best, width, 0);
  const placed = { ...best.unit, width: size.w, height: size.h, groups: [], x: new Float32Array(count), y: new Float32Array(count) };
  settle(root, 0, 0, 0, placed);
  return placed;
}

/** Sizes of one node, whose squares are in rows of up to eight. */
function sizes(squares, cell) {
  const columns = squares <= 4 ? Math.max(1, squares) : squares <= 8 ? 4 : 8;
  // With small squares the boxes have thin frames, and names of the inner ones show at a larger zoom.
  const frame = cell >= 6 ? { pad: 5, header: 15, inner: 15 } : { pad: 2, header: 13, inner: 3 };
  return { cell, columns, gap: cell >= 8 ? 4 : cell >= 6 ? 3 : cell >= 3 ? 2 : 1, nodeW: columns * cell, nodeH: Math.ceil(squares / columns) * cell, frame };
}

function measure(group, tried, width, depth) {
  const { unit } = tried;
  const header = depth === 0 ? 0 : depth === 1 ? unit.frame.header : unit.frame.inner;
  const pad = depth === 0 ? 0 : unit.frame.pad;
  if (group.children.length === 0) {
    const stepX = unit.nodeW + unit.gap;
    const stepY = unit.nodeH + unit.gap;
    const most = Math.max(1, Math.floor((width - 2 * pad + unit.gap) / stepX));
    const even = depth === 0 ? most : Math.max(2, Math.ceil(Math.sqrt((group.members.length * stepY * tried.spread) / stepX)));
    const perRow = Math.max(1, Math.min(most, even, group.members.length));
    const rows = Math.ceil(group.members.length / perRow);
    group.perRow = perRow;
    group.inner = { x: pad, y: header + (depth === 0 ? 0 : 2) };
    return Object.assign(group, { header, w: 2 * pad + perRow * stepX - unit.gap, h: header + 2 * pad + rows * stepY - unit.gap });
  }
  const inside = depth === 0 ? Math.floor((width - (tried.columns - 1) * ROOM) / tried.columns) : width - 2 * pad;
  const room = depth === 0 ? ROOM : unit.frame.pad;
  let [x, y, high, wide] = [0, 0, 0, 0];
  for (const child of group.children) {
    const size = measure(child, tried, inside, depth + 1);
    if (x > 0 && x + size.w > (depth === 0 ? width : inside)) [x, y, high] = [0, y + high + room, 0];
    child.at = { x: pad + x, y: header + y };
    x += size.w + room;
    high = Math.max(high, size.h);
    wide = Math.max(wide, x - room);
  }
  return Object.assign(group, { header, w: wide + 2 * pad, h: header + y + high + pad });
}

function settle(group, x, y, depth, placed) {
  Object.assign(group, { x, y, depth });
  placed.groups.push(group);
  for (const child of group.children) settle(child, x + child.at.x, y + child.at.y, depth + 1, placed);
  group.members.forEach((index, i) => {
    const column = i % group.perRow;
    placed.x[index] = x + group.inner.x + column * (placed.nodeW + placed.gap);
    placed.y[index] = y + group.inner.y + ((i - column) / group.perRow) * (placed.nodeH + placed.gap);
  });
}
