// Builds and updates the page. Whatever comes from outside goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

/** Return an element: attributes by name, `on` for listeners, children as nodes, texts or lists of them. */
export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Return an element of a picture. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, { on = {}, ...attributes }, children) {
  for (const [event, listener] of Object.entries(on)) node.addEventListener(event, listener);
  for (const [name, value] of Object.entries(attributes)) attribute(node, name, value);
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Set an attribute; null and false take it away. */
export function attribute(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : value);
}

/** Set a node's text, if it differs: what a screen reader or a selection holds on to stays. */
export function text(node, value) {
  const shown = value === null || value === undefined ? "" : String(value);
  if (node.textContent !== shown) node.textContent = shown;
}

/**
 * Make the children of `parent` those of `items`, in order, keeping the nodes of the same key, so that focus stays.
 * `make(item)` returns {node, update(item)}.
 */
export function sync(parent, items, keyOf, make) {
  const known = parent.rowsByKey ?? new Map();
  const now = new Map();
  for (const item of items) {
    const key = keyOf(item);
    const row = known.get(key) ?? make(item);
    row.update(item);
    now.set(key, row);
  }
  for (const [key, row] of known) if (!now.has(key)) row.node.remove();
  let place = parent.firstElementChild;
  for (const row of now.values()) {
    if (row.node === place) place = place.nextElementSibling;
    else parent.insertBefore(row.node, place);
  }
  parent.rowsByKey = now;
}

/** Say something to those who do not see the page. */
export function say(words) {
  text(document.getElementById("spoken"), words);
}
