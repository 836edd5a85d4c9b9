// Descriptions of elements, and the smallest change of the document that shows them.
// Text is always a text node: nothing from the cluster is parsed as HTML.

/** Describes an element: `h('td.num', {title: 'x'}, 'text', child)`. */
export function h(tag, props, ...children) {
  return {
    tag,
    props: props ?? {},
    key: props?.key,
    children: children.flat(8).filter((c) => c !== null && c !== undefined && c !== false),
  };
}

/** Changes the children of `parent` to those described. */
export function render(parent, children) {
  const keyed = new Map();
  const free = [];
  for (const node of parent.childNodes) {
    const key = node.vnode?.key;
    if (key === undefined) free.push(node);
    else keyed.set(key, node);
  }
  let next = 0;
  const nodes = children.map((child) => {
    const old = child.key === undefined ? free[next++] : keyed.get(child.key);
    if (!old || !isSame(old, child)) return create(child);
    patch(old, child);
    return old;
  });
  const kept = new Set(nodes);
  for (const node of [...parent.childNodes]) if (!kept.has(node)) node.remove();
  let at = parent.firstChild;
  for (const node of nodes) {
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
}

function isSame(node, child) {
  if (typeof child !== 'object') return node.nodeType === Node.TEXT_NODE;
  return node.vnode !== undefined && node.vnode.tag === child.tag;
}

function create(child) {
  if (typeof child !== 'object') return document.createTextNode(String(child));
  const [name, ...classes] = child.tag.split('.');
  const element = document.createElement(name);
  if (classes.length > 0) element.className = classes.join(' ');
  element.vnode = child;
  element.base = element.className;
  if (!child.props.own) render(element, child.children);
  setProps(element, {}, child.props);
  child.props.updated?.(element);
  return element;
}

function patch(node, child) {
  if (typeof child !== 'object') {
    const text = String(child);
    if (node.nodeValue !== text) node.nodeValue = text;
    return;
  }
  const before = node.vnode;
  if (before === child) return;
  node.vnode = child;
  if (!child.props.own) render(node, child.children);
  setProps(node, before.props, child.props);
  child.props.updated?.(node);
}

const IGNORED = new Set(['key', 'own', 'updated']);

function setProps(element, before, props) {
  for (const name of Object.keys({ ...before, ...props })) {
    if (!IGNORED.has(name)) setProp(element, name, props[name], before[name]);
  }
}

function setProp(element, name, value, before) {
  if (name === 'style') {
    for (const key of Object.keys({ ...before, ...value })) {
      if (before?.[key] !== value?.[key]) element.style.setProperty(key, value?.[key] ?? '');
    }
  } else if (name === 'class') {
    const text = `${element.base} ${value ?? ''}`.trim();
    if (element.className !== text) element.className = text;
  } else if (name === 'value') {
    // What the reader types stays.
    if (document.activeElement !== element && element.value !== value) element.value = value ?? '';
  } else if (name.startsWith('on')) {
    element[name] = value ?? null;
  } else if (value === before) {
    return;
  } else if (name === 'checked') {
    element.checked = Boolean(value);
  } else if (value === undefined || value === null || value === false) {
    element.removeAttribute(name);
  } else {
    element.setAttribute(name, value === true ? '' : String(value));
  }
}
