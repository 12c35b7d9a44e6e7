// Builds elements, and changes what is shown into what shall be shown. Values are inserted as text, never as
// markup.

import { block, guard } from "./permissions.js";

const SVG = "http://www.w3.org/2000/svg";
const FOCUSABLE = "a[href], [tabindex], button, input, select, textarea, summary";

/**
 * Return an element: attributes by name, `on` for listeners, `needs` for the route that a button requests,
 * `blocked` for why it cannot be pressed; children as nodes, texts or lists of them.
 */
export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Return an SVG element. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

/** A button that is no part of a form. `more` are further attributes. */
export function button(words, click, more = {}) {
  return el("button", { type: "button", on: { click }, ...more }, words);
}

function filled(node, { on = {}, needs, blocked, ...attributes }, children) {
  listen(node, on);
  for (const [name, value] of Object.entries(attributes)) attribute(node, name, value);
  if (needs) guard(node, needs);
  if (blocked) block(node, blocked);
  node.append(...shown(children));
  return node;
}

function shown(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

/** Call the present listener of each event: `render` exchanges listeners, and keeps the element. */
function listen(node, listeners) {
  node.listeners ??= {};
  for (const event of Object.keys(listeners)) {
    if (!Object.hasOwn(node.listeners, event))
      node.addEventListener(event, (it) => node.listeners[event]?.(it));
  }
  for (const event of Object.keys({ ...node.listeners, ...listeners }))
    node.listeners[event] = listeners[event];
}

/** Set an attribute; null and false remove it. */
export function attribute(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : value);
}

/** Set a node's text if it differs, so that a selection or a screen reader keeps its position. */
export function text(node, value) {
  const words = value === null || value === undefined ? "" : String(value);
  if (node.textContent !== words) node.textContent = words;
}

/**
 * Make the children of a node like these. Elements of the same kind in the same place are changed, not
 * replaced: a selection, the focus, a scroll position and the press of a button survive each update.
 */
export function render(node, ...children) {
  const after = new DocumentFragment();
  after.append(...shown(children));
  keepingFocus(node, () => changeChildren(node, [...after.childNodes]));
}

function changeChildren(node, children) {
  const before = [...node.childNodes];
  children.forEach((child, index) => {
    const present = before[index];
    if (!present) node.append(child);
    else if (present.nodeName !== child.nodeName) present.replaceWith(child);
    else change(present, child);
  });
  for (const child of before.slice(children.length)) child.remove();
}

function change(node, wanted) {
  if (node.nodeType === Node.TEXT_NODE) {
    if (node.data !== wanted.data) node.data = wanted.data;
    return;
  }
  for (const { name } of [...node.attributes]) {
    // Details stay open that were opened, and cards where they were placed.
    const isKept = name === "style" || (name === "open" && node.matches("details"));
    if (!wanted.hasAttribute(name) && !isKept) node.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) attribute(node, name, value);
  listen(node, wanted.listeners ?? {});
  changeChildren(node, [...wanted.childNodes]);
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

/** Announce something to screen readers. */
export function say(words) {
  text(document.getElementById("spoken"), words);
}
