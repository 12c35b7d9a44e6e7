// Builds and updates elements. Values are inserted as text, never as markup.

import { guard } from "./permissions.js";

const SVG = "http://www.w3.org/2000/svg";

/**
 * Return an element: attributes by name, `on` for listeners, `needs` for the route that a button requests,
 * children as nodes, texts or lists of them.
 */
export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Return an SVG element. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, { on = {}, needs, ...attributes }, children) {
  for (const [event, listener] of Object.entries(on)) node.addEventListener(event, listener);
  for (const [name, value] of Object.entries(attributes)) attribute(node, name, value);
  if (needs) guard(node, needs);
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined
    && child !== false));
  return node;
}

/** Set an attribute; null and false remove it. */
export function attribute(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : value);
}

/** Set a node's text if it differs, so that a selection or a screen reader keeps its position. */
export function text(node, value) {
  const shown = value === null || value === undefined ? "" : String(value);
  if (node.textContent !== shown) node.textContent = shown;
}

const CONTROLS = "button, input, select, textarea, summary";
const FOCUSABLE = `a[href], [tabindex], ${CONTROLS}`;

/**
 * Replace the children of a node by `children` (nodes and texts). A child that is equal and has no controls
 * stays, with its selection and scroll position; the listeners of controls belong to the values that they
 * were made of.
 */
export function setChildren(node, ...children) {
  keepingFocus(node, () => {
    const next = node.cloneNode(false);
    next.append(...children);
    const [before, after] = [[...node.childNodes], [...next.childNodes]];
    after.forEach((child, index) => {
      if (index >= before.length) node.append(child);
      else if (!isSame(before[index], child)) before[index].replaceWith(child);
    });
    for (const child of before.slice(after.length)) child.remove();
  });
}

function isSame(before, child) {
  return before.isEqualNode(child) && !(child instanceof Element
    && (child.matches(CONTROLS) || child.querySelector(CONTROLS)));
}

/**
 * Change what is inside a node. If that removes the element that has the focus, its successor gets it: the
 * one of the same kind and name, else the one in its place.
 */
export function keepingFocus(node, change) {
  const { activeElement } = document;
  const focused = node !== activeElement && node.contains(activeElement) ? activeElement : null;
  if (!focused) return void change();
  const position = [...node.querySelectorAll(FOCUSABLE)].indexOf(focused);
  const name = nameOf(focused);
  change();
  if (node.contains(focused)) return;
  const candidates = [...node.querySelectorAll(FOCUSABLE)];
  (candidates.find((each) => nameOf(each) === name) ?? candidates[position])?.focus({ preventScroll: true });
}

function nameOf(control) {
  return [control.tagName, control.id, control.getAttribute("href"),
    control.getAttribute("aria-label") ?? control.textContent].join(" ");
}

/**
 * Make the children of `parent` match `items`, in order; nodes of the same key are kept, so that focus stays.
 * `make(item)` returns {node, update(item)}. At most `madeMax` nodes are made; returns whether some are
 * missing. A call that continues one with the same items updates no node again.
 */
export function sync(parent, items, keyOf, make, { madeMax, isContinued }) {
  const known = parent.rowsByKey ?? new Map();
  const now = new Map();
  let made = 0;
  let isCut = false;
  for (const item of items) {
    const key = keyOf(item);
    const isKnown = known.has(key);
    if (!isKnown && made === madeMax) {
      isCut = true;
      continue;
    }
    const row = known.get(key) ?? make(item);
    if (!isKnown) made += 1;
    if (!isKnown || !isContinued) row.update(item);
    now.set(key, row);
  }
  for (const [key, row] of known) if (!now.has(key)) row.node.remove();
  let next = parent.firstElementChild;
  for (const row of now.values()) {
    if (row.node === next) next = next.nextElementSibling;
    else parent.insertBefore(row.node, next);
  }
  parent.rowsByKey = now;
  return isCut;
}

/** Announce something to screen readers. */
export function say(words) {
  text(document.getElementById("spoken"), words);
}
